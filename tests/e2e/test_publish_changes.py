"""Pools of a driver name that the operator owns, while they change and when others meddle with them: what is never to be seen."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.e2e.harness import NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.publishing import (
    FULL,
    PART,
    POLICY,
    WAIT,
    another_count,
    foreign,
    gpus,
    more_memory,
    nothing_is_ever_sold_twice,
    one_device_less,
    site,
    states,
    usable,
)
from tests.e2e.rollout import (
    annotate,
    apply,
    at_rest,
    equal,
    looks_again,
    operator,
    policy,
    reaches,
    ready,
    said,
    stalled,
)

from gpupartition.kube import RESOURCE_SLICES, ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.e2e.harness import Cluster
    from tests.e2e.publishing import Site


async def test_of_a_pool_that_changes_all_is_old_or_all_is_new_or_nothing_can_be_allocated(cluster: Cluster) -> None:
    own = await site(cluster, gpus(16), live=False)
    async with Watcher(cluster, RESOURCE_SLICES) as history:
        await own.gets(equal(2))
        halves = tuple(await own.offers())
        assert len(await own.slices()) == 3
        await own.gets(equal(4))
        quarters = tuple(await own.offers())
        assert len(await own.slices()) == 4
        await own.gets(equal(2))
        assert len(await own.slices()) == 3
    assert (len(halves), len(quarters)) == (48, 80)
    assert states(history, own) == [(), None, halves, None, quarters, None, halves]


async def test_a_device_that_would_vanish_is_waited_for_and_one_that_stays_is_not(cluster: Cluster) -> None:
    own = await site(cluster, gpus(4), live=False, settle=1)
    await own.gets(equal(2))
    users = own.users()
    await users.ask("stays", f"mine.index == 0 && {FULL}")
    assert await users.device("stays") == "gpu-0-full"
    await users.ask("also-stays", f"mine.index == 1 && {PART}")
    assert await users.device("also-stays") == "gpu-1-1of2"
    first = {**equal(2), "match": {"indexes": [1]}}
    async with Watcher(cluster) as history:
        await own.gets(first, equal(4))
        assert "gpu-2-4of4" in await own.offers()
        await users.ask("vanishes", f"mine.index == 2 && {PART}")
        assert await users.device("vanishes") == "gpu-2-1of4"
        await own.want(first, equal(8), **WAIT)
        await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
        record = (await reaches(cluster, own.nodes[0], "Draining"))["status"]
        assert [(each["device"], each["claim"]) for each in record["blockers"]] == [
            ("gpu-2-1of4", f"{own.namespace}/vanishes")
        ]
        queued = [f"queued-{number}" for number in range(12)]
        for name in queued:
            await users.ask(name)
        for name in queued:
            await users.waits(name)
        assert "gpu-2-4of4" in await own.offers()
        await users.end("vanishes")
        await ready(cluster, POLICY)
        assert {(await users.device(name)).rpartition("of")[2] for name in queued} == {"2", "8"}
        assert await users.device("stays") == "gpu-0-full"
        assert await users.device("also-stays") == "gpu-1-1of2"
    assert nothing_is_ever_sold_twice(history, own) == 2 + len(queued)


async def test_slices_that_somebody_wipes_or_edits_are_restored_at_once(cluster: Cluster) -> None:
    own = await site(cluster, gpus(12), live=False)
    await own.gets(equal(2))
    await at_rest(cluster)
    users = own.users()
    await users.ask("user", f"mine.index == 11 && {PART}")
    given = await users.allocation("user")
    good = await own.says()
    async with Watcher(cluster, NODE_STATES, RESOURCE_SLICES) as history:
        for number in range(3):
            await cluster.client.delete(RESOURCE_SLICES, (await own.slices())[number]["metadata"]["name"])
            await own.says_again(good)
        await own.wiped()
        await own.says_again(good)
        for edited in (more_memory, one_device_less, another_count):
            await cluster.client.replace(RESOURCE_SLICES, edited(await own.slices()))
            await own.says_again(good)
        for generation in (1, 1000):
            body = foreign(own, generation)
            await cluster.client.create(RESOURCE_SLICES, body)
            await cluster.gone(RESOURCE_SLICES, body["metadata"]["name"])
            await own.says_again(good)
    assert history.phases(own.nodes[0]) == []
    assert await users.allocation("user") == given


async def test_slices_are_restored_too_while_their_node_waits_for_its_turn(cluster: Cluster) -> None:
    own = await site(cluster, gpus(4), live=False)
    await own.gets(equal(2))
    users = own.users()
    await users.ask("user", PART)
    assert await users.device("user") == "gpu-0-1of2"
    good = await own.says()
    await own.want(equal(4))
    await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
    await reaches(cluster, own.nodes[0], "Pending")
    await own.wiped()
    await own.says_again(good)
    await users.end("user")
    await ready(cluster, POLICY)
    assert len(await own.offers()) == 20


def _mischief(own: Site) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What others may do to what a node publishes: to the first one, the second, the third."""

    async def edit() -> None:
        await own.cluster.client.replace(RESOURCE_SLICES, one_device_less(await own.slices(edited)))

    edited, wiped, invaded = own.nodes
    return {
        edited: edit,
        wiped: partial(own.wiped, wiped),
        invaded: lambda: own.cluster.client.create(RESOURCE_SLICES, foreign(own, 1000, invaded)),
    }


