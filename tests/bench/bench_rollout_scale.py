"""A roll-out over 5,000 nodes, 250 at once, on a real API server: how much longer than its schedule it takes, and what each node costs.

Slices of halves become slices of quarters, two on each node. The operator publishes them itself, so the only time that a node takes is the one
for which it has to stand still, here as long as a driver of real GPUs takes. Only etcd and the API server run beside the operator, which is as
people run it, with its defaults. 500 nodes, with as large a part of them at once, say whether a node costs more where there are many.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from testbed.progress import Progress
from tests.bench import fleet
from tests.bench.figures import Figure
from tests.bench.fleet import Fleet
from tests.bench.watching import audited, bare_server, cpu_of, highest, operator, until
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES
from tests.e2e.rollout import says
from tests.e2e.stage import OPERATOR

if TYPE_CHECKING:
    from gpupartition.kube import Client, Object

NODES: Final = 5_000
FEWER: Final = 500
SHARE: Final = 20  # a twentieth of them at once: 5%
STANDS: Final = 60  # seconds: a driver that cuts GPUs and starts its pod anew takes as long
BRIEFLY: Final = 5  # where only requests are counted
LONGER_BOUND: Final = 1.15
GROWTH_BOUND: Final = 1.05
SIZE_BOUND: Final = 64  # KiB
LOOK: Final = 2  # seconds between two looks at statuses
LOOKED_AT: Final = 5  # records a look


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One roll-out: seconds, CPU seconds of the operator, MB at its highest, requests by what they do, and KiB of the largest statuses."""

    nodes: int
    stands: int
    seconds: float
    cpu: float
    memory: int
    requests: Counter[str]
    sizes: dict[str, float]

    @property
    def each(self) -> float:
        """Requests for each node."""
        return self.requests.total() / self.nodes


def measure() -> list[Figure]:
    """Both roll-outs, one after the other."""
    fewer, many = (asyncio.run(_run(nodes, stands)) for nodes, stands in ((FEWER, BRIEFLY), (NODES, STANDS)))
    ideal = SHARE * many.stands
    by_kind = ", ".join(f"{what} {count / many.nodes:.1f}" for what, count in many.requests.most_common(6))
    of = f"{many.nodes} nodes, {many.nodes // SHARE} at once"
    return [
        Figure(
            name="roll-out beside its schedule",
            value=round(many.seconds / ideal, 3),
            unit="times",
            bound=LONGER_BOUND,
            how=f"{of}, each of which stands still for {many.stands} s: {many.seconds:.0f} s for {ideal} s",
        ),
        Figure(
            name="requests a node",
            value=round(many.each, 1),
            bound=round(fewer.each * GROWTH_BOUND, 1),
            how=f"{of}; {fewer.nodes} nodes: {fewer.each:.1f}; {by_kind}",
            rounds=[run.requests for run in (fewer, many)],
        ),
        Figure(
            name="operator's CPU a node of many",
            value=round(many.cpu / many.nodes * 1000),
            unit="ms CPU",
            how=f"{of}; {fewer.nodes} nodes: {fewer.cpu / fewer.nodes * 1000:.0f}",
        ),
        Figure(name="memory of a roll-out", value=many.memory, unit="MB", how=f"{of}; at its highest"),
        *(
            Figure(name=f"largest status of a {what}", value=round(size, 1), unit="KiB", bound=SIZE_BOUND, how=of)
            for what, size in many.sizes.items()
        ),
    ]


async def _run(nodes: int, stands: int) -> Run:
    progress = Progress(sys.stderr)
    async with bare_server(progress) as (controlplane, client):
        async with progress.step(f"{nodes} nodes"):
            await Fleet(nodes=nodes, claims=0, layout=fleet.HALVES).populate(client)
        await client.create(DRIVERS, fleet.driver())
        program = operator(controlplane)
        sizes: dict[str, float] = {}
        looks = asyncio.create_task(_look_at_statuses(client, sizes))
        try:
            await program.start()
            rollout = {"maxUnavailable": f"{100 // SHARE}%", "minReadySeconds": stands}
            begun = time.monotonic()
            policy = await client.create(POLICIES, fleet.policy("fleet", fleet.QUARTERS, rollout=rollout))
            async with progress.step(f"a roll-out over {nodes} nodes"):
                await until(client, policy, lambda body: says(body, "Ready") == ("True", "RolloutComplete"))
            return Run(
                nodes=nodes,
                stands=stands,
                seconds=time.monotonic() - begun,
                cpu=cpu_of(program.pid),
                memory=highest(program.pid),
                requests=Counter(
                    f"{each['verb']} {each['objectRef']['resource']}"
                    for each in audited(controlplane, OPERATOR)
                    if "objectRef" in each
                ),
                sizes=sizes,
            )
        finally:
            looks.cancel()
            await program.stop()


async def _look_at_statuses(client: Client, sizes: dict[str, float]) -> None:
    """Note how large statuses come to be: of the policy, of the driver with its ledger, and of records of nodes on their way."""
    while True:
        (driver,) = (await client.list(DRIVERS)).items
        going = [grant["node"] for grant in islice(driver.get("status", {}).get("inFlight", ()), LOOKED_AT)]
        found = {
            "driver": [driver],
            "policy": (await client.list(POLICIES)).items,
            "record": [await client.get(NODE_STATES, name) for name in going],
        }
        for what, bodies in found.items():
            sizes[what] = max([sizes.get(what, 0), *map(_kib, bodies)])
        await asyncio.sleep(LOOK)


def _kib(body: Object) -> float:
    return len(json.dumps(body.get("status", {}), separators=(",", ":"))) / 1024
