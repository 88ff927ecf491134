"""Changing a layout under its users: their devices stay published, tainted, and go on drawing on their counters, beside the new ones.

The scheduler can then give out as much of the new layout as the counters have left, and no claim notices anything. A device that vanishes
while somebody has it would give its counters back, and the GPU would be sold twice. So which devices are retired is on record before the
slices say so, and one is taken away only after its taint has been seen by every scheduler and a list of claims has shown that nobody has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus
from gpupartition.domain.backend import Observation
from gpupartition.domain.pool import FLEET, MAX_RECORD, Pool
from gpupartition.domain.tabled import memory_modes
from gpupartition.domain.wording import few

RETIRING: Final = "Retiring"


def retired(state: NodeStateStatus) -> Pool:
    """The devices of former layouts that somebody may still have."""
    return Pool.from_json(state.retiring)


def possible(state: NodeStateStatus, observed: Observation, to: Pool) -> bool:
    """Whether a node can be brought to another pool under its users.

    It cannot where a device stays under its name and becomes something else, or its GPU has other counters by now; nor where the memory mode
    changes, which is that of all GPUs of a node, so that counters of a GPU do not keep two apart.
    """
    stay = retired(state).beside(observed.retired).beside(observed.pool).retire(to)
    return observed.pool.usable and _go_together(to, stay)


@lru_cache(maxsize=FLEET)
def _go_together(to: Pool, stay: Pool) -> bool:
    return len(memory_modes(to, stay)) <= 1 and to.goes_with(stay) and len(stay.to_json()) <= MAX_RECORD


def retire(state: NodeStateStatus, observed: Observation, to: Assigned | None) -> str:
    """What the record has to name before the first write towards `to`: all that was, or may have been, offered until now, and is not then.

    What is seen may be half written, so all that the record knows of counts too.
    """
    then = Pool.from_json(to.pool if to is not None else "")
    stay = Pool()
    for pool in _known(state, observed):
        stay = pool.retire(then).beside(stay)
    return stay.to_json() if stay.devices else ""


def published(state: NodeStateStatus, to: Assigned) -> Assigned:
    """The layout as its slices have to say it: with the retired devices behind its own."""
    if not state.retiring:
        return to
    return to.model_copy(update={"pool": Pool.from_json(to.pool).beside(retired(state)).to_json()})


def known_devices(state: NodeStateStatus, observed: Observation) -> frozenset[str]:
    """Names of all devices of which it is known what they are."""
    return frozenset[str]().union(*(pool.names for pool in _known(state, observed)))


def _known(state: NodeStateStatus, observed: Observation) -> Sequence[Pool]:
    """All that was, or may have been, published: what is later in here gives way to what is earlier."""
    ways = [way.pool for way in (state.previous, state.target, state.current) if way is not None]
    return retired(state), *map(Pool.from_json, ways), observed.retired, observed.pool


def said(devices: frozenset[str]) -> str:
    """What a record says of a node whose former devices are still in use."""
    return (
        f"publishes what is wanted; devices of a former layout go as soon as they are released: {few(sorted(devices))}"
    )
