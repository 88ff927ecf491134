"""How much CPU a look at a policy of 5,000 nodes takes: reading its scope, admission and summary.

The very loop of the operator looks, and nothing goes over the network: reads are answered from memory. Half of the nodes are up to date, ten
are on their way, the others wait, and every one has a holder.
"""

from __future__ import annotations

import asyncio
import gc
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from testbed.drivers.example import Settings as Drawn
from testbed.drivers.example import draw
from tests.bench.figures import Figure
from tests.unit.fleet import Fleet, policy

from gpupartition.api.v1alpha1 import Assigned, DriverStatus, Grant, NodeStateStatus, Phase
from gpupartition.controller.caches import Caches
from gpupartition.controller.events import Recorder
from gpupartition.controller.forecast import Forecast, Observer
from gpupartition.controller.intent import Intents, Policy
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.policy import PolicyLoop
from gpupartition.controller.probe import Probe
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, dump, new_record, with_state
from gpupartition.controller.scope import Absence, Standings
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.summary import Summary
from gpupartition.controller.world import Reader
from gpupartition.domain.backend import Config
from gpupartition.domain.pool import Pool
from gpupartition.kube import NODES, RESOURCE_SLICES
from gpupartition.names import LAYOUT
from gpupartition.settings import Settings

if TYPE_CHECKING:
    from gpupartition.kube import Kind, Object

COUNT: Final = 5_000
IN_FLIGHT: Final = 10
ROUNDS: Final = 9
LONG_AGO: Final = datetime.now(UTC) - timedelta(hours=1)
WHOLE: Final = Pool.read(
    {"metadata": {"name": "x"}, "spec": {"pool": {"name": "x", "generation": 1, "resourceSliceCount": 1}, **content}}
    for content in draw(Drawn(node="x"))
)
BOUND: Final = 100.0  # milliseconds: while a roll-out goes on there are several looks a second, beside everything else


def measure() -> list[Figure]:
    """Milliseconds of CPU a look: one as nearly all are (nothing new can be taken), and the first one after a start."""
    return asyncio.run(_measure())


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


async def _measure() -> list[Figure]:
    fleet = Written(COUNT)
    fleet.apply(policy(rollout={"maxUnavailable": IN_FLIGHT}))
    caches = Caches(fleet.client, namespace="", on_node=lambda _: None, on_all=lambda: None)
    intents = Intents(caches, Probe(fleet.client, dry_runs=False))
    await caches.read()
    await _half_done(fleet, intents)
    await caches.read()
    loop = _loop(fleet, caches, intents)
    first = await _look(loop)
    status = fleet.objects[POLICIES][0]["status"]
    assert (status["progress"], status["nodes"]["inProgress"]) == (f"{COUNT // 2}/{COUNT}", IN_FLIGHT), status
    fleet.writes = 0
    looks = [await _look(loop) for _ in range(ROUNDS)]
    assert not fleet.writes, "nothing had changed, and yet something was written"
    how = f"{COUNT} nodes, half of them done: scope, admission, summary"
    return [
        Figure(
            name="look at a policy",
            value=min(looks),
            unit="ms CPU",
            bound=BOUND,
            how=f"{how}; best of {ROUNDS}",
            rounds=looks,
        ),
        Figure(name="first look at a policy", value=first, unit="ms CPU", how=f"{how}, after a start"),
    ]


async def _look(loop: PolicyLoop) -> float:
    gc.collect()
    begun = time.process_time()
    await loop.reconcile("inference")
    return round((time.process_time() - begun) * 1000, 1)


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


def _loop(fleet: Fleet, caches: Caches, intents: Intents) -> PolicyLoop:
    """The loop as the operator puts it together."""
    client, settings, watches = fleet.client, Settings(), Stopwatch()
    policies = {each["metadata"]["name"]: each for each in fleet.objects[POLICIES]}
    absence = Absence(noticed=settings.limits.not_ready, ignored=settings.ignore_not_ready)
    standings = Standings(caches, absence)
    ledger = Ledger(client, caches, standings, watches, settings.limits.first_looks)
    reader = Reader(client, caches, intents, watches, settings.limits)
    observer = Observer(Forecast(caches, reader, ledger, absence=absence))
    summary = Summary(client, caches, standings, Recorder(client), settings, observer, policies)
    probe = Probe(client, dry_runs=False)
    return PolicyLoop(client, caches, intents, ledger, summary, probe, policies=policies, on_node=lambda _: None)
