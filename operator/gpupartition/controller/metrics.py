"""What Prometheus is told."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

WRITES: Final = Counter("gpupartition_writes_total", "Writes to the API server, by effect.", ["effect"])
TRANSITIONS: Final = Counter("gpupartition_transitions_total", "Phases that nodes entered.", ["policy", "phase"])
NODES: Final = Gauge("gpupartition_nodes", "Nodes of a policy, by phase.", ["policy", "phase"])
IN_FLIGHT: Final = Gauge("gpupartition_in_flight", "Grants in a driver's ledger.", ["driver"])
LEADING: Final = Gauge("gpupartition_leading", "Whether this instance works (1) or stands by (0).")
TURNS: Final = Histogram("gpupartition_turn_seconds", "How long one look at a node or a policy takes.", ["loop"])
