"""Which devices the scheduler would give to a pod's claims."""
