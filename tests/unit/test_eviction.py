"""Who may be evicted, who is only waited for, and what is said of each."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from tests.unit.occupants import EVICT, OWNED, pod
from tests.unit.worlds import LIMITS, QUARTERS, WHOLE, holder, quiesce, record, seen, world
from tests.unit.writing import subject, written

from gpupartition.api.v1alpha1 import Drain, DrainMode, OnTimeout, Phase, PodSelector
from gpupartition.controller.refusals import FIRST, LONGEST, Refusals
from gpupartition.domain.changes import blockers_of
from gpupartition.domain.effects import DeleteHolder, Effect, EvictPod
from gpupartition.domain.eviction import Occupant, Refusal, budgets_of, monitoring, next_to_go, rests, spared
from gpupartition.domain.world import AT_REST, World

SECOND: Final = timedelta(seconds=1)


CHOSEN: Final = PodSelector(match_labels={"kind": "training"})
SCRATCH: Final = [{"name": "data", "configMap": {}}, {"name": "scratch", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("occupant", "drain", "reason"),
    [
        (pod(), EVICT, ""),
        (pod(deletionTimestamp="now"), EVICT, "Terminating"),
        (pod(phase="Succeeded"), EVICT, "Completed"),
        (pod(protected=True), EVICT, "Protected"),
        (pod(namespace="kube-system"), EVICT, "Protected"),
        (pod(annotations={"kubernetes.io/config.mirror": "x"}), EVICT, "MirrorPod"),
        (pod(owner={**OWNED, "kind": "DaemonSet"}), EVICT, "DaemonSetPod"),
        (pod(annotations={"gpupartition.dev/do-not-disrupt": "true"}), EVICT, "DoNotDisrupt"),
        (pod(annotations={"gpupartition.dev/do-not-disrupt": "false"}), EVICT, ""),
        (pod(labels={"kind": "training"}), EVICT, ""),
        (
            pod(labels={"kind": "training"}),
            EVICT.model_copy(update={"wait_for_completion": CHOSEN}),
            "WaitForCompletion",
        ),
        (pod(labels={"kind": "web"}), EVICT.model_copy(update={"wait_for_completion": CHOSEN}), ""),
        (pod(owner=None), EVICT, "NoController"),
        (pod(owner={**OWNED, "controller": False}), EVICT, "NoController"),
        (pod(owner=None), EVICT.model_copy(update={"force": True}), ""),
        (pod(volumes=SCRATCH), EVICT, "EmptyDir"),
        (pod(volumes=SCRATCH), EVICT.model_copy(update={"delete_empty_dir": True}), ""),
    ],
    ids=str,
)
def test_a_pod_is_spared_because(occupant: Occupant, drain: Drain, reason: str) -> None:
    assert spared(occupant, drain) == reason


def test_no_option_takes_a_pod_that_must_never_go() -> None:
    everything = Drain(mode=DrainMode.EVICT, force=True, delete_empty_dir=True, on_timeout=OnTimeout.FORCE_DELETE)
    never = [pod(protected=True), pod(namespace="kube-system"), pod(owner={**OWNED, "kind": "DaemonSet"})]
    never += [
        pod(annotations={"kubernetes.io/config.mirror": "x"}),
        pod(annotations={"gpupartition.dev/do-not-disrupt": "true"}),
    ]
    assert next_to_go(never, everything, forced=True) is None


# ----------------------------------------------------------------------------------------------------------------- what is done


def draining(*pods: Occupant, drain: Drain = EVICT, **more: Any) -> World:
    turn = world(rule=quiesce(), holders=[holder()], drain=drain, **more)
    return replace(turn, occupants=pods)


def done(turn: World, phase: Phase = Phase.DRAINING) -> list[Effect]:
    return list(written(record(phase), turn, subject()))


def test_pods_are_evicted_one_at_a_time_by_uid() -> None:
    assert done(draining(pod("a"), pod("b"))) == [EvictPod(namespace="team", name="a", uid="uid-a")]
    assert done(draining(pod("a", deletionTimestamp="now"), pod("b"))) == [
        EvictPod(namespace="team", name="b", uid="uid-b")
    ]


def test_a_policy_may_say_how_long_a_pod_has_to_end() -> None:
    (effect,) = done(draining(pod("a"), drain=EVICT.model_copy(update={"grace_period_seconds": 7})))
    assert effect == EvictPod(namespace="team", name="a", uid="uid-a", grace_seconds=7)


@pytest.mark.parametrize("mode", [DrainMode.WHEN_IDLE, DrainMode.WAIT])
def test_other_drain_modes_evict_nobody(mode: DrainMode) -> None:
    assert done(draining(pod(), drain=Drain(mode=mode))) == []


@pytest.mark.parametrize(
    "turn",
    [
        replace(draining(pod()), no_eviction="the policy is paused"),
        replace(draining(pod()), quiesce=None),
        replace(draining(pod()), wanted=None),
        replace(draining(pod()), holders=()),
    ],
    ids=["stopped", "not quiesced", "not wanted", "not in the way"],
)
def test_nobody_is_evicted_when_it_is(turn: World) -> None:
    assert done(turn) == []


@pytest.mark.parametrize("phase", sorted(set(Phase) - AT_REST - {Phase.DRAINING}))
def test_only_draining_evicts(phase: Phase) -> None:
    turn = draining(pod(), observed=seen(WHOLE))
    assert not [effect for effect in done(turn, phase) if isinstance(effect, EvictPod | DeleteHolder)]


# ---------------------------------------------------------------------------------------------------------------------- refused

BLOCKED: Final = Refusal(reason="EvictionBlocked", budgets=("team/web",), resting=5 * SECOND)


def test_a_pod_that_was_refused_rests_while_the_others_go() -> None:
    turn = draining(pod("a", refusal=BLOCKED), pod("b"))
    assert done(turn) == [EvictPod(namespace="team", name="b", uid="uid-b")]
    alone = draining(pod("a", refusal=BLOCKED))
    assert done(alone) == []
    assert rests(alone.occupants, EVICT) == 5 * SECOND
    assert done(draining(pod("a", refusal=replace(BLOCKED, resting=timedelta(0))))) != []


FORCE: Final = EVICT.model_copy(update={"on_timeout": OnTimeout.FORCE_DELETE})
LATE: Final[dict[str, Any]] = {"after": LIMITS.draining_evict}
EVICTED: Final = [EvictPod(namespace="team", name="a", uid="uid-a")]
DELETED: Final = [DeleteHolder(namespace="team", name="a", uid="uid-a")]


def test_a_pod_that_was_refused_until_the_time_was_over_is_deleted_only_where_the_policy_says_so() -> None:
    occupant = pod("a", refusal=BLOCKED)
    assert done(draining(occupant, drain=FORCE)) == []
    assert done(draining(occupant, drain=FORCE, **LATE)) == DELETED
    assert done(draining(occupant, drain=EVICT, **LATE)) == []
    spared_still = pod("b", annotations={"gpupartition.dev/do-not-disrupt": "true"})
    assert done(draining(spared_still, drain=FORCE, **LATE)) == []


def test_however_late_it_is_nobody_is_deleted_who_was_not_asked_to_go_and_refused() -> None:
    asked_first = done(draining(pod("a"), drain=FORCE, **LATE))
    assert asked_first == EVICTED, "a pause, or an operator that was down, has taken all the time"
    long_ago = pod("a", refusal=replace(BLOCKED, resting=timedelta(0)))
    assert done(draining(long_ago, drain=FORCE, **LATE)) == EVICTED, "its budget may allow it by now"


@pytest.mark.parametrize("reason", ["EvictionForbidden", "NamespaceTerminating"])
def test_nobody_is_deleted_because_something_else_than_a_budget_refused(reason: str) -> None:
    resting = replace(BLOCKED, reason=reason)
    assert done(draining(pod("a", refusal=resting), drain=FORCE, **LATE)) == []
    rested = replace(resting, resting=timedelta(0))
    assert done(draining(pod("a", refusal=rested), drain=FORCE, **LATE)) == EVICTED


def test_refusals_rest_ever_longer_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    refusals = Refusals()
    assert refusals.of("uid") is None
    rested = []
    for _ in range(6):
        refusals.add("uid", "EvictionBlocked", ("team/web",))
        found = refusals.of("uid")
        assert found is not None
        rested.append(found.resting.total_seconds())
    assert rested == [FIRST, 10, 20, 40, LONGEST, LONGEST]
    monkeypatch.setattr("time.monotonic", lambda: 161.0)
    assert refusals.of("uid") == Refusal(reason="EvictionBlocked", budgets=("team/web",))


def budget(name: str, selector: Any, allowed: int = 0) -> dict[str, Any]:
    meta = {"namespace": "team", "name": name}
    return {"metadata": meta, "spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed}}


def test_the_budgets_of_a_pod_are_those_that_select_it_and_allow_nothing() -> None:
    body = pod(labels={"app": "web"}).body
    there = [
        budget("mine", {"matchLabels": {"app": "web"}}),
        budget("open", {"matchLabels": {"app": "web"}}, allowed=1),
        budget("all", {}),
        budget("none", None),
        budget("other", {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}),
    ]
    assert budgets_of(body, there) == ("team/all", "team/mine")
    assert budgets_of(body, there[1:2]) == ("team/open",)


# --------------------------------------------------------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("occupants", "quiet", "said"),
    [
        ((), "", ("team/claim-pod", "Allocated", "")),
        ((pod(),), "", ("team/claim-pod", "Evicting", "")),
        ((pod(),), "the policy is paused", ("team/claim-pod", "Allocated", "")),
        ((pod(deletionTimestamp="now", refusal=BLOCKED),), "", ("team/claim-pod", "Terminating", "")),
        ((pod(owner=None),), "", ("team/claim-pod", "NoController", "")),
        ((pod(refusal=BLOCKED),), "", ("team/claim-pod", "EvictionBlocked", "team/web")),
    ],
    ids=["not looked at", "next", "stopped", "ending", "spared", "refused"],
)
def test_a_blocker_says_why_it_is_there(occupants: Any, quiet: str, said: tuple[str, ...]) -> None:
    (blocker,) = blockers_of(record(Phase.DRAINING), replace(draining(*occupants), no_eviction=quiet))
    assert (blocker.pod, blocker.reason, blocker.pdb) == said


def test_of_two_pods_of_a_claim_the_one_that_stays_is_named() -> None:
    shared = replace(holder(), pods=("team/a", "team/b"))
    turn = replace(draining(pod("a"), pod("b", owner=None)), holders=[shared])
    (blocker,) = blockers_of(record(Phase.DRAINING), turn)
    assert (blocker.pod, blocker.reason) == ("team/b", "NoController")


# ------------------------------------------------------------------------------------------------------- those that only look on

WATCHING: Final = replace(holder(), admin=True)
MONITOR: Final = pod(owner={**OWNED, "kind": "DaemonSet"})


def test_pods_of_daemon_sets_that_only_look_on_are_no_holders() -> None:
    assert monitoring([WATCHING], [MONITOR], EVICT) == (WATCHING,)
    assert monitoring([holder()], [MONITOR], EVICT) == ()
    assert monitoring([WATCHING], [pod()], EVICT) == ()
    assert monitoring([replace(WATCHING, pods=())], [MONITOR], EVICT) == ()
    assert monitoring([WATCHING], [replace(MONITOR, refusal=BLOCKED)], EVICT) == ()
    assert monitoring([WATCHING], [replace(MONITOR, protected=True)], EVICT) == ()


def test_whoever_only_looks_on_is_evicted_last_right_before_the_assignment() -> None:
    turn = replace(world(rule=quiesce(), drain=EVICT, wanted=QUARTERS), monitors=(MONITOR,))
    assert done(turn) == []
    (last,) = done(turn, Phase.APPLYING)
    assert isinstance(last, EvictPod)
    leaving = replace(MONITOR, body={"metadata": {**MONITOR.body["metadata"], "deletionTimestamp": "now"}})
    assert done(replace(turn, monitors=(leaving,)), Phase.APPLYING) == [], "the assignment waits until it is gone"
    assert not [e for e in done(replace(turn, no_eviction="paused"), Phase.APPLYING) if isinstance(e, EvictPod)]
