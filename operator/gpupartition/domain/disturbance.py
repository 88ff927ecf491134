"""What a change disturbs: the one that is going on, or the one that would begin, and which holders of a node's devices are in its way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.changes import class_of
from gpupartition.domain.destination import expected_pool
from gpupartition.domain.holders import Holder
from gpupartition.domain.pool import Pool
from gpupartition.domain.retiring import known_devices, possible
from gpupartition.domain.world import AT_REST


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """How deep a change goes, of which devices it is known what they are, and which of them are taken away from whoever has them."""

    change: str
    published: frozenset[str]
    disturbed: frozenset[str]
    rolling_back: bool

    def blocked_by(self, held: Iterable[Holder]) -> tuple[Holder, ...]:
        """The holders that must be gone before the change.

        Repartition: those whose device is disturbed, and those whose device is not even published any more (nobody knows what they use).
        Live: the latter only, because the others' devices stay. Restart changes no device; only a holder that is ending blocks it, because
        ending needs the driver. Rolling back brings vanished devices back, so their holders do not block it.
        """
        if self.change == "Restart":
            return tuple(h for h in held if h.terminating)
        taken = frozenset[str]() if self.change == "Live" else self.disturbed
        unknown = not self.rolling_back
        return tuple(h for h in held if h.device in taken or (unknown and h.device not in self.published))


def disturbance(
    state: NodeStateStatus,
    observed: Observation,
    wanted: Config | None,
    disturbs: Callable[[Pool, Pool], frozenset[str]],
    *,
    live: bool,
) -> Disturbance | None:
    """What it is by a record and by what is seen; None of a node at rest of which nothing is wanted.

    `disturbs` and `live` are what its backend says: which devices a change from one pool to another takes away, and whether it can be live.
    """
    if state.phase not in AT_REST:
        then, change = expected_pool(state), str(state.change)
    elif wanted is not None:
        then = wanted.pool
        change = class_of(observed, wanted, live=live and possible(state, observed, then))
    else:
        return None
    # After the assignment the node publishes something new; who held a device before still counts.
    now = observed.pool
    if state.phase is Phase.APPLYING and state.previous is not None and observed.step == state.step:
        now = Pool.from_json(state.previous.pool)
    return Disturbance(
        change=change,
        published=known_devices(state, observed) if change == "Live" else now.names,
        disturbed=disturbs(now, then),
        rolling_back=state.phase is Phase.ROLLING_BACK,
    )
