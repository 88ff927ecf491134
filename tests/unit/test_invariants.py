"""The laws by which histories are judged: a good roll-out breaks none, and each planted mistake is caught by the law that is meant."""

from __future__ import annotations

import copy
import itertools
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES
from tests.e2e.history import Change, Instant
from tests.e2e.invariants import LAWS, Scene, judge

from gpupartition.kube import DEVICE_TAINT_RULES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from gpupartition.names import FULL_NODE_NAME, LAYOUT, STEP, taint_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpupartition.kube import Object

SCENE: Final = Scene(policy="p", driver="d", driver_name="gpu.example.com")
GRANT: Final = "t"
Write = tuple[Kind, str, "Object | None"]  # None: deleted


# ── objects ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def policy(generation: int = 1, observed: int = 0, ready: str = "False", parts: int = 2) -> Write:
    layout = {"type": "Equal", "equal": {"parts": parts}} if parts else {"type": "Whole"}
    status = {
        "observedGeneration": observed,
        "conditions": [{"type": "Ready", "status": ready, "reason": "RolloutComplete"}],
    }
    spec = {"layouts": [layout], "rollout": {"maxUnavailable": 1}}
    return POLICIES, "p", {"metadata": {"uid": "p1", "generation": generation}, "spec": spec, "status": status}


def ledger(**tokens: str) -> Write:
    grants = [{"node": node, "token": token, "policy": "p"} for node, token in tokens.items()]
    return DRIVERS, "d", {"metadata": {}, "status": {"inFlight": grants}}


def node(layout: str | None = None, step: str = "", *, name: str = "a", uid: str = "", fault: str = "") -> Write:
    labels = {"pool": "d"} | ({LAYOUT: layout} if layout else {})
    notes = {STEP: step} if step else {}
    notes |= {"testbed.gpupartition.dev/fault": fault} if fault else {}
    return NODES, name, {"metadata": {"uid": uid or f"uid-{name}", "labels": labels, "annotations": notes}}


def record(phase: str, *, name: str = "a", uid: str = "", token: str = GRANT, **status: Any) -> Write:
    body = {"phase": phase, "token": token, "change": "Repartition", **status}
    return NODE_STATES, name, {"metadata": {}, "spec": {"nodeUID": uid or f"uid-{name}"}, "status": body}


def rule(effect: str, *, name: str = "a", **selector: str) -> Write:
    body = {
        "metadata": {"annotations": {FULL_NODE_NAME: name}},
        "spec": {
            "taint": {"effect": effect},
            "deviceSelector": {"driver": "gpu.example.com", "pool": name} | selector,
        },
    }
    return DEVICE_TAINT_RULES, taint_rule(name, f"uid-{name}"), body


def no_rule(*, name: str = "a") -> Write:
    return DEVICE_TAINT_RULES, taint_rule(name, f"uid-{name}"), None


def published(parts: int, generation: int, *, name: str = "a", lacking: int = 0) -> Write:
    """One slice with the devices of 8 GPUs; the counters stand in the same slice."""
    found = []
    for gpu in range(8):
        index = {"index": {"int": gpu}}
        found += [
            {"name": f"gpu-{gpu}-part-{part}", "attributes": index, "consumesCounters": draw(gpu, parts)}
            for part in range(parts)
        ]
        full = {"consumesCounters": draw(gpu, 1)} if parts else {}
        found.append({"name": f"gpu-{gpu}-full" if parts else f"gpu-{gpu}", "attributes": index, **full})
    counters = [{"name": f"gpu-{gpu}", "counters": {"memory": {"value": "80Gi"}}} for gpu in range(8)]
    pool = {"name": name, "generation": generation, "resourceSliceCount": 1}
    spec = {
        "driver": "gpu.example.com",
        "pool": pool,
        "devices": found[lacking:],
        "sharedCounters": counters if parts else [],
    }
    return RESOURCE_SLICES, f"slice-{name}", {"metadata": {}, "spec": spec}


def draw(gpu: int, parts: int) -> list[Object]:
    return [{"counterSet": f"gpu-{gpu}", "counters": {"memory": {"value": f"{80 // parts}Gi"}}}]


def claim(number: int, device: str | None, *, name: str = "a", **result: Any) -> Write:
    results = [{"driver": "gpu.example.com", "pool": name, "device": device, **result}] if device else []
    status = {"allocation": {"devices": {"results": results}}} if device else {}
    return RESOURCE_CLAIMS, f"c{number}", {"metadata": {"namespace": "u"}, "status": status}


# ── histories ─────────────────────────────────────────────────────────────────────────────────────────────────────────

