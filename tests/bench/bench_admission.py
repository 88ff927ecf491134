"""How much CPU a look at a policy of 5,000 nodes takes, and of that admission and status.

The very loop of the operator looks, and nothing goes over the network: reads are answered from memory. Half of the nodes are up to date, ten
are on their way, the others wait, and every one has a holder. A policy that observes has them as they were found, and says what its plan says.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from testbed.drivers.example import Settings as Drawn
from testbed.drivers.example import draw
from tests.bench.figures import Figure
from tests.unit.fleet import Fleet, policy

from gpupartition.api.v1alpha1 import Assigned, DriverStatus, Grant, NodeStateStatus, Phase
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Policy
from gpupartition.controller.events import Recorder
from gpupartition.controller.intent import Intents
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.planner import Observer, Planner
from gpupartition.controller.policy import PolicyLoop
from gpupartition.controller.probe import Probe
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, dump, new_record, with_state
from gpupartition.controller.scope import Absence, Standings
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.summary import Summary
from gpupartition.controller.world import Reader
from gpupartition.domain.admission import Admission
from gpupartition.domain.backend import Config
from gpupartition.domain.offered import offered_by
from gpupartition.kube import NODES, RESOURCE_SLICES
from gpupartition.names import LAYOUT
from gpupartition.settings import Settings

if TYPE_CHECKING:
    from gpupartition.kube import Kind, Object

COUNT: Final = 5_000
IN_FLIGHT: Final = 10
ROUNDS: Final = 9
LONG_AGO: Final = datetime.now(UTC) - timedelta(hours=1)
WHOLE: Final = offered_by(
    {"metadata": {"name": "x"}, "spec": {"pool": {"name": "x", "generation": 1, "resourceSliceCount": 1}, **content}}
    for content in draw(Drawn(node="x"))
)
BOUND: Final = 100.0  # milliseconds: while a roll-out goes on there are several looks a second, beside everything else


def measure() -> list[Figure]:
    """Milliseconds of CPU a look: one as nearly all are (nothing new can be taken), and the first one after a start."""
    return [*asyncio.run(_enforcing()), asyncio.run(_observing())]


@dataclass(frozen=True, slots=True)
class Clock:
    """Milliseconds of CPU that were spent between, of each time."""

    spent: list[float] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what is done meanwhile."""
        begun = time.process_time()
        yield
        self.spent.append(round((time.process_time() - begun) * 1000, 1))

    def figure(self, name: str, how: str) -> Figure:
        """The best of all but the first look, which is another one."""
        looks = self.spent[1:]
        told = f"{how}; best of {len(looks)}"
        return Figure(name=name, value=min(looks), unit="ms CPU", bound=BOUND, how=told, rounds=looks)


@dataclass(frozen=True, slots=True)
class Looks:
    """What looks take, and their parts."""

    whole: Clock = field(default_factory=Clock)
    admission: Clock = field(default_factory=Clock)
    status: Clock = field(default_factory=Clock)


