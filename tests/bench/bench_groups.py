"""How much CPU it takes to find what is wanted for 2,048 nodes whose GPUs are published together, 32 nodes to a group.

Nothing goes over the network: reads are answered from memory. Every group has been changed, and nothing is to be done.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tests.bench.figures import Figure
from tests.unit.fleet import Fleet, policy

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.backends.slices import Target
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Policy
from gpupartition.controller.intent import Intents
from gpupartition.controller.probe import Probe
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, dump, new_record
from gpupartition.controller.scope import read_scope
from gpupartition.domain.pool import Pool
from gpupartition.kube import NODES, RESOURCE_SLICES

if TYPE_CHECKING:
    from gpupartition.controller.scope import Scope

COUNT: Final = 2_048
EACH: Final = 32
ROUNDS: Final = 5
BOUND: Final = 400.0  # milliseconds: as much of a second as other policies leave it


def measure() -> list[Figure]:
    """Milliseconds of CPU a look: one as nearly all are, and the first one after a start."""
    return asyncio.run(_measure())


async def _measure() -> list[Figure]:
    fleet = Fleet(COUNT)
    fleet.in_racks(**{f"rack-{n}": fleet.nodes[n * EACH : (n + 1) * EACH] for n in range(COUNT // EACH)})
    fleet.apply(policy(driver="racks"))
    _done(fleet, (await _looks(fleet, 1))[1])
    (first, *looks), scope = await _looks(fleet, 1 + ROUNDS)
    assert all(intent.wanted is not None for intent in scope.intents.values()), "nothing is to be done"
    how = f"{COUNT} nodes in groups of {EACH}: who is in which, and what is wanted"
    value = min(looks)
    return [
        Figure(name="look at groups", value=value, unit="ms CPU", bound=BOUND, how=how, rounds=looks),
        Figure(name="first look at groups", value=first, unit="ms CPU", how=f"{how}, after a start"),
    ]


async def _looks(fleet: Fleet, count: int) -> tuple[list[float], Scope]:
    caches = Caches(fleet.client, namespace="", on_node=lambda _: None, on_all=lambda: None)
    await caches.read()
    intents = Intents(caches, Probe(fleet.client, dry_runs=False))
    (body,) = fleet.objects[POLICIES]
    (driver_body,) = [each for each in fleet.objects[DRIVERS] if each["metadata"]["name"] == "racks"]
    driver, owner, took = await intents.driver(driver_body), Policy.read(body), []
    for _ in range(count):
        gc.collect()
        begun = time.process_time()
        scope = await read_scope(body, owner, driver, driver_body, caches=caches, intents=intents, policies={})
        took.append(round((time.process_time() - begun) * 1000, 1))
    return took, scope


def _done(fleet: Fleet, scope: Scope) -> None:
    """Publish what is wanted, and have every node verified with it."""
    driver, uids = scope.driver, {each["metadata"]["name"]: each["metadata"]["uid"] for each in fleet.objects[NODES]}
    fleet.objects[RESOURCE_SLICES] = []
    for name, group in scope.groups.items():
        assert group is not None, name
        wanted = scope.intents[group.leader].wanted
        assert wanted is not None, group
        record = new_record(node=name, node_uid=uids[name], policy="inference", policy_uid="inference", driver="racks")
        record["metadata"] |= {"uid": f"record-{name}", "resourceVersion": "1"}
        has = wanted.assigned() if group.leader == name else replace(wanted, assignment=None, pool=Pool()).assigned()
        state = NodeStateStatus(phase=Phase.UP_TO_DATE, current=has, target=has, generation=1)
        fleet.objects[NODE_STATES].append(record | {"status": dump(state)})
        if group.leader == name:
            target = Target(
                driver=driver.driver_name,
                pool_name=f"{driver.driver_name}/{group.name}",
                nodes=group.members,
                pool=wanted.pool,
                assignment=wanted.assignment,
                group=group.name,
            )
            fleet.objects[RESOURCE_SLICES] += [_stored(each) for each in target.bodies(1, "step")]


def _stored(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"metadata": {**body["metadata"], "uid": body["metadata"]["name"], "resourceVersion": "1"}}