BEFORE: Final[Sequence[Write]] = (
    policy(),
    ledger(),
    *(each for name in "ab" for each in (node(name=name), published(0, 1, name=name))),
    record("Pending", token=""),
    record("UpToDate", name="b", token=""),
    node("half", name="b"),
    published(2, 1, name="b"),
)
FORMER: Final = json.dumps({"devices": [{"name": f"gpu-{gpu}"} for gpu in range(8)]})
BACK: Final[dict[str, Any]] = {
    "previous": {"assignment": None, "pool": FORMER},
    "target": {"assignment": "half"},
}
ROLL_OUT: Final[dict[str, Write]] = {
    "grant": ledger(a="t"),
    "admitted": record("Admitted", **BACK),
    "quiescing": record("Quiescing", **BACK),
    "inert": rule("None"),
    "closed": rule("NoSchedule"),
    "draining": record("Draining", **BACK),
    "applying": record("Applying", step="s", **BACK),
    "assigned": node("half", "s"),
    "published": published(2, 2),
    "verifying": record("Verifying", step="s", **BACK),
    "releasing": record("Releasing", step="s", outcome="UpToDate", **BACK),
    "opened": no_rule(),
    "up to date": record("UpToDate", step="s"),
    "given back": ledger(),
    "token gone": record("UpToDate", token="", step="s"),
    "ready": policy(observed=1, ready="True"),
}
ROLL_BACK: Final[dict[str, Write]] = {
    **dict(itertools.islice(ROLL_OUT.items(), 9)),
    "failed": record("RollingBack", step="s2", **BACK),
    "back": node(None, "s2"),
    "published again": published(0, 3),
    "releasing": record("Releasing", step="s2", outcome="RolledBack", **BACK),
    "opened": no_rule(),
    "rolled back": record("RolledBack", step="s2"),
    "given back": ledger(),
}


def told(
    story: dict[str, Write],
    *,
    without: str = "",
    at: str = "",
    instead: Sequence[Write] = (),
    before: str = "",
    also: Sequence[Write] = (),
    then: Sequence[Write] = (),
) -> list[Write]:
    """A story with one thing changed: left out, replaced, inserted, or added at its end."""
    assert {without, at, before} <= {"", *story}
    writes: list[Write] = []
    for name, write in story.items():
        writes += also if name == before else ()
        if name != without:
            writes += instead if name == at else (write,)
    return [*writes, *then]


def instants(writes: Sequence[Write]) -> Iterator[Instant]:
    now = Instant(None, {(kind, "", name): named(body, name) for kind, name, body in BEFORE if body})
    yield now
    for version, (kind, name, body) in enumerate(writes, 1):
        former = now._objects.get((kind, "", name))
        if body is None:
            assert former is not None
            del now._objects[kind, "", name]
            now.change = Change(version, kind, "DELETED", former)
        else:
            what = "MODIFIED" if former else "ADDED"
            now._objects[kind, "", name] = named(body, name)
            now.change = Change(version, kind, what, named(body, name))
        yield now


def named(body: Object, name: str) -> Object:
    return {**copy.deepcopy(body), "metadata": {"name": name, **body["metadata"]}}


def broken(writes: Sequence[Write]) -> dict[str, str]:
    return {violation.law: str(violation) for violation in judge(instants(writes), SCENE)}


@pytest.mark.parametrize("story", [ROLL_OUT, ROLL_BACK], ids=["rolled out", "rolled back"])
def test_a_good_story_breaks_no_law(story: dict[str, Write]) -> None:
    assert broken(list(story.values())) == {}