class ClockedLedger(Ledger):
    """The ledger, with what admission takes."""

    def __init__(self, clock: Clock, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock = clock

    async def admit(self, *arguments: Any) -> Admission:
        """As ever."""
        with self._clock.running():
            return await super().admit(*arguments)


class ClockedSummary(Summary):
    """The writer of status, with what that takes."""

    def __init__(self, clock: Clock, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock = clock

    async def policy(self, *arguments: Any) -> timedelta | None:
        """As ever."""
        with self._clock.running():
            return await super().policy(*arguments)


class Written(Fleet):
    """A fleet that takes what is written to it."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.writes = 0

    async def replace(self, kind: Kind, body: Object, *, subresource: str = "") -> Object:  # noqa: ARG002
        """Put the object in the place of what has its name."""
        self.writes += 1
        name = body["metadata"]["name"]
        self.objects[kind] = [body if each["metadata"]["name"] == name else each for each in self.objects[kind]]
        return body

    async def patch(self, kind: Kind, name: str, patch: Object, **_: Any) -> Object:
        """Finalizers of the policy: they change nothing that is measured."""
        self.writes += 1
        assert patch, (kind, name)
        return await self.get(kind, name)

    async def create(self, kind: Kind, body: Object, **_: Any) -> Object:
        """Events: nobody reads them here."""
        self.writes += 1
        assert kind.plural == "events", body
        return body


async def _enforcing() -> list[Figure]:
    fleet = Written(COUNT)
    fleet.apply(policy(rollout={"maxUnavailable": IN_FLIGHT}))
    caches = Caches(fleet.client, namespace="", on_node=lambda _: None, on_all=lambda: None)
    intents = Intents(caches, Probe(fleet.client, dry_runs=False))
    await caches.read()
    await _half_done(fleet, intents)
    looks = await _look(fleet, caches, intents)
    status = fleet.objects[POLICIES][0]["status"]
    assert (status["progress"], status["nodes"]["inProgress"]) == (f"{COUNT // 2}/{COUNT}", IN_FLIGHT), status
    how = f"{COUNT} nodes, half of them done"
    return [
        looks.whole.figure("look at a policy", f"{how}: scope, admission, status, what is left over"),
        looks.admission.figure("admission", f"{how}: its part of that"),
        looks.status.figure("status of a policy", f"{how}: its part of that"),
        Figure(name="first look at a policy", value=looks.whole.spent[0], unit="ms CPU", how=f"{how}, after a start"),
    ]


async def _observing() -> Figure:
    fleet = Written(COUNT)
    fleet.apply(policy(rollout={"maxUnavailable": IN_FLIGHT}, mode="Observe"))
    caches = Caches(fleet.client, namespace="", on_node=lambda _: None, on_all=lambda: None)
    looks = await _look(fleet, caches, Intents(caches, Probe(fleet.client, dry_runs=False)))
    (ready,) = (c for c in fleet.objects[POLICIES][0]["status"]["conditions"] if c["type"] == "Ready")
    assert f"{COUNT} nodes would change" in ready["message"], ready
    return looks.whole.figure("look at a policy that observes", f"{COUNT} nodes: scope, status, what its plan says")


async def _look(fleet: Written, caches: Caches, intents: Intents) -> Looks:
    """Look for the first time, and then again and again, with nothing changed."""
    await caches.read()
    looks = Looks()
    loop = _loop(fleet, caches, intents, looks)
    for each in range(1 + ROUNDS):
        gc.collect()
        if each == 1:
            fleet.writes = 0
        with looks.whole.running():
            await loop.reconcile("inference")
    assert not fleet.writes, "nothing had changed, and yet something was written"
    return looks


async def _half_done(fleet: Fleet, intents: Intents) -> None:
    """Have every second node done and ten of the others drain; every one has a holder."""
    (body,), (driver_body,) = fleet.objects[POLICIES], fleet.objects[DRIVERS]
    driver, owner = await intents.driver(driver_body), Policy.read(body)
    done, going = set(fleet.nodes[::2]), set(fleet.nodes[1 : 2 * IN_FLIGHT : 2])
    uids: dict[str, str] = {}
    for node in fleet.objects[NODES]:
        name = node["metadata"]["name"]
        uids[name] = node["metadata"]["uid"]
        wanted = intents.compile(driver, owner, node, None, None).wanted
        assert wanted is not None, "the layout does not compile"
        if name in done:
            node["metadata"]["labels"][LAYOUT] = wanted.assignment
        fleet.hold(name, claim=f"team/{name}", device="gpu-0-p0" if name in done else "gpu-0")
        phase = Phase.UP_TO_DATE if name in done else Phase.DRAINING if name in going else Phase.PENDING
        fleet.objects[NODE_STATES].append(_record(name, node["metadata"]["uid"], phase, wanted))
    others = [each for each in fleet.objects[RESOURCE_SLICES] if each["spec"]["nodeName"] not in done]
    fleet.objects[RESOURCE_SLICES] = []
    for name in sorted(done):
        fleet.publish(name, parts=2)
    fleet.objects[RESOURCE_SLICES] += others
    grants = [
        Grant(node=name, uid=uids[name], policy=owner.name, token=f"token-{name}", since=LONG_AGO)
        for name in sorted(going)
    ]
    driver_body["status"] = dump(DriverStatus(in_flight=grants))


def _record(node: str, uid: str, phase: Phase, wanted: Config) -> Object:
    """What a node's record says in this phase."""
    target, before = wanted.assigned("revision"), Assigned(fingerprint="base", pool=WHOLE.to_json())
    touched = phase is not Phase.PENDING
    state = NodeStateStatus(
        phase=phase,
        since=LONG_AGO,
        target=target.model_copy(update={"since": LONG_AGO}),
        current=target if phase is Phase.UP_TO_DATE else None,
        previous=before if touched else None,
        original=before if touched else None,
        token=f"token-{node}" if phase is Phase.DRAINING else "",
        message="waits to be admitted",
    )
    body = new_record(node=node, node_uid=uid, policy="inference", policy_uid="inference", driver="example")
    body["metadata"] |= {"uid": f"record-{node}", "resourceVersion": "1"}
    return with_state(body, state)


def _loop(fleet: Fleet, caches: Caches, intents: Intents, looks: Looks) -> PolicyLoop:
    """The loop as the operator puts it together."""
    client, settings, watches = fleet.client, Settings(), Stopwatch()
    policies = {each["metadata"]["name"]: each for each in fleet.objects[POLICIES]}
    absence = Absence(noticed=settings.limits.not_ready, ignored=settings.ignore_not_ready)
    standings = Standings(caches, absence)
    ledger = ClockedLedger(looks.admission, client, caches, standings, watches, settings.limits.first_looks)
    reader = Reader(client, caches, intents, watches, settings.limits)
    observer = Observer(Planner(caches, reader, ledger, absence=absence))
    summary = ClockedSummary(looks.status, client, caches, standings, Recorder(client), settings, observer, policies)
    probe = Probe(client, dry_runs=False)
    return PolicyLoop(client, caches, intents, ledger, summary, probe, policies=policies, on_node=lambda _: None)
