"""How much of a small cluster is gone through, and which one rule is broken meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from tests.properties.cluster import FRESH
from tests.properties.state import Node, State

from gpupartition.domain.quiesce import Way


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How much is gone through: nodes, workers, the targets that the user asks for, and what may go wrong how often; and one planted bug."""

    nodes: int = 1
    workers: int = 2
    path: tuple[int, ...] = (1,)
    failures: int = 0
    departures: int = 0
    reboots: int = 0
    pauses: int = 0  # the user says stop, and go on
    freezes: bool = False  # and says so by freezing everything
    hands: int = 0  # somebody deletes a record
    leavings: int = 0  # a node leaves the selector, or comes back
    deletion: bool = False
    reverts: bool = False  # whoever leaves gets back what it had
    abandons: bool = False  # somebody asked to let go of what cannot be brought back
    patient: bool = False  # no limit is ever over
    evicts: bool = False  # pods never end by themselves
    halts: bool = False  # a node that is not drained in time counts as failed
    restarts: bool = False  # the driver's pod has to be deleted for another config behind the same value
    cuts: bool = False  # the driver cuts the hardware, answers, and its pod publishes that only when it starts anew
    strangers: bool = False  # somebody else cordons nodes
    kind: str = "reserved"  # of claims
    quiesce: Way = "DeviceTaint"
    bug: str = ""

    def initial(self) -> State:
        """Nobody has done anything yet."""
        node = Node(pod=FRESH, outdated=self.restarts) if self.restarts or self.cuts else Node()
        return State(
            (node,) * self.nodes,
            failures=self.failures,
            departures=self.departures,
            reboots=self.reboots,
            pauses=self.pauses,
            hands=self.hands,
            leavings=self.leavings,
        )
