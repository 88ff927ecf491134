"""How new claims are kept off a node: by a DeviceTaintRule over its devices, by cordoning it, or both.

Which of them is in use for an attempt stands in the record, so whatever a driver is changed to meanwhile, what was put up is taken down.
A cordon says whose it is on the Node itself, in the very patch that makes it: a node that somebody else had cordoned stays so.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from gpupartition import names
from gpupartition.api.v1alpha1 import NodeStateStatus
from gpupartition.domain.objects import Object
from gpupartition.domain.world import Quiesce

Way = Literal["DeviceTaint", "Cordon", "Both"]

TAINTS: Final = frozenset({"DeviceTaint", "Both"})
CORDONS: Final = frozenset({"Cordon", "Both"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One of the ways, as it stands. `there`: something of ours is, or may still come; `seen`: what it is, for telling how long it has been."""

    there: bool
    active: bool = True
    proven: bool = True
    seen: Hashable = None


def chosen(asked: str, *, served: bool) -> Way:
    """What a driver's `spec.quiesce` comes to on a cluster that serves DeviceTaintRules, or does not."""
    ways: dict[str, Way] = {"DeviceTaint": "DeviceTaint", "Cordon": "Cordon", "Both": "Both"}
    return ways.get(asked, "DeviceTaint" if served else "Cordon")


def holds(state: NodeStateStatus, node: Object | None, rule: Object | None) -> tuple[Hold, ...]:
    """Rule and cordon, read from the objects that they are; `node` None: the Node is gone. One that is not in use only has to be gone."""
    return _taint(state, rule), _cordon(state, node)


def quiesce(held: Sequence[Hold], watched: timedelta) -> Quiesce | None:
    """All holds together; None when nothing of ours is left."""
    if not any(hold.there for hold in held):
        return None
    active = in_force(held) is not None
    return Quiesce(active=active, proven=all(hold.proven for hold in held), watched=watched)


def in_force(held: Sequence[Hold]) -> Hashable | None:
    """What it is that keeps claims away, for telling since when; None unless all that is in use does."""
    return tuple(hold.seen for hold in held) if all(hold.active for hold in held) else None


def is_ours(rule: Object) -> bool:
    """Whether this operator made a rule. What somebody else has put under its name closes who knows what, and is theirs."""
    return bool(rule["metadata"].get("labels", {}).get(names.MANAGED_BY) == names.FIELD_MANAGER)


def rule_is_active(rule: Object) -> bool:
    """Whether a rule does anything yet."""
    return bool(rule["spec"]["taint"].get("effect") == "NoSchedule")


def _taint(state: NodeStateStatus, rule: Object | None) -> Hold:
    if rule is None or state.quiesce not in TAINTS:
        return Hold(there=rule is not None, active=state.quiesce not in TAINTS)
    meta = rule["metadata"]
    generation = meta.get("generation", 0)
    answers = [c for c in rule.get("status", {}).get("conditions", ()) if c["type"] == "EvictionInProgress"]
    return Hold(
        there=True,
        active=rule_is_active(rule),
        proven=any(c.get("observedGeneration", 0) >= generation for c in answers),
        seen=(meta["uid"], generation),
    )


def _cordon(state: NodeStateStatus, node: Object | None) -> Hold:
    if node is None:
        return Hold(there=False, active=state.quiesce not in CORDONS)
    meta = node["metadata"]
    notes = meta.get("annotations", {})
    by = notes.get(names.CORDONED)
    if state.quiesce not in CORDONS:
        return Hold(there=by is not None)
    # Opening is a step of its own: until the Node carries it, a worker that was about to cordon may still come.
    return Hold(
        there=by is not None or notes.get(names.STEP, "") != state.step,
        active=bool(node.get("spec", {}).get("unschedulable")) and by in {None, state.token},
        seen=(meta.get("uid"), by),
    )
