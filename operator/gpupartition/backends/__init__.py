"""One file per driver: what its layouts are, how a node is told, what it then publishes."""
