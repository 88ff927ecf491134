"""What must hold at every instant of a history, checked from outside: from what the API server stored, not from what the operator says.

A history is a row of `Instant`s (tests/e2e/history.py). Each law looks at every one, keeps what it needs to remember, and says in a
sentence what is wrong. Laws know the protocol only as far as it can be seen: records, the ledger, rules, nodes, claims and slices.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Protocol

from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES
from tests.e2e.history import AT_REST
from tests.e2e.rollout import condition, devices

from gpupartition.controller.records import unpacked
from gpupartition.domain.quantity import parse
from gpupartition.kube import DEVICE_TAINT_RULES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from gpupartition.names import CORDONED, FULL_NODE_NAME, LAYOUT, STEP, taint_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tests.e2e.history import Change, Instant

    from gpupartition.kube import Object

FAULT: Final = "testbed.gpupartition.dev/fault"
CLOSED: Final = frozenset({"Draining", "Applying", "Verifying", "RollingBack", "Failed"})
AT_WORK: Final = frozenset({"Applying", "RollingBack"})
OPENING: Final = frozenset({"Releasing", "Aborting"})  # of a node that may be cordoned: a step that assigns nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Whose history it is: one policy over the nodes with `pool: <driver>`, whose example driver publishes under `driver_name`."""

    policy: str
    driver: str
    driver_name: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that was broken, and by which change (None: it was so from the beginning)."""

    law: str
    what: str
    by: Change | None

    def __str__(self) -> str:
        """One line for a report."""
        return f"{self.law}: {self.what} ({line(self.by) if self.by else 'at the beginning'})"


class Law(Protocol):
    """One thing that must always hold."""

    def look(self, now: Sight) -> Iterable[str]:
        """Say what is wrong at this instant, for the first time."""
        ...


@dataclass
class Sight:
    """The world at one instant, as the laws look at it."""

    scene: Scene
    change: Change | None = None
    before: Object | None = None
    """The changed object as it was until now; None: it was not there."""
    nodes: dict[str, Object] = field(default_factory=dict)
    records: dict[str, Object] = field(default_factory=dict)
    rules: dict[str, Object] = field(default_factory=dict)
    claims: dict[str, Object] = field(default_factory=dict)
    slices: dict[str, Object] = field(default_factory=dict)
    drivers: dict[str, Object] = field(default_factory=dict)
    policies: dict[str, Object] = field(default_factory=dict)
    unruly: set[str] = field(default_factory=set)
    """UIDs of the nodes whose driver has ever published something else than it was told: what was sold there is its own fault."""
    unbidden: set[str] = field(default_factory=set)
    """UIDs of the claims that got a device of a closed node because they tolerate its taint: what happens to them is theirs."""

    def see(self, instant: Instant) -> None:
        """Go on to the next instant."""
        self.change, self.before = instant.change, None
        if instant.change is None:
            for kind, known in self._known().items():
                known.update({_key(body): body for body in instant.objects(kind)})
            self._watch_drivers()
            return
        known = self._known().get(instant.change.kind, {})
        key = _key(instant.change.body)
        self.before = known.pop(key, None)
        if instant.change.what != "DELETED":
            known[key] = instant.change.body
        self._watch_drivers()
        if instant.change.kind is RESOURCE_CLAIMS and instant.change.what != "DELETED":
            self._watch_tolerations(instant.change.body)

    def _watch_drivers(self) -> None:
        self.unruly |= {uid_of(body) for body in self.nodes.values() if "wrong-layout" in notes(body).get(FAULT, "")}

    def _watch_tolerations(self, claim: Object) -> None:
        requests = claim.get("spec", {}).get("devices", {}).get("requests", ())
        got = {result["pool"] for result in _results(claim)}
        just_now = not (self.before and _results(self.before))
        tolerates = any("tolerations" in each.get("exactly", {}) for each in requests)
        if just_now and tolerates and got & set(self.active_rules().values()):
            self.unbidden.add(uid_of(claim))

    def _known(self) -> dict[Any, dict[str, Object]]:
        return {
            NODES: self.nodes,
            NODE_STATES: self.records,
            DEVICE_TAINT_RULES: self.rules,
            RESOURCE_CLAIMS: self.claims,
            RESOURCE_SLICES: self.slices,
            DRIVERS: self.drivers,
            POLICIES: self.policies,
        }

    @property
    def policy(self) -> Object | None:
        """The policy, while it exists."""
        return self.policies.get(self.scene.policy)

    @property
    def ledger(self) -> list[Object]:
        """The driver's grants."""
        grants: list[Object] = self.drivers.get(self.scene.driver, {}).get("status", {}).get("inFlight", [])
        return grants

    @property
    def matching(self) -> dict[str, Object]:
        """The policy's nodes."""
        return {
            n: body for n, body in self.nodes.items() if body["metadata"]["labels"].get("pool") == self.scene.driver
        }

    def phase(self, node: str) -> str:
        """A node's phase; "" without a record."""
        return str(self.records.get(node, {}).get("status", {}).get("phase", ""))

    def active_rules(self) -> dict[str, str]:
        """The rules in force: name, and the node that each is about."""
        return {
            name: rule["metadata"].get("annotations", {}).get(FULL_NODE_NAME, "")
            for name, rule in self.rules.items()
            if name.startswith("gpp-") and rule["spec"]["taint"]["effect"] != "None"
        }

    def cordoned(self) -> set[str]:
        """The nodes that we have cordoned."""
        return {n for n, body in self.nodes.items() if CORDONED in notes(body) and body["spec"].get("unschedulable")}

    def changed(self, *kinds: Any) -> bool:
        """Whether one of these kinds has just changed (or this is the beginning)."""
        return self.change is None or self.change.kind in kinds

    def pool(self, node: str) -> list[Object] | None:
        """The devices that a node's driver publishes; None while the pool is not complete."""
        own = [
            s["spec"]
            for s in self.slices.values()
            if s["spec"]["driver"] == self.scene.driver_name and s["spec"]["pool"]["name"] == node
        ]
        newest = max((s["pool"]["generation"] for s in own), default=0)
        current = [s for s in own if s["pool"]["generation"] == newest]
        if not current or any(s["pool"]["resourceSliceCount"] != len(current) for s in current):
            return None
        return [device for s in current for device in s.get("devices", ())]

    def counters(self, node: str) -> dict[str, Object]:
        """The counter sets of a node's pool."""
        return {
            each["name"]: each["counters"]
            for s in self.slices.values()
            if s["spec"]["driver"] == self.scene.driver_name and s["spec"]["pool"]["name"] == node
            for each in s["spec"].get("sharedCounters", ())
        }

    def held(self) -> Iterator[tuple[str, str, str]]:
        """Every allocated device of the driver: claim, node and device."""
        for key, claim in self.claims.items():
            for result in () if uid_of(claim) in self.unbidden else _results(claim):
                if result["driver"] == self.scene.driver_name and not result.get("adminAccess"):
                    yield key, result["pool"], result["device"]