USED: Final = (claim(1, "gpu-0"), claim(1, None))
PLANTED: Final[list[tuple[str, str, list[Write]]]] = [
    # law                                          what went wrong                                the history
    (
        "not more nodes are unavailable than allowed",
        "a second node is admitted beyond the limit",
        told(ROLL_OUT, before="quiescing", also=[ledger(a="t", b="t2")]),
    ),
    (
        "not more nodes are unavailable than allowed",
        "a rule stays in force while the next node is taken",
        told(ROLL_OUT, without="opened", then=[ledger(b="t2")]),
    ),
    (
        "no layout changes under a holder",
        "a claim was allocated before the assignment",
        told(ROLL_OUT, before="assigned", also=[claim(1, "gpu-0")]),
    ),
    (
        "no layout changes under a holder",
        "a node is rolled back under somebody who got one of its new devices",
        told(ROLL_BACK, before="back", also=[claim(1, "gpu-0-part-0")]),
    ),
    (
        "held devices stay what they are",
        "a held device is published with another cost",
        [
            claim(1, "gpu-0-part-0", name="b"),
            published(4, 2, name="b"),
        ],
    ),
    (
        "held devices stay what they are",
        "a held device is no longer published",
        [claim(1, "gpu-0-part-0", name="b"), published(0, 2, name="b")],
    ),
    (
        "no GPU is given out twice",
        "a half and the whole are allocated",
        [claim(1, "gpu-0-part-0", name="b"), claim(2, "gpu-0-full", name="b")],
    ),
    (
        "no GPU is given out twice",
        "a half that is gone is still held when the whole is given out",
        [claim(1, "gpu-0-part-0", name="b"), published(0, 2, name="b"), claim(2, "gpu-0", name="b")],
    ),
    (
        "nothing is done without a grant",
        "a node is closed without a grant",
        told(ROLL_OUT, without="grant"),
    ),
    (
        "nothing is done without a grant",
        "the grant is given back while the node is closed",
        told(ROLL_OUT, before="opened", also=[ledger()]),
    ),
    (
        "nothing is done without a grant",
        "a node is assigned under another token than the ledger's",
        told(ROLL_OUT, before="assigned", also=[ledger(a="t2")]),
    ),
    (
        "nothing is done without a grant",
        "an assignment comes when its node is at rest again",
        told(ROLL_OUT, without="assigned", then=[ledger(a="t"), record("UpToDate"), node("half", "s")]),
    ),
    (
        "nothing is done without a grant",
        "an assignment carries a step of an earlier attempt",
        told(ROLL_OUT, at="assigned", instead=[node("half", "old")]),
    ),
    (
        "nothing is done without a grant",
        "a node has two grants",
        [(DRIVERS, "d", {"metadata": {}, "status": {"inFlight": [{"node": "a", "token": t} for t in "xy"]}})],
    ),
    (
        "the way back is known, and taken",
        "nothing is on record when the node is assigned",
        told(ROLL_OUT, at="applying", instead=[record("Applying", step="s")]),
    ),
    (
        "the way back is known, and taken",
        "what is on record is not what it had",
        told(ROLL_OUT, at="applying", instead=[record("Applying", step="s", previous={"assignment": "quarter"})]),
    ),
    (
        "the way back is known, and taken",
        "a node is released as rolled back without having gone back",
        told(ROLL_BACK, without="back"),
    ),
    (
        "the way back is known, and taken",
        "a node is released as rolled back before it publishes what it did",
        told(ROLL_BACK, without="published again"),
    ),
    ("Ready is true", "a node was never up to date", told(ROLL_OUT, without="up to date", at="token gone", instead=[])),
    ("Ready is true", "a node never published it", told(ROLL_OUT, without="published")),
    ("Ready is true", "a device is missing", told(ROLL_OUT, at="published", instead=[published(2, 2, lacking=1)])),
    ("Ready is true", "a grant is still out", told(ROLL_OUT, without="given back")),
    (
        "Ready is true",
        "what is said of the former generation is said of this one",
        told(ROLL_OUT, then=[policy(2, 1, "True", 4), policy(2, 2, "True", 4)]),
    ),
    ("Ready is true", "a generation is spoken of that does not exist", [policy(1, 2)]),
    (
        "Ready is true",
        "a node that was replaced was not looked at",
        told(ROLL_OUT, before="given back", also=[node("half", uid="new")]),
    ),
    ("a node is closed while at work", "it was never closed", told(ROLL_OUT, without="closed")),
    (
        "a node is closed while at work",
        "it is opened before it is verified",
        told(ROLL_OUT, before="verifying", also=[rule("None")]),
    ),
    ("a node is closed while at work", "it stays closed", told(ROLL_OUT, without="opened")),
    (
        "a node is closed while at work",
        "a late write closes it again",
        told(ROLL_OUT, then=[rule("NoSchedule")]),
    ),
    (
        "a node is closed while at work",
        "a rule names no pool, so it means all of them",
        told(ROLL_OUT, at="inert", instead=[rule("None", pool="")]),
    ),
]


@pytest.mark.parametrize(("law", "writes"), [(law, w) for law, _, w in PLANTED], ids=[what for _, what, _ in PLANTED])
def test_a_planted_violation_is_caught(law: str, writes: list[Write]) -> None:
    assert law in broken(writes)


def test_every_law_is_broken_by_some_story() -> None:
    assert {law for law, _, _ in PLANTED} == set(LAWS)


def test_a_driver_that_misbehaves_on_purpose_is_not_held_against_the_operator() -> None:
    faulty = node("half", name="b", fault="wrong-layout=parts")
    mended = [node("half", name="b"), published(2, 3, name="b"), claim(3, "gpu-0-full", name="b")]
    unruly = [faulty, published(3, 2, name="b"), claim(2, "gpu-0-part-2", name="b"), *mended]
    assert broken([claim(1, "gpu-0-part-0", name="b"), *unruly]) == {}


def test_a_node_that_comes_back_under_its_name_owes_nothing_to_the_claims_of_the_former_one() -> None:
    gone: Write = (NODES, "b", None)
    fresh = [gone, node(name="b", uid="new"), published(0, 2, name="b")]
    assert broken([claim(1, "gpu-0-part-0", name="b"), *fresh, claim(2, "gpu-0", name="b")]) == {}


def test_restarting_a_driver_with_the_same_devices_disturbs_no_holder() -> None:
    again = record("Applying", step="s", change="Restart", **BACK)
    held = told(ROLL_OUT, at="applying", instead=[again, claim(1, "gpu-0")], without="published")
    assert "no layout changes under a holder" not in broken(held)
