"""What should happen: pure decisions over snapshots. No I/O, no clock, no chance."""
