"""Racks in unrest: users come and go, nodes move, layouts change, slices vanish, operators die and come late, all at once; then all calm down.

A round is replayed by its seed: `UNREST_ROUNDS=20 UNREST_SEED=7` plays more and others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from testbed.faultproxy import FaultProxy
from tests.e2e.chaos import BAD_LINE, PACE, send
from tests.e2e.harness import DRIVERS, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.publishing import POLICY, nothing_is_ever_sold_twice
from tests.e2e.racks import RACK, SPAN, racks
from tests.e2e.rollout import asks, at_rest, equal, fast, records, says, whole

from gpupartition.kube import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, ApiError, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from testbed.programs import Program
    from tests.e2e.harness import Cluster
    from tests.e2e.racks import Racks

    from gpupartition.kube import Object

ROUNDS: Final = int(os.environ.get("UNREST_ROUNDS", "1"))
SEED: Final = int(os.environ.get("UNREST_SEED", "2"))
LEAST_SECONDS: Final = 20
MOST_SECONDS: Final = 60
ENOUGH: Final = 6  # users who were served
USERS: Final = 5
LAYOUTS: Final = (whole(), equal(2), equal(4))
ASKS: Final = ("mine.profile == 'full'", "mine.profile.startsWith('1of')", "!has(mine.nodes)", SPAN.format(2))


@dataclass(kw_only=True)
class Unrest:
    """One round. `chance` decides everything."""

    own: Racks
    proxy: FaultProxy
    history: Watcher
    seed: int
    diary: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - keeps no secret, and can be replayed
        self._numbers = itertools.count(1)
        self._began = asyncio.get_running_loop().time()

    async def play(self) -> None:
        """Let them all act, and then calm down."""
        await self.own.want(*self._layout())
        self.proxy.rules = BAD_LINE if self.seed % 2 else ()
        actors: list[tuple[Callable[[], Awaitable[None]], float]] = [
            *[(self._use, 0.5)] * USERS,
            (self._move, 3),
            (self._edit, 4),
            (self._wipe, 6),
            (self._disturb, 6),
            (self._tend, 0.5),
        ]
        async with asyncio.TaskGroup() as tasks:
            for act, pause in actors:
                tasks.create_task(self._again(act, pause))
        await self._calm()

    async def _again(self, act: Callable[[], Awaitable[None]], pause: float) -> None:
        while self._goes_on():
            await asyncio.sleep(self.chance.uniform(0, 2 * pause))
            with contextlib.suppress(ApiError):
                await act()

    def _goes_on(self) -> bool:
        """A round in which little happened proves little."""
        seconds = asyncio.get_running_loop().time() - self._began
        changes = self.history.changes(RESOURCE_CLAIMS)
        served = {each.name for each in changes if each.body.get("status", {}).get("allocation")}
        return seconds < LEAST_SECONDS or (seconds < MOST_SECONDS and len(served) < ENOUGH)

    async def _use(self) -> None:
        """Have somebody use a device for a while."""
        users, name = self.own.users_anywhere(), f"user-{next(self._numbers)}"
        await users.ask(name, self.chance.choice(ASKS))
        await asyncio.sleep(self.chance.uniform(0.5, 8))
        for kind in (PODS, RESOURCE_CLAIMS):
            with contextlib.suppress(NotFound):
                await self.own.cluster.client.delete(kind, name, namespace=self.own.namespace)

    async def _move(self) -> None:
        node, rack = self.chance.choice(self.own.nodes), self.chance.choice((*self.own.racks, None))
        self.diary.append(f"{node} moves to {rack}")
        await self.own.cluster.client.patch(NODES, node, {"metadata": {"labels": {RACK: rack}}})

    async def _edit(self) -> None:
        await self.own.want(*self._layout())

    def _layout(self) -> tuple[Object, ...]:
        layout = self.chance.choice(LAYOUTS)
        self.diary.append(f"wants {layout['type']} {layout.get('equal', '')}")
        return (layout,)

    async def _wipe(self) -> None:
        """Delete a slice at whatever time, but not the last one: no pool would be left to say what is in use."""
        slices = await self.own.in_rack(self.chance.choice(self.own.racks)).slices()
        if len(slices) > 1:
            name = self.chance.choice(slices)["metadata"]["name"]
            self.diary.append(f"slice {name} is deleted")
            await self.own.cluster.client.delete(RESOURCE_SLICES, name)

    async def _disturb(self) -> None:
        """Kill an operator, or stop it and let it go on after another one has begun."""
        living = [each for each in self.own.cluster.operators if each.alive]
        if not living:
            return
        program = self.chance.choice(living)
        if self.chance.random() < 0.5:
            self.diary.append(f"{program.name} is killed")
            await program.kill()
        else:
            self.diary.append(f"{program.name} is stopped")
            send(program, signal.SIGSTOP)
        beside = [] if len(living) > 2 else [await started(self.own.cluster, self.proxy)]
        await asyncio.sleep(self.chance.uniform(0, 3))
        send(program, signal.SIGCONT)
        if beside and program.alive and self.chance.random() < 0.7:
            await program.kill()

    async def _tend(self) -> None:
        """Start one again where none is left, as the kubelet does."""
        if not any(each.alive for each in self.own.cluster.operators):
            await started(self.own.cluster, self.proxy)

    async def _calm(self) -> None:
        """Mend everything, want one last thing, and wait until it is there."""
        self.proxy.rules = ()
        await self.proxy.delivered()
        client = self.own.cluster.client
        for number, node in enumerate(self.own.nodes):
            rack = self.own.racks[number % len(self.own.racks)]
            await client.patch(NODES, node, {"metadata": {"labels": {RACK: rack}}})
        for program in self.own.cluster.operators:
            send(program, signal.SIGCONT)
        await self._tend()
        for kind in (PODS, RESOURCE_CLAIMS):
            await client.delete_all(kind, namespace=self.own.namespace)
        await self.own.want(whole())
        try:
            await eventually(self._is_ready, within=90)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._as_it_stands()}") from error
        await self.own.users_anywhere().ask("at-last", ASKS[0])
        await self.own.users_anywhere().device("at-last")
        await at_rest(self.own.cluster)
        for rack in self.own.racks:
            await eventually(partial(self._is_as_wanted, rack))

    async def _as_it_stands(self) -> str:
        client, told = self.own.cluster.client, []
        for name, record in sorted((await records(self.own.cluster)).items()):
            state, node = record["status"], await client.find(NODES, name)
            rack = node["metadata"]["labels"].get(RACK) if node else None
            told.append(f"{name} in {rack}: {state['phase']} {state['reason']} {state['message']} {state['token']}")
        driver = await client.get(DRIVERS, self.own.driver)
        told.append(f"in flight: {driver['status']['inFlight']}")
        for rack in self.own.racks:
            told += [f"{each['spec']['pool']}" for each in await self.own.in_rack(rack).slices()]
        claims = (await client.list(RESOURCE_CLAIMS, namespace=self.own.namespace)).items
        told += [f"{each['metadata']['name']}: {each.get('status')}" for each in claims]
        return "\n".join([*told, str((await client.get(POLICIES, POLICY))["status"])])

    async def _is_ready(self) -> bool:
        await self._tend()
        assert says(await self.own.cluster.client.get(POLICIES, POLICY), "Ready") == ("True", "RolloutComplete")
        return True

    async def _is_as_wanted(self, rack: str) -> bool:
        there = await self.own.in_rack(rack).offers()
        nodes = [n for number, n in enumerate(self.own.nodes) if self.own.racks[number % len(self.own.racks)] == rack]
        assert len(there) == 2 * len(nodes) + len(nodes) // 2, there
        return True


async def started(cluster: Cluster, proxy: FaultProxy) -> Program:
    return await cluster.start_operator("--kubeconfig", str(proxy.kubeconfig), env=fast(**PACE))


def nobody_is_in_two_pools(history: Watcher, own: Racks) -> None:
    """Assert, at every instant, that the devices of a node are in one pool."""
    for now in history.instants():
        pools: dict[str, set[str]] = {}
        for each in now.objects(RESOURCE_SLICES):
            if each["spec"]["driver"] == own.driver:
                for device in each["spec"].get("devices", ()):
                    if "nodeName" in device:
                        pools.setdefault(device["nodeName"], set()).add(each["spec"]["pool"]["name"])
        assert all(len(some) == 1 for some in pools.values()), pools


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_nothing_is_sold_twice_in_unrest_and_calm_brings_rest(
    cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    await cluster.controlplane.install_operator()
    account = cluster.controlplane.files.kubeconfig("operator")
    async with FaultProxy(account, tmp_path, seed=seed) as proxy:
        program = await started(cluster, proxy)
        await eventually(lambda: asks(program, "/readyz"))
        own = await racks(cluster, each=3, count=2, program=program)
        async with Watcher(cluster) as history:
            round_ = Unrest(own=own, proxy=proxy, history=history, seed=seed)
            try:
                await round_.play()
                await history.caught_up()
                nobody_is_in_two_pools(history, own)
                used = [nothing_is_ever_sold_twice(history, own.in_rack(rack)) for rack in own.racks]
            except AssertionError as error:
                raise AssertionError("\n".join([str(error), f"seed {seed}", *round_.diary])) from error
            finally:
                for each in cluster.operators:
                    await each.stop()
        assert any(used)