async def _again_and_again(own: Site, node: str, mischief: Callable[[], Awaitable[Any]], devices: int) -> None:
    """Do it whenever a node that is being verified publishes what it should, until the node goes back."""

    async def chance() -> str:
        phase = str((await own.cluster.client.get(NODE_STATES, node))["status"]["phase"])
        whole = len(usable(await own.slices(node)) or ()) == devices
        return "whole" if phase == "Verifying" and whole else phase.removesuffix("Verifying")

    while await eventually(chance) == "whole":
        with contextlib.suppress(ApiError):  # somebody was faster
            await mischief()


async def test_what_others_do_to_slices_that_are_being_verified_is_put_right(cluster: Cluster) -> None:
    own = await site(cluster, gpus(12), live=False, nodes=3, min_ready=3)
    await own.gets(equal(2), maxUnavailable=3)
    async with Watcher(cluster) as history:
        await own.want(equal(4), maxUnavailable=3)
        for node, mischief in _mischief(own).items():
            await history.saw(NODE_STATES, node, phase="Verifying")
            await mischief()
        await ready(cluster, POLICY)
    assert await _offer(own, 60, 60, 60)
    assert not any("RollingBack" in history.phases(node) for node in own.nodes)


async def test_what_does_not_stay_published_is_rolled_back_to_the_former_slices(cluster: Cluster) -> None:
    own = await site(cluster, gpus(12), live=False, nodes=3)
    wiped = own.nodes[1]
    await own.gets(equal(2), maxUnavailable=3)
    await at_rest(cluster)
    good = {node: await own.says(node) for node in own.nodes}
    await own.program.stop()
    hasty = await operator(cluster, min_ready=5, verifying=7)
    async with Watcher(cluster) as history:
        await own.want(equal(4), maxUnavailable=3)
        for node in own.nodes:
            await history.saw(NODE_STATES, node, phase="Verifying")
        await asyncio.gather(*(_again_and_again(own, *one, devices=60) for one in _mischief(own).items()))
        failed = await stalled(cluster, POLICY, "RolledBack")
    told = {each["node"]: (each["reason"], each["message"]) for each in failed["status"]["failedNodes"]}
    for node in own.nodes:
        assert told[node][0] == "VerifyingFailed"
        assert "the node does not publish what is wanted: " in told[node][1]
        assert history.phases(node)[-4:] == ["Verifying", "RollingBack", "Releasing", "RolledBack"]
        assert await own.says(node) == good[node]
    await at_rest(cluster)

    # A node that was rolled back is looked after like any other, and tried again when somebody asks.
    await own.wiped(wiped)
    await own.says_again(good[wiped], wiped)
    await hasty.stop()
    await operator(cluster)
    await annotate(cluster, POLICIES, POLICY, retry="1")
    await ready(cluster, POLICY)
    assert await _offer(own, 60, 60, 60)


async def test_a_node_whose_slices_are_wiped_before_it_changes_goes_back_to_what_it_had(cluster: Cluster) -> None:
    own = await site(cluster, gpus(12), live=False)
    await own.gets(equal(2))
    await at_rest(cluster)
    good = await own.says()
    await own.program.kill()
    await own.wiped()
    await own.want(equal(4))
    async with Watcher(cluster) as history:
        await operator(cluster, min_ready=5, verifying=7)
        await history.saw(NODE_STATES, own.nodes[0], phase="Verifying")
        await _again_and_again(own, own.nodes[0], own.wiped, devices=60)
        await stalled(cluster, POLICY, "RolledBack")
    assert "Skipped" not in history.phases(own.nodes[0])
    assert await own.says() == good