def judge(instants: Iterable[Instant], scene: Scene) -> list[Violation]:
    """Every violation, in order. Each law speaks once: what comes after a first violation follows from it."""
    laws = {name: make() for name, make in LAWS.items()}
    now, found = Sight(scene), []
    for instant in instants:
        now.see(instant)
        for name, law in list(laws.items()):
            complaints = list(law.look(now))
            if complaints:
                found.append(Violation(name, complaints[0], now.change))
                del laws[name]
    return found


# ── the laws ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class NotMoreThanAllowed:
    """No more nodes are unavailable through us than the policy and the driver have ever allowed in this history."""

    def __init__(self) -> None:
        self._allowed = 0

    def look(self, now: Sight) -> Iterable[str]:
        if not now.changed(POLICIES, DRIVERS, NODE_STATES, DEVICE_TAINT_RULES, NODES):
            return
        if now.policy is not None:
            self._allowed = max(self._allowed, int(now.policy["spec"]["rollout"]["maxUnavailable"]))
        down = {n for n in now.records if now.phase(n) not in AT_REST | {""}}
        down |= set(now.active_rules().values()) | now.cordoned() | {grant["node"] for grant in now.ledger}
        # New nodes have been nobody's yet, and those that are verified again were unavailable before.
        down -= {grant["node"] for grant in now.ledger if grant.get("purpose", "RollOut") != "RollOut"}
        if len(down) > self._allowed:
            yield f"{', '.join(sorted(down))} are unavailable, {self._allowed} may be"


