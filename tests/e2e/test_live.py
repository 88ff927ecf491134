"""Layouts that change under their users: nobody is waited for, nobody notices, and no GPU is sold twice meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from testbed.controlplane import ControlPlane, Shape
from tests.e2e import harness
from tests.e2e.crashes import killed_in
from tests.e2e.harness import DRIVERS, NODE_STATES, eventually
from tests.e2e.history import Watcher
from tests.e2e.publishing import FULL, PART, POLICY, gpus, nothing_is_ever_sold_twice, site
from tests.e2e.rollout import at_rest, equal, policy, reaches, ready, said
from tests.e2e.shell import gpupartition

from gpupartition.kube import DEVICE_TAINT_RULES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.claims import Users
    from tests.e2e.harness import Cluster
    from tests.e2e.publishing import Site

    from gpupartition.kube import Object

HOLDERS = {
    "half-of-0": f"mine.index == 0 && {PART}",
    "half-of-1": f"mine.index == 1 && {PART}",
    "other-half-of-1": f"mine.index == 1 && {PART}",
    "whole-2": f"mine.index == 2 && {FULL}",
    "half-of-3": f"mine.index == 3 && {PART}",
    "whole-4": f"mine.index == 4 && {FULL}",
}


async def test_halves_become_quarters_under_their_users_as_far_as_the_counters_are_free(cluster: Cluster) -> None:
    own, users = await halves_in_use(cluster, 8)
    had = await users_have(users)
    quarters = [f"quarter-{number}" for number in range(18)]
    for name in quarters:  # 3 whole GPUs, and a half of each of two
        await users.ask(name, "mine.profile == '1of4'")
    async with Watcher(cluster) as history:
        policy_of_quarters = policy(POLICY, own.driver, equal(4))
        plan = await gpupartition(cluster, "plan", "-f", "-", "-o", "json", stdin=policy_of_quarters)
        waiting = [each for each in plan.data["fit"]["pending"] if each["namespace"] == users.namespace]
        assert Counter(each["after"]["fits"] for each in waiting) == {"Fits": 16, "DoesNotFit": 2}
        assert plan.nodes[own.nodes[0]]["change"] == "Live"
        await own.gets(equal(4))
        given = {await users.device(name) for name in quarters[:16]}
        assert len(given) == 16
        for name in quarters[16:]:
            await users.waits(name)
        assert await users_have(users) == had

        await retired(own, {"gpu-0-1of2", "gpu-1-1of2", "gpu-1-2of2", "gpu-3-1of2"})
        record = (await cluster.client.get(NODE_STATES, own.nodes[0]))["status"]
        assert (record["phase"], record["reason"]) == ("UpToDate", "Retiring")
        assert "gpu-0-1of2, gpu-1-1of2, gpu-1-2of2 and 1 more" in record["message"]
        await users.end("half-of-0")
        assert (await users.device(quarters[16])).startswith("gpu-0-")
        assert (await users.device(quarters[17])).startswith("gpu-0-")
        for name in ("half-of-1", "other-half-of-1", "half-of-3"):
            await users.end(name)

        await retired(own, set())
        await at_rest(cluster)
    assert nothing_is_ever_sold_twice(history, own) == 23
    assert not any(now.objects(DEVICE_TAINT_RULES) for now in history.instants())
    assert {"Quiescing", "Draining"}.isdisjoint(history.phases(own.nodes[0]))
    assert len(await own.offers()) == 8 * 5


@pytest.mark.parametrize("phase", ["Applying", "Verifying"])
async def test_killed_on_the_way_it_goes_on_and_nobody_loses_anything(cluster: Cluster, phase: str) -> None:
    own, users = await halves_in_use(cluster, 12)
    had = await users_have(users)
    await own.program.stop()
    async with Watcher(cluster) as history, killed_in(cluster, phase, settle=1) as marksman:
        for parts in (4, 2, 3):
            await own.gets(equal(parts))
            await users.ask(f"one-of-{parts}", f"mine.profile == '1of{parts}'")
            assert await users.device(f"one-of-{parts}")
        assert marksman.hit == [own.nodes[0]]
        for name in ("one-of-4", "one-of-2"):
            await users.end(name)
        await retired(own, {"gpu-0-1of2", "gpu-1-1of2", "gpu-1-2of2", "gpu-3-1of2"})
        assert await users_have(users) == had
        for name in HOLDERS:
            await users.end(name)
        await retired(own, set())
        await at_rest(cluster)
    assert nothing_is_ever_sold_twice(history, own) >= len(HOLDERS) + 1
    assert len(await own.offers()) == 12 * 4


async def test_slices_that_somebody_wipes_come_back_with_what_is_retired(cluster: Cluster) -> None:
    own = await site(cluster, gpus(2), settle=1)
    await own.gets(equal(2))
    users = own.users()
    await users.ask("user", PART)
    given = await users.allocation("user")
    await own.gets(equal(4))
    await retired(own, {given["device"]})
    good = await own.says()
    await own.wiped()
    await own.says_again(good)
    async with Watcher(cluster) as history:
        await users.ask("whole", FULL)
        assert await users.device("whole") == "gpu-1-full"
        await users.ask("another", FULL)
        await users.waits("another")
        await users.end("user")
        assert await users.device("another") == "gpu-0-full"
    assert nothing_is_ever_sold_twice(history, own) == 2


async def test_a_device_that_would_become_something_else_under_its_name_is_waited_for(cluster: Cluster) -> None:
    own = await site(cluster, gpus(2), settle=1)
    await own.gets(equal(2))
    users = own.users()
    await users.ask("user", PART)
    given = await users.allocation("user")
    memory = {"default": "10Gi", "min": "1Gi", "max": "30Gi", "step": "1Gi"}
    shared = equal(2, sharing={"mode": "Shared", "capacity": {"memory": memory}})
    await own.want(shared)
    await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
    record = (await reaches(cluster, own.nodes[0], "Pending"))["status"]
    assert [each["device"] for each in record["blockers"]] == [given["device"]]
    await users.end("user")
    await ready(cluster, POLICY)
    await users.ask("modest", PART)
    await users.ask("another", PART)
    assert await users.device("modest") == await users.device("another")


async def test_an_api_server_that_keeps_no_taints_of_devices_has_holders_waited_for(tmp_path: Path) -> None:
    shape = Shape(nodes=0, feature_gates="DRADeviceTaints=false,DRADeviceTaintRules=false")
    async with ControlPlane(tmp_path, shape=shape) as old, harness.cluster(old, "old") as cluster:
        own = await site(cluster, gpus(2), settle=1)
        await cluster.client.patch(DRIVERS, own.driver, {"spec": {"quiesce": "Cordon"}})
        await own.gets(equal(2))
        users = own.users()
        await users.ask("user", PART)
        assert await users.device("user")
        await own.want(equal(4))
        await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
        await users.end("user")
        await ready(cluster, POLICY)
        assert len(await own.offers()) == 2 * 5


async def retired(own: Site, names: set[str]) -> None:
    """Wait until these and no other devices of the first node are retired."""

    async def look() -> bool:
        assert set(await own.retired()) == names
        return True

    await eventually(look)


async def halves_in_use(cluster: Cluster, count: int) -> tuple[Site, Users]:
    """A node of so many GPUs that can be had in halves or whole, and the holders of some of them."""
    own = await site(cluster, gpus(count), settle=1)
    await own.gets(equal(2))
    await at_rest(cluster)
    users = own.users()
    for name, cel in HOLDERS.items():
        await users.ask(name, cel)
    return own, users


async def users_have(users: Users) -> dict[str, Object]:
    """What each of the holders has."""
    return {name: await users.allocation(name) for name in HOLDERS}