async def test_an_operator_that_dies_after_every_write_to_a_slice_leaves_no_half_pool_to_be_used(
    cluster: Cluster,
) -> None:
    own = await site(cluster, gpus(16), live=False)
    await own.gets(equal(2))
    halves = tuple(await own.offers())
    writes = 0
    program = own.program
    async with Watcher(cluster, RESOURCE_SLICES) as history:
        await own.want(equal(4))
        while writes < 4:  # two slices of counters, two of devices
            await eventually(partial(_more_writes, history, writes))
            await program.kill()
            await history.caught_up()
            writes = len(history.changes(RESOURCE_SLICES))
            program = await operator(cluster)
        await ready(cluster, POLICY)
    quarters = tuple(await own.offers())
    assert len(quarters) == 80
    assert states(history, own) == [halves, None, quarters]
    assert len(history.changes(RESOURCE_SLICES)) == 4


def _more_writes(history: Watcher, than: int) -> bool:
    return len(history.changes(RESOURCE_SLICES)) > than


async def test_slices_that_are_wiped_in_the_middle_of_a_change_come_back_as_the_new_ones(cluster: Cluster) -> None:
    own = await site(cluster, gpus(16), live=False)
    await own.gets(equal(2))
    async with Watcher(cluster) as history:
        await own.want(equal(4))
        await eventually(lambda: history.changes(RESOURCE_SLICES))
        await own.wiped()
        await ready(cluster, POLICY)
    assert len(await own.offers()) == 80
    assert "RollingBack" not in history.phases(own.nodes[0])
    assert {None if state is None else len(state) for state in states(history, own)} <= {48, None, 0, 80}


async def test_a_changed_inventory_is_rolled_out_like_a_changed_layout(cluster: Cluster) -> None:
    own = await site(cluster, gpus(4, "G100"), live=False, nodes=2)
    await own.gets(equal(2))
    users = own.users()
    await users.ask("user", f"mine.index == 3 && {FULL}")
    assert await users.device("user") == "gpu-3-full"
    async with Watcher(cluster) as history:
        await own.has(gpus(4, "G200"))  # the same devices under another attribute disturb nobody
        await eventually(lambda: _all_called(own, "G200"))
        await ready(cluster, POLICY)
        assert await users.device("user") == "gpu-3-full"
        await own.has(gpus(3, "G200"))
        await eventually(lambda: _offer(own, 12, 9))
        await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
        await users.end("user")
        await ready(cluster, POLICY)
        assert await _offer(own, 9, 9)
    assert history.most_unavailable() == 1
    assert nothing_is_ever_sold_twice(history, own) == 1


async def _offer(own: Site, *devices: int) -> bool:
    pools = [usable(await own.slices(node)) for node in own.nodes]
    assert [None if pool is None else len(pool) for pool in pools] == list(devices)
    return True


async def _all_called(own: Site, product: str) -> bool:
    devices = [
        device for node in own.nodes for each in await own.slices(node) for device in each["spec"].get("devices", ())
    ]
    return {device["attributes"]["productName"]["string"] for device in devices} == {product}


async def test_odd_quantities_are_written_once(cluster: Cluster) -> None:
    odd = {"memory": "81559Mi", "copies": "7", "share": "3500m"}
    own = await site(cluster, gpus(2, memory="81559Mi", counters=odd), gpus(1, memory="80G"), live=False, resync=0.3)
    capacity = {"memory": {"default": "1e9", "min": "1M", "step": "1M"}}
    await own.gets(
        {**equal(3), "match": {"indexes": [0, 1]}}, equal(2, sharing={"mode": "Shared", "capacity": capacity})
    )
    await at_rest(cluster)
    slices = await own.slices()
    await looks_again(own.program)
    assert await own.slices() == slices
    assert len(await own.offers()) == 11


async def test_a_policy_that_is_deleted_takes_its_slices_along_when_they_are_free_or_leaves_them(
    cluster: Cluster,
) -> None:
    own = await site(cluster, gpus(4), live=False)
    for deletion in ("Revert", "Retain"):
        await apply(cluster, policy(POLICY, own.driver, equal(2), deletionPolicy=deletion))
        await ready(cluster, POLICY)
        good = await own.says()
        users = own.users()
        await users.ask(deletion.lower(), PART)
        assert await users.device(deletion.lower()) == "gpu-0-1of2"
        await cluster.client.delete(POLICIES, POLICY)
        if deletion == "Revert":
            await eventually(lambda: _blocked(own))
            assert await own.says() == good
            await users.end("revert")
        await cluster.gone(POLICIES, POLICY)
        await cluster.gone(NODE_STATES, own.nodes[0])
        assert await own.says() == ([] if deletion == "Revert" else good)
    assert await users.device("retain") == "gpu-0-1of2"


async def _blocked(own: Site) -> list[str]:
    record = await own.cluster.client.get(NODE_STATES, own.nodes[0])
    return [each["device"] for each in record["status"].get("blockers", ())]
