"""An operator that dies at the worst moment, and what must not have happened twice when it is back.

A crash is aimed: the test watches the records, stops the operator with SIGSTOP as soon as a node is seen in a phase, makes sure that it is
still there, and only then kills it. A phase in which no crash was placed fails the test.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from tests.e2e import rollout
from tests.e2e.harness import NODE_STATES, follow
from tests.e2e.stage import HALVES, Stage, writes

from gpupartition.kube import NODES, PODS
from gpupartition.names import CORDONED, STEP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from testbed.programs import Program
    from tests.e2e.harness import Cluster
    from tests.e2e.history import Watcher


@dataclass(kw_only=True)
class Marksman:
    """Meets the operator in one phase of each node, once per node."""

    cluster: Cluster
    phase: str
    env: dict[str, str]
    program: Program
    hit: list[str] = field(default_factory=list)
    """The nodes in whose phase the operator was killed."""

    async def watch(self, version: str) -> None:
        """Kill the operator in the phase, and start another one, until cancelled."""
        while True:
            node = await stopped_in(self.cluster, self.program, self.phase, version, but=self.hit)
            self.hit.append(node)
            await self.program.kill()
            self.program = await self.cluster.start_operator(env=self.env)


async def stopped_in(cluster: Cluster, program: Program, phase: str, version: str, *, but: Sequence[str] = ()) -> str:
    """Stop the operator while a node (`but` these) is in a phase, looking from this version on; returns the node."""
    async for _, body in follow(cluster.client, NODE_STATES, version):
        node = str(body["metadata"]["name"])
        if body.get("status", {}).get("phase") != phase or node in but:
            continue
        os.kill(program.pid, signal.SIGSTOP)
        if (await cluster.client.get(NODE_STATES, node))["status"]["phase"] == phase:
            return node
        os.kill(program.pid, signal.SIGCONT)  # too late for this one
    raise AssertionError("the watch has ended")


@asynccontextmanager
async def killed_in(cluster: Cluster, phase: str, **seconds: float) -> AsyncIterator[Marksman]:
    """Run an operator that is killed, and started anew, each time a node enters the phase; it must have met one at least."""
    env = rollout.fast(**seconds)
    version = (await cluster.client.list(NODE_STATES)).resource_version
    marksman = Marksman(cluster=cluster, phase=phase, env=env, program=await cluster.start_operator(env=env))
    watching = asyncio.create_task(marksman.watch(version))
    try:
        yield marksman
        assert marksman.hit, f"the operator was never killed in {phase}"
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def nothing_happened_twice(scene: Stage, history: Watcher, *newcomers: str) -> None:
    """All nodes have halves, nothing is left over, each step was written once, and no driver was started without need."""
    nodes = [*scene.nodes, *newcomers]
    await rollout.at_rest(scene.cluster)
    assert await rollout.phases(scene.cluster) == dict.fromkeys(nodes, "UpToDate")
    await scene.publishes(HALVES, *nodes)
    await history.caught_up()
    assert history.most_unavailable() == 1
    for node in nodes:
        marked = marks(history, node)
        assert len(writes(scene.cluster, "nodes", name=node)) == len(marked)
        for values in zip(*marked, strict=True):
            told = [value for value, _ in groupby(values) if value is not None]
            assert len(told) == len(set(told))
        # The base's pod at first, and one for each assignment after that.
        assert len(driver_pods(history, node)) == len(history.assignments(node))


def marks(history: Watcher, node: str) -> list[tuple[str | None, str | None]]:
    """The step and the cordon that a node had, one after another, from the first of them: each of the operator's writes changes one or both."""
    notes = [change.body["metadata"].get("annotations", {}) for change in history.changes(NODES, node)]
    one_after_another = groupby([(None, None), *((each.get(STEP), each.get(CORDONED)) for each in notes)])
    return [both for both, _ in one_after_another][1:]


def driver_pods(history: Watcher, node: str) -> set[str]:
    """UIDs of all pods of DaemonSets that were ever seen on a node."""
    return {
        body["metadata"]["uid"]
        for now in history.instants()
        for body in now.objects(PODS)
        if body["spec"].get("nodeName") == node and "controller-revision-hash" in body["metadata"].get("labels", {})
    }