class NoChangeUnderAHolder:
    """Another layout is assigned to a node only while none of its published devices is held."""

    def look(self, now: Sight) -> Iterable[str]:
        moved = assignment(now)
        if moved is None or now.records.get(moved.node, {}).get("status", {}).get("change") == "Restart":
            return
        published = {device["name"] for device in now.pool(moved.node) or ()}
        undoing = now.phase(moved.node) == "RollingBack"
        for claim, node, device in now.held():
            if node == moved.node and (device in published or not undoing):
                yield f"{moved} while claim {claim} has {device}"


class HeldDevicesStay:
    """A held device stays what it is, as long as its driver publishes a whole pool, and has always done what it was told."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], tuple[str, Object]] = {}

    def look(self, now: Sight) -> Iterable[str]:
        if not now.changed(RESOURCE_CLAIMS, RESOURCE_SLICES, NODES):
            return
        pools = {node: {d["name"]: d for d in now.pool(node) or ()} for node in now.nodes}
        known, self._held = self._held, {}
        for holding in now.held():
            claim, node, name = holding
            uid = uid_of(now.nodes.get(node, {}))
            there = pools.get(node, {}).get(name)
            since, device = known.get(holding) or (uid, there)
            if device is None:
                continue
            self._held[holding] = (since, device)
            if since != uid or not pools[node] or uid in now.unruly:
                continue
            if there is None or there.get("consumesCounters") != device.get("consumesCounters"):
                yield f"{name} of {node} became {there and there.get('consumesCounters')} while claim {claim} has it"


class NoGpuTwice:
    """What is allocated of a GPU is never more than the GPU: each claim weighs what its device was when it was allocated."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[str, tuple[str, Fraction]]] = defaultdict(dict)  # by node and device
        self._weights: dict[tuple[str, str, str], tuple[str, str, Fraction]] = {}  # of a claim: node UID, GPU, share

    def look(self, now: Sight) -> Iterable[str]:
        if now.changed(RESOURCE_SLICES, NODES):
            self._remember(now)
        if not now.changed(RESOURCE_CLAIMS):
            return
        known, self._weights = self._weights, {}
        taken: dict[tuple[str, str], list[tuple[Fraction, str]]] = defaultdict(list)
        for holding in now.held():
            claim, node, device = holding
            uid = uid_of(now.nodes.get(node, {}))
            drawn = self._seen[node, uid].get(device)
            weight = known.get(holding) or (drawn and (uid, *drawn))
            if weight is None or weight[0] != uid or uid in now.unruly:
                continue
            self._weights[holding] = weight
            taken[node, weight[1]].append((weight[2], f"{claim} has {device}"))
        for (node, gpu), shares in taken.items():
            if sum(share for share, _ in shares) > 1:
                yield f"GPU {gpu} of {node} is given out more than once: {', '.join(who for _, who in shares)}"

    def _remember(self, now: Sight) -> None:
        for node, body in now.nodes.items():
            sets = now.counters(node)
            for device in now.pool(node) or ():
                gpu = str(device["attributes"]["index"]["int"])
                share = Fraction(1)
                for consumed in device.get("consumesCounters", ()):
                    for counter, value in consumed["counters"].items():
                        whole = parse(str(sets[consumed["counterSet"]][counter]["value"]))
                        share = Fraction(parse(str(value["value"])), whole)
                self._seen[node, body["metadata"]["uid"]][device["name"]] = (gpu, share)


