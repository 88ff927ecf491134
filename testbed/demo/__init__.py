"""A roll-out to look at, on a real control plane: `python -m testbed.demo`."""
