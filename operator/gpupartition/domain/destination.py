"""What a node has to publish before it may leave its phase, and what a person would say it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpupartition.api.v1alpha1 import Assigned, Phase
from gpupartition.domain.backend import Observation
from gpupartition.domain.pool import Pool
from gpupartition.domain.retiring import retired
from gpupartition.domain.world import State, World

_NO_COUNTERS: Final = "draws on no counter of its GPU (is the API server's feature gate DRAPartitionableDevices off?)"
_NOT_SHARED: Final = "is for one claim alone (is the API server's feature gate DRAConsumableCapacity off?)"
IN_VAIN: Final = f"{Phase.ROLLING_BACK}Failed"
STRANDED: Final = "Stranded"  # the same, and nothing else was wanted of the node: only people can say what leads on


def in_vain(state: State) -> bool:
    """The way back was walked, and did not lead there (it may be being walked once more): what the node had would still make it whole."""
    return state.phase in {Phase.FAILED, Phase.ROLLING_BACK} and state.reason in {IN_VAIN, STRANDED}


def destination(state: State) -> Assigned | None:
    """What the node is on its way to: its target, or what it had before, once it goes back."""
    goes_back = state.phase is Phase.ROLLING_BACK or in_vain(state)
    return state.previous if goes_back else state.target


def expected_pool(state: State) -> Pool:
    """What the node has to publish before it may leave its phase."""
    layout = destination(state)
    return Pool.from_json(layout.pool if layout else "")


def expected_now(state: State, world: World) -> bool:
    """The pool is exactly what the phase waits for, and whatever is retired is there for those who have it."""
    return is_expected(state, world.observed)


def is_expected(state: State, seen: Observation) -> bool:
    """The same of what was seen."""
    return seen.pool.equals(expected_pool(state)) and seen.retired.equals(retired(state))


def lacks_only_gpus(state: State, world: World) -> bool:
    """GPUs are missing, and the others are exactly as the phase waits for."""
    seen = world.observed
    return seen.ready and seen.pool.equals_but_for_lost_gpus(expected_pool(state))


def missing_gpus(seen: Pool, wanted: Pool) -> str:
    """What a person would say of GPUs that are not there."""
    missing = sorted(wanted.gpus - seen.gpus)
    return f"{len(missing)} of {len(wanted.gpus)} GPUs are missing, such as {missing[0] if missing else '?'}; the others publish what is wanted"


def lacking(seen: Observation, wanted: Pool) -> str:
    """What a person would say keeps a node from being what it is to be; "" when nothing is known to."""
    facts = (seen.failed or seen.complaint, seen.pool.problem, difference(seen.pool, wanted))
    return "; ".join(filter(None, facts))


def difference(seen: Pool, wanted: Pool) -> str:
    """What a person would say is wrong with the published devices; "" when the names are right."""
    missing, gone = wanted.vanishing_names(seen), seen.vanishing_names(wanted)
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(wanted.devices)} devices are missing, such as {min(missing)}")
    if gone:
        parts.append(f"{len(gone)} are there that should be gone, such as {min(gone)}")
    return " and ".join([*parts, *_bare(seen, wanted)])


def _bare(seen: Pool, wanted: Pool) -> Iterator[str]:
    """Which devices are there without what an API server drops while a feature gate is off."""
    there = {device.name: device for device in seen.devices}
    both = [(each, there[each.name]) for each in wanted.devices if each.name in there and not wanted.by_kind]
    if free := [each.name for each, has in both if each.costs and not has.costs]:
        yield f"{min(free)} {_NO_COUNTERS}"
    if alone := [each.name for each, has in both if each.shared and not has.shared]:
        yield f"{min(alone)} {_NOT_SHARED}"
