"""Simulated GPU drivers: each publishes what the real one publishes, in its order and with its habits."""