class NothingWithoutAGrant:
    """A rule is in force, and an assignment or a step is written, only for a node whose grant stands in the ledger."""

    def __init__(self) -> None:
        self._steps: dict[str, set[str]] = defaultdict(set)  # of a token

    def look(self, now: Sight) -> Iterable[str]:
        if now.changed(NODE_STATES):
            for record in now.records.values():
                status = record.get("status", {})
                self._steps[status.get("token", "")].add(status.get("step", ""))
        granted = {grant["node"]: grant["token"] for grant in now.ledger}
        yield from self._closed(now, granted)
        if len(granted) < len(now.ledger):
            yield f"two grants for one node: {now.ledger}"
        moved = assignment(now) or step(now)
        if moved is None:
            return
        status = now.records.get(moved.node, {}).get("status", {})
        token = status.get("token", "")
        if not token or granted.get(moved.node) != token:
            yield f"{moved}, but its record has token {token!r} and the ledger {granted.get(moved.node)!r}"
        elif status["phase"] not in (
            AT_WORK if status.get("quiesce") == "DeviceTaint" or assignment(now) else AT_WORK | OPENING
        ):
            yield f"{moved} in {status['phase']}"
        elif moved.step not in self._steps[token]:
            yield f"{moved} with step {moved.step!r}, which its record never had under this grant"

    def _closed(self, now: Sight, granted: Mapping[str, str]) -> Iterable[str]:
        if now.changed(DEVICE_TAINT_RULES, DRIVERS):
            for name, node in now.active_rules().items():
                if node not in granted:
                    yield f"rule {name} is in force on {node}, which has no grant"
        if now.changed(NODES, DRIVERS):
            for node in sorted(now.cordoned() - granted.keys()):
                yield f"{node} is cordoned, and has no grant"


class TheWayBackIsKnown:
    """What a node had when it was admitted is on record before anything is assigned, and is what a roll-back brings again."""

    def __init__(self) -> None:
        self._had: dict[str, str | None] = {}  # by node UID: its assignment when it was last at rest
        self._back: set[str] = set()  # steps by which a node's former devices came back

    def look(self, now: Sight) -> Iterable[str]:
        for node, body in now.nodes.items():
            if now.phase(node) in AT_REST | {""}:
                self._had[body["metadata"]["uid"]] = label(body)
            if now.phase(node) == "RollingBack" and now.changed(RESOURCE_SLICES, NODE_STATES):
                status = now.records[node]["status"]
                former = _names(status.get("previous", {}).get("pool", ""))
                if not former or {d["name"] for d in now.pool(node) or ()} == former:
                    self._back.add(status.get("step", ""))
        moved = assignment(now)
        if moved is not None:
            previous = now.records.get(moved.node, {}).get("status", {}).get("previous")
            had = self._had.get(now.nodes[moved.node]["metadata"]["uid"])
            if previous is None:
                yield f"{moved}, and no way back is on record"
            elif previous.get("assignment") != had:
                yield f"{moved}, and the way back leads to {previous.get('assignment')}, not to {had}"
        if entered(now, "Releasing") and now.change is not None:
            status = now.change.body["status"]
            back = now.nodes.get(now.change.name)
            if status.get("outcome") == "RolledBack" and back is not None and is_of(now.change.body, back):
                had = self._had.get(back["metadata"]["uid"])
                if label(back) != had:
                    yield f"{now.change.name} is released as rolled back with {label(back)}; it had {had}"
                before = (now.before or {}).get("status", {})
                honest = uid_of(back) not in now.unruly  # else what it published before may have been nonsense
                if honest and before.get("phase") == "RollingBack" and before.get("step", "") not in self._back:
                    yield f"{now.change.name} is released as rolled back, and never published its former devices again"


