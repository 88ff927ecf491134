"""A real Kubernetes control plane on this machine, with simulated nodes and GPU drivers. See `testbed/README.md`."""
