"""Nodes that move between racks, and leaders that go: pools are emptied, handed over, and never collected under a user."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from testbed import nodes as simulated
from tests.e2e.harness import NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.publishing import POLICY
from tests.e2e.racks import RACK, Racks, racks
from tests.e2e.rollout import apply, operator, policy, ready, records, says, whole
from tests.e2e.shell import gpupartition

from gpupartition.kube import NODES, RESOURCE_SLICES

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object


async def label(own: Racks, node: str, rack: str | None) -> None:
    await own.cluster.client.patch(NODES, node, {"metadata": {"labels": {RACK: rack}}})


async def are_published(own: Racks, want: dict[str, set[str]]) -> bool:
    """Whether these nodes have devices of their own in the pools of these racks, and no others."""
    found: dict[str, set[str]] = {}
    for each in (await own.cluster.client.list(RESOURCE_SLICES)).items:
        if each["spec"]["driver"] == own.driver:
            nodes = {device["nodeName"] for device in each["spec"].get("devices", ()) if "nodeName" in device}
            found.setdefault(each["spec"]["pool"]["name"].partition("/")[2], set()).update(nodes)
    assert {rack: nodes for rack, nodes in found.items() if nodes} == want, found
    return True


async def come_to(own: Racks, **want: set[str]) -> None:
    names = dict(zip(("here", "there"), own.racks, strict=False))
    await eventually(partial(are_published, own, {names[rack]: nodes for rack, nodes in want.items()}), within=60)


async def forgotten(own: Racks) -> None:
    """Delete the policy, and wait until nothing is on record. What is published stays."""
    await own.cluster.client.delete(POLICIES, POLICY)
    await own.cluster.gone(POLICIES, POLICY)

    async def nothing() -> bool:
        return not await records(own.cluster)

    await eventually(nothing)


async def is_told(own: Racks, node: str, phase: str, reason: str) -> bool:
    record = (await own.cluster.client.get(NODE_STATES, node))["status"]
    assert (record["phase"], record["reason"]) == (phase, reason), record
    body = await own.cluster.client.get(POLICIES, POLICY)
    assert says(body, "Ready")[0] == "False", body["status"]
    return True


async def test_a_pool_whose_leader_is_deleted_while_the_others_move_away_is_taken_away(cluster: Cluster) -> None:
    own = await racks(cluster, each=2, count=2)
    leads, moves, *stay = own.nodes
    await own.gets(whole())
    await own.program.kill()
    await label(own, moves, own.racks[1])
    await cluster.client.delete(NODES, leads)
    await operator(cluster)
    await come_to(own, there={moves, *stay})
    await ready(cluster, POLICY)


async def test_nodes_that_moved_while_there_was_no_policy_join_their_new_rack_under_the_next_one(
    cluster: Cluster,
) -> None:
    own = await racks(cluster, each=2, count=2)
    await own.gets(whole())
    await forgotten(own)
    for node in own.nodes[:2]:
        await label(own, node, own.racks[1])
    await own.want(whole())
    await come_to(own, there=set(own.nodes))
    await ready(cluster, POLICY)


async def test_a_leader_that_leaves_every_rack_hands_its_pool_over_and_is_not_called_up_to_date(
    cluster: Cluster,
) -> None:
    own = await racks(cluster, each=2)
    leads, follows = own.nodes
    await own.gets(whole())
    await label(own, leads, "Rack_A")
    await come_to(own, here={follows})
    await eventually(partial(is_told, own, leads, "Skipped", "NoGroup"))


async def test_a_leader_that_waits_to_join_another_rack_is_not_called_up_to_date(cluster: Cluster) -> None:
    own = await racks(cluster, each=2, count=2)
    leads, follows, *others = own.nodes
    await own.gets(whole())
    user = own.users(leads)
    await user.ask("user", "mine.profile == 'full'")
    had = await user.device("user")
    await label(own, leads, own.racks[1])
    await eventually(partial(is_told, own, leads, "Pending", "NotInGroup"))
    await come_to(own, here={leads, follows}, there=set(others))
    assert await user.device("user") == had
    await user.end("user")
    await come_to(own, here={follows}, there={leads, *others})
    await ready(cluster, POLICY)


async def test_the_only_node_of_a_rack_that_waits_to_leave_it_is_not_verified(cluster: Cluster) -> None:
    own = await racks(cluster, each=1, count=2)
    leaves, other = own.nodes
    await own.gets(whole())
    user = own.users(leaves)
    await user.ask("user", "mine.profile == 'full'")
    await user.device("user")
    await label(own, leaves, own.racks[1])

    async def retires() -> bool:
        record = (await cluster.client.get(NODE_STATES, leaves))["status"]
        assert record["reason"] == "Retiring", record
        body = await cluster.client.get(POLICIES, POLICY)
        assert says(body, "Ready")[0] == "False", body["status"]
        return True

    await eventually(retires)
    await user.end("user")
    await come_to(own, there={leaves, other})
    await ready(cluster, POLICY)


async def test_what_is_published_for_a_rack_is_counted_once_in_a_plan(cluster: Cluster) -> None:
    own = await racks(cluster, each=2)
    await own.gets(whole())
    users = own.users_anywhere()
    for number in range(5):
        await users.ask(f"user-{number}", "mine.profile == 'full'")

    async def one_waits() -> bool:
        body = policy(POLICY, own.driver, whole())
        seen = await gpupartition(cluster, "plan", "-f", "-", "-o", "json", stdin=body)
        waits = [each for each in seen.data["fit"]["pending"] if each["namespace"] == own.namespace]
        assert [each["now"]["fits"] for each in waits] == ["DoesNotFit"], waits
        assert "invalid" not in waits[0]["now"]["why"], waits
        return True

    await eventually(one_waits)


async def test_a_revert_takes_away_what_was_published_for_a_rack_whoever_led_it(cluster: Cluster) -> None:
    own = await racks(cluster, each=3)
    gone, *left = own.nodes
    await apply(cluster, policy(POLICY, own.driver, whole(), deletionPolicy="Revert"))
    await ready(cluster, POLICY)
    await cluster.client.delete(NODES, gone)
    await come_to(own, here=set(left))
    await ready(cluster, POLICY)
    await cluster.client.delete(POLICIES, POLICY)
    await cluster.gone(POLICIES, POLICY)
    await come_to(own)


async def test_slices_belong_to_the_nodes_that_are_there_now(cluster: Cluster) -> None:
    own = await racks(cluster, each=2)
    leads, again = own.nodes
    rack = own.in_rack(own.racks[0])
    async with Watcher(cluster) as history:
        await own.gets(whole())
        before = await cluster.client.get(NODES, again)
        await cluster.client.delete(NODES, again)
        body = simulated.node(again, zone=simulated.ZONES[0], labels=before["metadata"]["labels"])
        uid = (await cluster.client.create(NODES, body))["metadata"]["uid"]

        async def owned() -> bool:
            for each in await rack.slices():
                assert uid in {owner["uid"] for owner in each["metadata"]["ownerReferences"]}
            return True

        await eventually(owned)
        await ready(cluster, POLICY)
        user = own.users(again)
        await user.ask("user", "mine.profile == 'full'")
        had = await user.device("user")
        await cluster.client.delete(NODES, leads)
        await come_to(own, here={again})
        await ready(cluster, POLICY)
        assert had in await rack.offers()
    assert not [each for each in history.changes(RESOURCE_SLICES) if each.what == "DELETED"]


async def loses_a_slice(own: Racks) -> list[Object]:
    """Delete the devices of the first rack, and return what its slices said."""
    rack = own.in_rack(own.racks[0])
    said = await rack.says()
    await own.cluster.client.delete(RESOURCE_SLICES, (await rack.slices())[-1]["metadata"]["name"])
    return said


async def test_a_pool_that_lost_a_slice_while_its_leader_left_is_changed_under_its_users(cluster: Cluster) -> None:
    own = await racks(cluster, each=2, count=2)
    leads, follows, *others = own.nodes
    await own.gets(whole())
    user = own.users(follows)
    await user.ask("user", "mine.profile == 'full'")
    had = await user.device("user")
    await own.program.kill()
    await label(own, leads, own.racks[1])
    await loses_a_slice(own)
    await operator(cluster)
    await come_to(own, here={follows}, there={leads, *others})
    await ready(cluster, POLICY)
    assert had in await own.in_rack(own.racks[0]).offers()
    assert await user.device("user") == had


async def test_a_pool_is_handed_over_and_mended_while_nothing_may_begin(cluster: Cluster) -> None:
    own = await racks(cluster, each=2, count=2)
    leads, follows, *others = own.nodes
    await own.gets(whole())
    await own.want(whole(), paused=True)
    await label(own, leads, own.racks[1])
    await eventually(partial(is_told, own, leads, "Pending", "NotInGroup"))
    for _ in range(2):
        said = await loses_a_slice(own)
        await own.in_rack(own.racks[0]).says_again(said)
    await own.want(whole())
    await come_to(own, here={follows}, there={leads, *others})
    await ready(cluster, POLICY)