class ReadyIsTrue:
    """Ready=True is only said of a generation after an instant at which each node had what that generation wants."""

    def __init__(self) -> None:
        self._of: tuple[str, int] | None = None  # UID and generation
        self._was_so = False
        self._said = False

    def look(self, now: Sight) -> Iterable[str]:
        policy = now.policy
        if policy is None:
            self._of = None
            return
        of = policy["metadata"]["uid"], policy["metadata"]["generation"]
        if of != self._of:
            self._of, self._was_so = of, False
        if now.changed(POLICIES, NODES, NODE_STATES, DRIVERS, RESOURCE_SLICES):
            self._was_so = self._was_so or not untrue(now)
        seen = policy.get("status", {}).get("observedGeneration", -1)
        if seen > of[1]:
            yield f"status speaks of generation {seen}, the spec is at {of[1]}"
        ready = condition(policy, "Ready")
        says = seen == of[1] and ready.get("status") == "True" and ready.get("reason") == "RolloutComplete"
        if says and not self._said and not self._was_so and now.change is not None:
            yield f"Ready=True of generation {of[1]}, but never since it was written did all nodes have it: {untrue(now)}"
        self._said = says


class ClosedWhileAtWork:
    """A node's devices are closed to new claims from Draining until it is released, and open at rest; no rule means more than one pool."""

    def look(self, now: Sight) -> Iterable[str]:
        if not now.changed(NODE_STATES, DEVICE_TAINT_RULES, NODES):
            return
        active, cordoned = now.active_rules(), now.cordoned()
        for node, record in now.records.items():
            body = now.nodes.get(node)
            if body is None or not is_of(record, body):
                continue
            rule, phase = taint_rule(node, body["metadata"]["uid"]), now.phase(node)
            way = record["status"].get("quiesce", "DeviceTaint")
            up = {"DeviceTaint": rule in active, "Cordon": node in cordoned}
            closed = all(up.values()) if way == "Both" else up[way]
            if phase in CLOSED and not closed:
                yield f"{node} is in {phase} and open to claims"
            if phase in AT_REST and any(up.values()):
                yield f"{node} is in {phase} and closed to claims"
        for name, rule_body in now.rules.items():
            selector = rule_body["spec"].get("deviceSelector") or {}
            node = rule_body["metadata"].get("annotations", {}).get(FULL_NODE_NAME)
            if name.startswith("gpp-") and (selector.get("driver"), selector.get("pool")) != (
                now.scene.driver_name,
                node,
            ):
                yield f"rule {name} of {node} selects {selector}"


LAWS: Final[Mapping[str, Callable[[], Law]]] = {
    "not more nodes are unavailable than allowed": NotMoreThanAllowed,
    "no layout changes under a holder": NoChangeUnderAHolder,
    "held devices stay what they are": HeldDevicesStay,
    "no GPU is given out twice": NoGpuTwice,
    "nothing is done without a grant": NothingWithoutAGrant,
    "the way back is known, and taken": TheWayBackIsKnown,
    "Ready is true": ReadyIsTrue,
    "a node is closed while at work": ClosedWhileAtWork,
}


# ── what the laws ask ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Moved:
    """A node whose label or step was just written."""

    node: str
    was: str | None
    is_now: str | None
    step: str

    def __str__(self) -> str:
        """Say so in words."""
        return f"{self.node} was moved from {self.was} to {self.is_now}"


def assignment(now: Sight) -> Moved | None:
    """The node whose assignment has just changed, if that is what happened."""
    moved = _moved(now)
    return moved if moved is not None and moved.was != moved.is_now else None


def step(now: Sight) -> Moved | None:
    """The node whose step has just been written (not taken away), if that is what happened."""
    moved = _moved(now)
    changed = moved is not None and now.before is not None and moved.step != notes(now.before).get(STEP, "")
    return moved if changed and moved is not None and moved.step else None


