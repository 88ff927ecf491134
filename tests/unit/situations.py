"""The situations in which a roll-out may be, and what its status says of each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from tests.unit.worlds import HALVES, T0

from gpupartition.api.v1alpha1 import Assigned, Blocker, NodeStateStatus, Phase, PolicySpec, PolicyStatus
from gpupartition.domain import destination
from gpupartition.domain.admission import Admission, Standing
from gpupartition.domain.conditions import summarise
from gpupartition.domain.problem import Problem, Turn
from gpupartition.domain.rollout import UNREADABLE, Rollout
from gpupartition.domain.world import AT_REST

LATER: Final = T0 + timedelta(minutes=5)
SPEC: Final = PolicySpec.model_validate(
    {
        "driver": "example",
        "nodeSelector": {"matchLabels": {"pool": "inference"}},
        "layouts": [{"name": "halves", "match": {"all": True}, "type": "Equal", "equal": {"parts": 2}}],
    }
)
REVERT: Final = SPEC.model_copy(update={"deletion_policy": "Revert"})
OBSERVE: Final = SPEC.model_copy(update={"mode": "Observe"})
TARGET: Final[Assigned] = HALVES.assigned()
WHY: Final = "the node does not publish what is wanted: 2 of 2 devices are missing, such as gpu-0-part-0"
ARRIVING: Final = timedelta(days=1)
MISSING: Final = Problem(
    reason="DriverNotFound", at="spec.driver", why="there is no such driver", fix="create it", turn=Turn.CLUSTER
)
REFUSED: Final = Problem(
    reason="TooManyDevices", at="spec.layouts[0].equal.parts", why="200 are too many", fix="ask for at most 128"
)


class Node(NamedTuple):
    """One node in a given phase, as admission and status see it."""

    standing: Standing
    record: NodeStateStatus


def node(
    name: str, phase: Phase, *, reason: str = "", message: str = "", blockers: Iterable[Blocker] = (), **more: Any
) -> Node:
    blockers = list(blockers)
    fields = {"at_target": phase is Phase.UP_TO_DATE, "holders": len(blockers)} | more
    record = NodeStateStatus(
        phase=phase,
        since=T0,
        target=TARGET,
        reason=reason,
        message=message,
        blockers=blockers,
        token="t" * (phase not in AT_REST),
    )
    return Node(Standing(node=name, uid=f"uid-{name}", phase=phase, **fields), record)


DONE: Final = node("a", Phase.UP_TO_DATE)
MOVING: Final = node("b", Phase.APPLYING)
WAITING: Final = node("c", Phase.PENDING)
FAILED: Final = node("f", Phase.FAILED, reason="RollingBackFailed", message=WHY, halted=True)
STRANDED: Final = node("g", Phase.FAILED, reason=destination.STRANDED, message=WHY)
REVERTED: Final = FAILED._replace(record=FAILED.record.model_copy(update={"original": TARGET}))
ROLLED_BACK: Final = node("r", Phase.ROLLED_BACK, reason="VerifyingFailed", message=WHY, halted=True)
SKIPPED: Final = node(
    "s", Phase.SKIPPED, reason="NoWayBack", message="nothing says what its driver runs", startable=False
)
UNREAD: Final = node("x", Phase.FAILED, reason=UNREADABLE, message="its record cannot be read", at_target=False)
UNREAD_AT_REST: Final = node(
    "y", Phase.SKIPPED, reason=UNREADABLE, message="its record cannot be read", startable=False
)
DRIFTED: Final = node("d", Phase.PENDING, reason="Drift", message="published the wanted layout and no longer does: x")
HOLDER: Final = Blocker(node="h", claim="team/claim", pod="team/pod", device="gpu-0", reason="Allocated", since=T0)
HELD: Final = node("h", Phase.DRAINING, blockers=[HOLDER])
REFUSING: Final = HOLDER.model_copy(update={"reason": "EvictionBlocked", "pdb": "team/web"})
KEPT: Final = node("h", Phase.DRAINING, blockers=[REFUSING])
UNDRAINED: Final = node("u", Phase.ROLLED_BACK, reason="DrainingFailed", message="holders did not end", halted=True)


def rollout(*nodes: Node, reason: str = "", words: str = "", **more: Any) -> Rollout:
    fields: dict[str, Any] = {"spec": SPEC, "admission": Admission(reason=reason, message=words or (reason and "why"))}
    fields |= {"nodes": [n.standing for n in nodes], "records": {n.standing.node: n.record for n in nodes}}
    return Rollout(**(fields | more))


def status(
    of: Rollout, *, before: PolicyStatus | None = None, generation: int = 1, now: Any = T0, revision: str = "r"
) -> PolicyStatus:
    before = before or PolicyStatus()
    found, _ = summarise(of, before=before, generation=generation, now=now, revision=revision, arriving=ARRIVING)
    return found


class Row(NamedTuple):
    """One row of the status table: the situation, and what Accepted, Ready, Reconciling and Stalled say of it."""

    situation: str
    of: Rollout
    ready: bool
    reason: str
    accepted: bool | None = True
    reconciling: bool = False
    stalled: bool = False


TABLE: Final = (
    Row("rolling", rollout(DONE, MOVING, reason="RollingOut"), False, "RollingOut", reconciling=True),
    Row("only just begun", rollout(WAITING, granted=frozenset({"c"})), False, "RollingOut", reconciling=True),
    Row(
        "waiting for holders",
        rollout(WAITING, reason="WaitingForHolders"),
        False,
        "WaitingForHolders",
        reconciling=True,
    ),
    Row("draining under holders", rollout(HELD, reason="RollingOut"), False, "WaitingForHolders", reconciling=True),
    Row("an eviction refused", rollout(KEPT, reason="RollingOut"), False, "EvictionBlocked", reconciling=True),
    Row(
        "one refused, others moving", rollout(KEPT, MOVING, reason="RollingOut"), False, "RollingOut", reconciling=True
    ),
    Row("one refused, and paused", rollout(KEPT, reason="Paused"), False, "Paused"),
    Row("not drained in time", rollout(DONE, UNDRAINED), False, "RolloutHalted", stalled=True),
    Row("held, others moving", rollout(HELD, MOVING, reason="RollingOut"), False, "RollingOut", reconciling=True),
    Row("budget used up", rollout(WAITING, reason="BudgetExhausted"), False, "BudgetExhausted", reconciling=True),
    Row("ledger full", rollout(WAITING, reason="LedgerFull"), False, "LedgerFull", reconciling=True),
    Row("all verified", rollout(DONE), True, "RolloutComplete"),
    Row("all verified, and one no longer", rollout(DONE, astray=("a",)), False, "RollingOut", reconciling=True),
    Row(
        "verified, still in the ledger", rollout(DONE, granted=frozenset({"a"})), False, "RollingOut", reconciling=True
    ),
    Row("up to the limit", rollout(DONE, WAITING, reason="LimitReached"), True, "LimitReached"),
    Row("limit, not at rest", rollout(MOVING, WAITING, reason="LimitReached"), False, "RollingOut", reconciling=True),
    Row("observing", rollout(WAITING, spec=OBSERVE, would_change=1), True, "Observing"),
    Row("observing, what was begun", rollout(MOVING, spec=OBSERVE), False, "RollingOut", reconciling=True),
    Row("no node matches", rollout(), True, "NoMatchingNodes"),
    Row(
        "no node matches any more, what was begun",
        rollout(records={"b": MOVING.record}),
        False,
        "RollingOut",
        reconciling=True,
    ),
    Row(
        "all verified, and one that is wanted no more moves",
        rollout(DONE, records={"a": DONE.record, "b": MOVING.record}),
        False,
        "RollingOut",
        reconciling=True,
    ),
    Row("paused, not complete", rollout(DONE, WAITING, reason="Paused"), False, "Paused"),
    Row("frozen, not complete", rollout(DONE, WAITING, reason="Frozen"), False, "Frozen"),
    Row("paused, still moving", rollout(MOVING, reason="Paused"), False, "Paused"),
    Row("paused and complete", rollout(DONE, reason="Paused"), True, "RolloutComplete"),
    Row(
        "a failure, others moving",
        rollout(ROLLED_BACK, MOVING, reason="RolloutHalted"),
        False,
        "RollingOut",
        reconciling=True,
    ),
    Row("conflict", rollout(DONE, conflicts=["x"]), False, "Conflict", reconciling=True),
    Row("all in conflict", rollout(conflicts=["x"]), False, "Conflict", reconciling=True),
    Row("drift, being repaired", rollout(DONE, DRIFTED, reason="RollingOut"), False, "Drift", reconciling=True),
    Row("halted", rollout(FAILED, WAITING, reason="RolloutHalted"), False, "RolloutHalted", stalled=True),
    Row("rolled back", rollout(ROLLED_BACK, WAITING, reason="RolloutHalted"), False, "RolledBack", stalled=True),
    Row("failed and paused", rollout(FAILED, reason="Paused"), False, "RolloutHalted", stalled=True),
    Row(
        "a record that cannot be read", rollout(DONE, UNREAD, granted=frozenset({"x"})), False, UNREADABLE, stalled=True
    ),
    Row("one of a node at rest", rollout(DONE, UNREAD_AT_REST), False, UNREADABLE, stalled=True),
    Row("one, others moving", rollout(UNREAD, MOVING), False, "RollingOut", reconciling=True),
    Row(
        "one, another begins", rollout(UNREAD, WAITING, granted=frozenset("xc")), False, "RollingOut", reconciling=True
    ),
    Row("one, others wait", rollout(UNREAD, WAITING, reason="OutsideWindow"), False, "OutsideWindow", reconciling=True),
    Row("one, that uses up all", rollout(UNREAD, WAITING, reason="RollingOut"), False, UNREADABLE, stalled=True),
    Row("nobody but skipped is left", rollout(DONE, SKIPPED), False, "NoWayBack", stalled=True),
    Row(
        "broken installation",
        rollout(WAITING, reason="Stopped", words="BaseMissing: x"),
        False,
        "BaseMissing",
        stalled=True,
    ),
    Row("refused", rollout(DONE, problems=[REFUSED]), False, "TooManyDevices", accepted=False, stalled=True),
    Row("its driver is missing", rollout(problems=[MISSING]), False, MISSING.reason, accepted=False, reconciling=True),
    Row(
        "missing, and wrong", rollout(problems=[MISSING, REFUSED]), False, MISSING.reason, accepted=False, stalled=True
    ),
    Row(
        "refused and unreadable",
        rollout(spec=None, problems=[REFUSED]),
        False,
        "TooManyDevices",
        accepted=False,
        stalled=True,
    ),
    Row(
        "refused in Observe",
        rollout(spec=OBSERVE, problems=[REFUSED]),
        False,
        "TooManyDevices",
        accepted=False,
        stalled=True,
    ),
    Row("deleting", rollout(MOVING, deleting=True), False, "Terminating", accepted=None, reconciling=True),
    Row(
        "deleting, and a node is tried once more",
        rollout(FAILED, deleting=True),
        False,
        "Terminating",
        accepted=None,
        reconciling=True,
    ),
    Row(
        "deleting, and a node is left to people, while another one moves",
        rollout(STRANDED, MOVING, deleting=True),
        False,
        "Terminating",
        accepted=None,
        reconciling=True,
    ),
    Row(
        "deleting, and a node is left to people",
        rollout(DONE, STRANDED, deleting=True),
        False,
        "Terminating",
        accepted=None,
        stalled=True,
    ),
    Row(
        "deleting, and a node failed on its way to what it had before",
        rollout(REVERTED, deleting=True, spec=REVERT),
        False,
        "Terminating",
        accepted=None,
        stalled=True,
    ),
    Row(
        "deleting what was refused",
        rollout(problems=[REFUSED], deleting=True),
        False,
        "Terminating",
        accepted=None,
        reconciling=True,
    ),
)
