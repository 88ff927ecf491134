"""What a worker sees of one node, and what the real code makes of it: `advance`, `rest` and `effects`, with a bug planted on request."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from tests.properties import bugs
from tests.unit.worlds import HALVES, LONG, NEVER, QUARTERS, T0, WHOLE, cut, world

from gpupartition.api.v1alpha1 import (
    Drain,
    DrainMode,
    DriverSpec,
    Grant,
    NodeStateStatus,
    OnTimeout,
    Purpose,
    Restart,
)
from gpupartition.backends.example import ExampleDriver
from gpupartition.domain.backend import Config, NodeFacts, Observation
from gpupartition.domain.destination import IN_VAIN, STRANDED, expected_pool, in_vain
from gpupartition.domain.disturbance import disturbance
from gpupartition.domain.effects import (
    ActivateTaintRule,
    CreateTaintRule,
    DeletePod,
    DeleteTaintRule,
    Effect,
    EvictPod,
    PatchNode,
)
from gpupartition.domain.eviction import Occupant
from gpupartition.domain.holders import Holder, holders
from gpupartition.domain.lifecycle import advance
from gpupartition.domain.pool import Pool
from gpupartition.domain.quiesce import Way, holds, quiesce
from gpupartition.domain.rest import rest
from gpupartition.domain.world import AT_REST, World
from gpupartition.domain.writes import Subject, effects
from gpupartition.names import CORDONED, LAYOUT, STEP

# The last one is the base with another config behind it: the same devices by the same value, once the driver has started anew.
WHOLE_UPDATED: Final = Config(fingerprint="whole-v2", assignment=None, pool=cut(1))
LAYOUTS: Final = (WHOLE, HALVES, QUARTERS, WHOLE_UPDATED)
BASE, UPDATED = 0, 3
BROKEN, GONE = -1, -2  # what else a node may publish
INERT, ACTIVE = 1, 2  # a rule; 0 is none
BOOT, FORMER_BOOT = "this boot", "the boot before"
AS_IT_IS: Final = -1
NO_PODS: Final = -1  # nobody looks at the pods of drivers
FRESH: Final = 99  # ids are renamed after each step, so one name for new ones will do
BACKEND: Final = ExampleDriver()
DRIVER: Final = DriverSpec.model_validate(
    {"type": "ExampleDriver", "exampleDriver": {"daemonSet": {"namespace": "gpus", "name": "base"}, "gpusPerNode": 1}}
)


class View(NamedTuple):
    """What one turn of one node depends on. Layouts are numbered; ids are numbers too, because they are renamed.

    `shape`: the record without its ids. `claim`: the layout of which a device is held. `grant_stands`: whether the ledger's entry was
    made for the Node that the record is about, `for_recovery` that it is to be verified
    again. `rebooted`: since it was verified. `abandoned`: what cannot be brought back may be let go. `overdue`: every limit is over.
    `asked`: somebody
    asked to try again. `cordon`: the token for which the node is cordoned, `theirs`: somebody else has; `way`: how attempts that begin now
    quiesce. `pod`: the driver's pod, `outdated`: it runs from a former config, `cuts`: it publishes what
    the hardware is only when it starts anew, after the driver has `answered`; `gone_pod` and `gone_step`: what the record says of the one
    that is to go. `kind`: of the claim. `halted`: nobody may be evicted.
    """

    shape: int
    token: int
    step: int
    there: bool
    label: int
    node_step: int
    rule: int
    seen: bool
    pool: int
    claim: int | None
    grant: int
    grant_stands: bool
    for_recovery: bool
    rebooted: bool
    wanted: int | None
    overdue: bool
    asked: bool
    abandoned: bool
    bug: str
    evicts: bool = False
    halts: bool = False
    cordon: int = 0
    theirs: bool = False
    way: Way = "DeviceTaint"
    pod: int = NO_PODS
    outdated: bool = False
    cuts: bool = False
    answered: bool = True
    gone_pod: int = 0
    gone_step: int = 0
    kind: str = "reserved"
    halted: bool = False


class Decision(NamedTuple):
    """What one turn wants to write: `kind` is record, patch, create, activate, delete, evict, restart or nothing at all ("").

    `boots`: the record is to name the boot that the node is in now.
    `cordon`: the token to cordon the node for, 0 to uncordon it, AS_IT_IS; `opens`: whoever has cordoned it. `pod`: the one that goes, or is
    to go by the record, for its `pod_step`. `spared`: the pod to be evicted is one that must stay.
    """

    kind: str = ""
    shape: int = 0
    token: int = 0
    step: int = 0
    label: int = BASE
    boots: bool = False
    cordon: int = AS_IT_IS
    opens: bool = False
    pod: int = 0
    pod_step: int = 0
    spared: bool = False


def _occupant(name: str, owner: str, *, protected: bool = False) -> Occupant:
    owners = [{"kind": owner, "controller": True}]
    meta = {"namespace": "team", "name": name, "uid": name, "ownerReferences": owners}
    return Occupant(body={"metadata": meta}, protected=protected)


POD: Final = _occupant("pod", "ReplicaSet")
PLUGIN: Final = _occupant("plugin", "DaemonSet", protected=True)

# Whatever has a device, as it stands in the API: each is a claim's status but for its allocation.
KINDS: Final[dict[str, dict[str, object]]] = {
    "reserved": {"reservedFor": [{"resource": "pods", "name": "pod", "uid": "pod"}]},
    "shared": {"reservedFor": [{"resource": "pods", "name": p, "uid": p} for p in ("pod", "another")]},
    "of a pod group": {"reservedFor": [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g"}]},
    "not reserved": {},
    "terminating": {},
    "with admin access": {"reservedFor": [{"resource": "pods", "name": "pod", "uid": "pod"}]},
}

SHAPES: Final[list[NodeStateStatus]] = []
_NUMBERS: Final[dict[str, int]] = {}


def published(layout: int) -> Pool:
    if layout == GONE:
        return Pool()
    return Pool(problem="1 of 2 slices are there") if layout == BROKEN else LAYOUTS[layout].pool


def observe(view: View) -> Observation:
    there = view.there
    return Observation(
        assignment=LAYOUTS[view.label].assignment if there else None,
        step=_name("s", view.node_step) if there else "",
        running=LAYOUTS[_behind(view)].fingerprint if there and view.pod and view.pool == view.label else "",
        ready=there and view.pod != 0,  # as bad as can be: the driver's pod is up at once, whatever it publishes
        pool=published(view.pool) if there else Pool(),
        acknowledged=view.answered,
        restarts=view.cuts,
        plugin={"metadata": {"namespace": "gpus", "name": "plugin", "uid": _name("p", view.pod)}}
        if view.pod > 0
        else None,
    )


def _behind(view: View) -> int:
    """What is behind the value on the node."""
    return UPDATED if view.label == BASE and view.pod != NO_PODS and not view.outdated else view.label


def _claim(view: View) -> dict[str, object]:
    assert view.claim is not None, "there is none"
    device = LAYOUTS[view.claim].pool.devices[0].name
    result = {"driver": "d", "pool": "n", "device": device} | ({"adminAccess": True} if "admin" in view.kind else {})
    ending = {"deletionTimestamp": "now"} if view.kind == "terminating" else {}
    status = {"allocation": {"devices": {"results": [result]}}, **KINDS[view.kind]}
    return {"metadata": {"namespace": "team", "name": "claim", **ending}, "status": status}


def held(view: View, state: NodeStateStatus, observed: Observation, wanted: Config | None) -> tuple[Holder, ...]:
    """As the controller reads holders: those that the change which is going on, or would begin, disturbs."""
    if view.claim is None or not view.there:
        return ()
    change = disturbance(state, observed, wanted, BACKEND.disturbs, live=False)
    found = holders([_claim(view)], node="n", driver="d", pool="n")
    if view.bug == "a claim that nobody has reserved is no holder":
        found = tuple(h for h in found if h.pods)
    return change.blocked_by(found) if change is not None else ()


def turn_of(view: View) -> tuple[NodeStateStatus, World]:
    state = SHAPES[view.shape].model_copy(update={"token": _name("t", view.token), "step": _name("s", view.step)})
    state = state.model_copy(update={"boot_id": FORMER_BOOT if view.rebooted else BOOT})
    if view.gone_pod:
        to_go = Restart(pod_uid=_name("p", view.gone_pod), step=_name("s", view.gone_step))
        state = state.model_copy(update={"restart": to_go})
    observed = observe(view)
    wanted = LAYOUTS[view.wanted] if view.wanted is not None and view.there else None
    in_the_way = held(view, state, observed, wanted)
    settled = view.seen or view.bug == "settling is not waited for"
    closed_by = holds(state, _node_object(view) if view.there else None, _rule_object(view.rule) if view.rule else None)
    in_flight = state.phase not in AT_REST
    matched = in_flight and observed.ready and observed.pool.equals(expected_pool(state))
    if state.phase in bugs.CACHED.get(view.bug, ()):
        in_the_way = ()
    turn = world(
        after=LONG if view.overdue else NEVER,
        wanted=wanted,
        there=view.there,
        observed=observed,
        rule=quiesce(closed_by, LONG if settled else NEVER),
        holders=in_the_way,
        idle=NEVER if in_the_way else LONG,
        matched=LONG if matched else NEVER,
        differs=LONG if view.overdue else NEVER,
        grant=_grant(view) if view.grant else None,
        grant_stands=view.grant_stands,
        way_back=LAYOUTS[_behind(view)],
        retry="again" if view.asked else "",
        plugin_seen=NEVER,
        drain=Drain(
            mode=DrainMode.EVICT if view.evicts else DrainMode.WAIT,
            on_timeout=OnTimeout.HALT if view.halts else OnTimeout.SKIP,
        ),
    )
    occupants: tuple[Occupant, ...] = (PLUGIN, POD) if view.evicts and in_the_way else ()
    if view.bug == "nobody is spared":
        occupants = tuple(_occupant(p.body["metadata"]["name"], "ReplicaSet") for p in occupants)
    turn = replace(
        turn,
        boot_id=BOOT,
        abandoned=view.abandoned,
        quiesce_by=view.way,
        no_eviction="the policy is paused" if view.halted else "",
        at_work="it is cordoned" if view.theirs and state.phase in AT_REST else "",
    )
    return state, replace(turn, fresh=_name("s", FRESH), occupants=occupants)


def _grant(view: View) -> Grant:
    purpose = Purpose.RECOVERY if view.for_recovery else Purpose.ROLL_OUT
    return Grant(node="n", uid="u", policy="p", token=_name("t", view.grant), since=T0, purpose=purpose)


@cache
def decide(view: View) -> Decision:
    """The real decision: a record to write, or the first of the effects."""
    state, turn = turn_of(view)
    reads = bugs.RECORDED.get(view.bug, bugs.as_it_is)
    before = reads(state, turn)
    step = rest(before, turn) if state.phase in AT_REST else advance(before, turn)
    after = step.state if step is not None else None
    if view.bug in bugs.PLANTED:
        after = bugs.PLANTED[view.bug](state, turn, after)
    if after is not None and _identity(after) != _identity(before):
        recorded = view.bug not in bugs.RECORDED or after.restart != before.restart
        return Decision(
            "record",
            shape_of(after),
            _number(after.token),
            _number(after.step),
            boots=after.boot_id == BOOT,
            pod=_number(after.restart.pod_uid) if after.restart and recorded else view.gone_pod,
            pod_step=_number(after.restart.step) if after.restart and recorded else view.gone_step,
        )
    facts = NodeFacts(node=_node_object(view)) if view.there else None
    subject = Subject(
        node_name="n",
        node_uid="u",
        driver=DRIVER,
        driver_name="d",
        backend=BACKEND,
        facts=facts,
        rule=_rule_object(view.rule) if view.rule else None,
    )
    for effect in effects(before, turn, subject):
        return _write(effect, view)
    return Decision()


def _identity(state: NodeStateStatus) -> tuple[object, ...]:
    return shape_of(state), state.token, state.step, state.restart


def _write(effect: Effect, view: View) -> Decision:
    match effect:
        case PatchNode(labels=labels, annotations=annotations):
            label = view.label
            if LAYOUT in labels:
                label = next(i for i, c in enumerate(LAYOUTS) if c.assignment == labels[LAYOUT])
            step = _number(annotations[STEP] or "") if STEP in annotations else view.node_step
            cordon = _number(annotations[CORDONED] or "") if CORDONED in annotations else AS_IT_IS
            opens = effect.unschedulable is False
            if view.bug == "whoever has cordoned it, it is uncordoned":
                opens = cordon == 0
            return Decision("patch", label=label, step=step, cordon=cordon, opens=opens)
        case CreateTaintRule():
            assert (effect.driver, effect.pool) == ("d", "n"), "it would be about devices of others"
            return Decision("create")
        case DeletePod():
            return Decision("restart", pod=_number(effect.uid))
        case ActivateTaintRule():
            return Decision("activate")
        case DeleteTaintRule():
            return Decision("delete")
        case EvictPod():
            assert view.claim is not None, "there is nobody to evict"
            return Decision("evict", label=view.claim, spared=effect.uid != POD.body["metadata"]["uid"])
    raise AssertionError(f"nobody expected {effect}")


def _name(prefix: str, number: int) -> str:
    return f"{prefix}{number}" if number else ""


def _number(name: str) -> int:
    return int(name[1:]) if name else 0


def shape_of(state: NodeStateStatus) -> int:
    """The record without ids, and without times, words and counters that only grow: two records that decide alike are one."""
    layouts = {
        name: layout.model_copy(update={"since": T0, "revision": ""})
        for name in ("target", "current", "previous", "original")
        if (layout := getattr(state, name)) is not None
    }
    blank: dict[str, object] = dict.fromkeys(("token", "step", "message", "boot_id", "retry"), "")
    blank["restart"] = None
    grown: dict[str, object] = {
        "generation": 0,
        "attempts": 0,
        "gpus": 0,
        "blockers": [],
        "drifted": None,
        "repairs": [],
        "contests": [],
    }
    # Of all words that a record says, decisions only ask for these.
    asked_for = {"Drift", "Abandoned"} | ({IN_VAIN, STRANDED} if in_vain(state) else set())
    grown["reason"] = state.reason if state.reason in asked_for else ""
    shape = state.model_copy(update=blank | layouts | {"since": T0} | grown)
    text = shape.model_dump_json()
    if text not in _NUMBERS:
        _NUMBERS[text] = len(SHAPES)
        SHAPES.append(shape)
    return _NUMBERS[text]


def _node_object(view: View) -> dict[str, object]:
    assignment = LAYOUTS[view.label].assignment
    labels = {LAYOUT: assignment} if assignment else {}
    annotations = {STEP: _name("s", view.node_step)} if view.node_step else {}
    if view.cordon:
        annotations[CORDONED] = _name("t", view.cordon)
    return {
        "metadata": {"name": "n", "resourceVersion": "1", "labels": labels, "annotations": annotations},
        "spec": {"unschedulable": True} if view.cordon or view.theirs else {},
    }


def _rule_object(rule: int) -> dict[str, object]:
    effect = "NoSchedule" if rule == ACTIVE else "None"
    return {
        "metadata": {"name": "r", "uid": "r", "resourceVersion": "1"},
        "spec": {"taint": {"effect": effect}},
        "status": {"conditions": [{"type": "EvictionInProgress"}]},
    }