def _moved(now: Sight) -> Moved | None:
    if now.change is None or now.change.kind is not NODES or now.change.what != "MODIFIED" or now.before is None:
        return None
    body = now.change.body
    return Moved(now.change.name, label(now.before), label(body), notes(body).get(STEP, ""))


def untrue(now: Sight) -> str:
    """Why the policy's nodes do not all have what its spec wants now; "" when they have."""
    assert now.policy is not None
    (layout,) = now.policy["spec"]["layouts"]
    wanted = devices(layout.get("equal", {}).get("parts", 0))
    for node, body in sorted(now.matching.items()):
        record = now.records.get(node)
        if record is None or not is_of(record, body) or now.phase(node) != "UpToDate":
            return f"{node} is in {now.phase(node) or 'no phase'}"
        published = now.pool(node)
        if record["status"].get("reason") == "HardwareDegraded":  # said on the policy too; the others are as wanted
            continue
        if published is None or len(published) != wanted:
            return f"{node} publishes {len(published or ())} devices, not {wanted}"
    granted = [grant["node"] for grant in now.ledger if grant["policy"] == now.scene.policy]
    return f"{granted[0]} has a grant" if granted else ""


def entered(now: Sight, phase: str) -> bool:
    """Whether a record has just come to this phase."""
    if now.change is None or now.change.kind is not NODE_STATES or now.change.what == "DELETED":
        return False
    was = (now.before or {}).get("status", {}).get("phase")
    return bool(now.change.body.get("status", {}).get("phase") == phase != was)


def is_of(record: Object, node: Object) -> bool:
    """Whether a record is about this very node, and not about one that had its name before."""
    return bool(record["spec"]["nodeUID"] == node["metadata"]["uid"])


def label(node: Object) -> str | None:
    """The layout that a node is assigned."""
    value: str | None = node["metadata"].get("labels", {}).get(LAYOUT)
    return value


def notes(body: Object) -> dict[str, str]:
    """An object's annotations."""
    return body["metadata"].get("annotations") or {}


def uid_of(body: Object) -> str:
    """An object's UID; "" where there is none."""
    return str(body.get("metadata", {}).get("uid", ""))


def line(change: Change) -> str:
    """A change in one line: what was written, and the little of it that a reader looks for."""
    body = change.body
    status = body.get("status", {})
    told: object = ""
    if change.kind is NODE_STATES:
        told = {k: status.get(k) for k in ("phase", "change", "token", "step", "outcome", "reason") if status.get(k)}
    elif change.kind is NODES:
        told = {
            "layout": label(body),
            "step": notes(body).get(STEP),
            "cordoned": notes(body).get(CORDONED),
            "fault": notes(body).get(FAULT),
        }
    elif change.kind is DRIVERS:
        told = [f"{g['node']}:{g['token']}" for g in status.get("inFlight", ())]
    elif change.kind is DEVICE_TAINT_RULES:
        told = (notes(body).get(FULL_NODE_NAME), body["spec"]["taint"]["effect"])
    elif change.kind is POLICIES:
        ready = condition(body, "Ready")
        generation = f"{status.get('observedGeneration')}/{body['metadata'].get('generation')}"
        told = (generation, ready.get("status"), ready.get("reason"))
    elif change.kind is RESOURCE_CLAIMS:
        told = [f"{r['pool']}/{r['device']}" for r in _results(body)]
    elif change.kind is RESOURCE_SLICES:
        told = (body["spec"]["pool"], len(body["spec"].get("devices", ())))
    return f"{change.version} {change.what} {change.kind.plural}/{change.name} {told}".rstrip()


def _key(body: Object) -> str:
    namespace = body["metadata"].get("namespace", "")
    return f"{namespace}/{body['metadata']['name']}" if namespace else str(body["metadata"]["name"])


def _names(pool: str) -> set[str]:
    """The names of the devices of a pool as a record keeps it."""
    return {device["name"] for device in json.loads(unpacked(pool))["devices"]} if pool else set()


def _results(claim: Object) -> list[Object]:
    """What a claim was given."""
    results: list[Object] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return results
