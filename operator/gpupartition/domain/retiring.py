"""Changing a layout under its users: their devices stay published, tainted, and go on drawing on their counters, beside the new ones.

The scheduler can then give out as much of the new layout as the counters have left, and no claim notices anything. A device that vanishes
while somebody has it would give its counters back, and the GPU would be sold twice. So which devices are retired is on record before the
slices say so, and one is taken away only after its taint has been seen by every scheduler and a list of claims has shown that nobody has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus, Phase
from gpupartition.domain.backend import Observation
from gpupartition.domain.groups import MAX_NODES, on_nodes
from gpupartition.domain.pool import FLEET, MAX_RECORD, Pool
from gpupartition.domain.tabled import memory_modes
from gpupartition.domain.wording import few
from gpupartition.domain.world import AT_REST

RETIRING: Final = "Retiring"


def retired(state: NodeStateStatus) -> Pool:
    """The devices of former layouts that somebody may still have."""
    return Pool.from_json(state.retiring)


def possible(state: NodeStateStatus, observed: Observation, to: Pool) -> bool:
    """Whether a node can be brought to another pool under its users, and back again.

    It cannot where a device stays under its name and becomes something else, or its GPU has other counters by now; nor where the memory mode
    changes, which is that of all GPUs of a node, so that counters of a GPU do not keep two apart; nor where there is more to stay than a
    record, or the counters of a group, have room for.
    """
    untouched = state.phase in AT_REST or state.phase is Phase.ADMITTED  # its target was never published
    known = _known(state.model_copy(update={"target": None}) if untouched else state, observed)
    back = Pool.from_json(state.previous.pool) if state.previous is not None else observed.pool
    stay = _beside(to, known)
    return observed.pool.usable and _go_together(to, stay) and _go_together(back, _beside(back, (stay, to, *known)))


@lru_cache(maxsize=FLEET)
def _go_together(to: Pool, stay: Pool) -> bool:
    fits = len(stay.to_json()) <= MAX_RECORD and len(on_nodes(to) | on_nodes(stay)) <= MAX_NODES
    return fits and len(memory_modes(to, stay)) <= 1 and to.goes_with(stay)


def retire(state: NodeStateStatus, observed: Observation, to: Assigned | None) -> str:
    """What the record has to name before the first write towards `to`: all that was, or may have been, offered until now, and is not then.

    What is seen may be half written, so all that the record knows of counts too.
    """
    stay = _beside(Pool.from_json(to.pool if to is not None else ""), _known(state, observed))
    return stay.to_json() if stay.devices else ""


def _beside(then: Pool, known: Iterable[Pool]) -> Pool:
    """What of these pools has to stay published beside another one; what is later among them gives way to what is earlier."""
    stay = Pool()
    for pool in known:
        stay = pool.retire(then).beside(stay)
    return stay


def published(state: NodeStateStatus, to: Assigned) -> Assigned:
    """The layout as its slices have to say it: with the retired devices behind its own."""
    if not state.retiring:
        return to
    return to.model_copy(update={"pool": Pool.from_json(to.pool).beside(retired(state)).to_json()})


def known_devices(state: NodeStateStatus, observed: Observation) -> frozenset[str]:
    """Names of all devices of which it is known what they are."""
    return frozenset[str]().union(*(pool.names for pool in _known(state, observed)))


def _known(state: NodeStateStatus, observed: Observation) -> Sequence[Pool]:
    """All that was, or may have been, published."""
    ways = [way.pool for way in (state.previous, state.target, state.current) if way is not None]
    return retired(state), *map(Pool.from_json, ways), observed.retired, observed.pool


def said(devices: frozenset[str]) -> str:
    """What a record says of a node whose former devices are still in use."""
    return (
        f"publishes what is wanted; devices of a former layout go as soon as they are released: {few(sorted(devices))}"
    )
