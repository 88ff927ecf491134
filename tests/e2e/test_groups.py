"""Devices that span nodes: the GPUs of a group of nodes are in one pool, and the real scheduler gives out one or the other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.e2e.harness import eventually
from tests.e2e.history import Watcher
from tests.e2e.publishing import POLICY, nothing_is_ever_sold_twice
from tests.e2e.racks import RACK, SPAN, racks
from tests.e2e.rollout import equal, operator, policy, ready, whole
from tests.e2e.shell import PLANNER, account_of, gpupartition

from gpupartition.domain.groups import node_key
from gpupartition.kinds import NODE_STATES
from gpupartition.kube import NODES, PODS, RESOURCE_SLICES

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster
    from tests.e2e.publishing import Site
    from tests.e2e.racks import Racks


async def node_of(own: Racks, pod: str) -> str:
    await own.cluster.running(pod, namespace=own.namespace)
    return str((await own.cluster.client.get(PODS, pod, namespace=own.namespace))["spec"]["nodeName"])


async def works_on(own: Racks, claim: str, *pods: str) -> None:
    """Make pods that share a claim, each on a node of its own."""
    apart = {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"job": claim}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
    for pod in pods:
        spec = {
            "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpus"}]}}],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": claim}],
            "affinity": {"podAntiAffinity": apart},
        }
        await own.cluster.pod(pod, namespace=own.namespace, spec=spec, labels={"job": claim})


async def test_a_device_over_two_nodes_and_the_devices_of_each_exclude_one_another(cluster: Cluster) -> None:
    own = await racks(cluster, each=2)
    rack, users = own.in_rack(own.racks[0]), own.users_anywhere()
    async with Watcher(cluster) as history:
        await own.gets(equal(2))
        await users.ask("job", SPAN.format(2))
        assert await users.device("job") == (await rack.offers())[-1]
        first = await node_of(own, "job")
        for node in own.nodes:
            single = own.users(node)
            await single.ask(f"half-on-{node}", "mine.profile == '1of2'")
            await single.waits(f"half-on-{node}")
        await works_on(own, "job", "worker-1", "worker-2", "worker-3")
        placed = {first, *[await node_of(own, pod) for pod in ("worker-1", "worker-2")]}
        assert placed == set(own.nodes)
        with pytest.raises(AssertionError):
            await node_of(own, "worker-3")

        for pod in ("worker-1", "worker-2", "worker-3"):
            await cluster.client.delete(PODS, pod, namespace=own.namespace)
            await cluster.gone(PODS, pod, namespace=own.namespace)
        await users.end("job")
        for node in own.nodes:
            assert (await users.device(f"half-on-{node}")).endswith(node_key(node))
            assert await node_of(own, f"half-on-{node}") == node
        await users.ask("next-job", SPAN.format(2))
        await users.waits("next-job")
        for node in own.nodes:
            await users.end(f"half-on-{node}")
        await users.device("next-job")
    assert nothing_is_ever_sold_twice(history, rack) == 2


async def test_of_four_nodes_one_job_gets_all_or_two_get_half_of_them_each(cluster: Cluster) -> None:
    own = await racks(cluster, each=4, sizes=(2, 4))
    rack, users = own.in_rack(own.racks[0]), own.users_anywhere()
    async with Watcher(cluster) as history:
        await own.gets(whole())
        assert [name.partition("-")[0] for name in await rack.offers()] == ["gpu"] * 8 + ["2nodes"] * 2 + ["4nodes"]
        await users.ask("all", SPAN.format(4))
        await users.device("all")
        for job in ("one", "other", "third"):
            await users.ask(job, SPAN.format(2))
            await users.waits(job)
        await users.end("all")
        given = {await users.device(job) for job in await some_that_run(own, "one", "other", "third", count=2)}
        assert given == set((await rack.offers())[8:10])
    assert nothing_is_ever_sold_twice(history, rack) == 2


async def test_of_eight_nodes_a_job_over_all_and_all_smaller_ones_exclude_one_another(cluster: Cluster) -> None:
    own = await racks(cluster, each=8, sizes=(2, 4, 8))
    rack, users, last = own.in_rack(own.racks[0]), own.users_anywhere(), own.users(own.nodes[-1])
    async with Watcher(cluster) as history:
        await own.gets(whole())
        names = await rack.offers()
        assert [name.partition("-")[0] for name in names] == ["gpu"] * 16 + ["2nodes"] * 4 + ["4nodes"] * 2 + ["8nodes"]
        await users.ask("all", SPAN.format(8))
        assert await users.device("all") == names[-1]
        await last.ask("single", "mine.profile == 'full'")
        await last.waits("single")
        for size in (2, 4):
            await users.ask(f"over-{size}", SPAN.format(size))
            await users.waits(f"over-{size}")
        for waiting in ("over-2", "over-4"):
            await cluster.client.delete(PODS, waiting, namespace=own.namespace)
        await users.end("all")

        assert (await last.device("single")).endswith(node_key(own.nodes[-1]))
        await users.ask("all-again", SPAN.format(8))
        await users.waits("all-again")
        for number in range(2):
            await users.ask(f"half-{number}", SPAN.format(4))
        (runs,) = await some_that_run(own, "half-0", "half-1", count=1)
        assert await users.device(runs) == names[20]
        for number in range(2):
            await users.ask(f"pair-{number}", SPAN.format(2))
        (runs,) = await some_that_run(own, "pair-0", "pair-1", count=1)
        assert await users.device(runs) == names[18]
        await users.waits("all-again")
    assert nothing_is_ever_sold_twice(history, rack) == 3
    tokens = {each.body["status"].get("token") for each in history.changes(NODE_STATES) if each.name != own.nodes[0]}
    assert tokens <= {None, ""}, "a node that only follows was admitted"


async def some_that_run(own: Racks, *pods: str, count: int) -> list[str]:
    """Wait until so many of these run, and return them."""
    running: list[str] = []

    async def enough() -> bool:
        running[:] = [
            pod
            for pod in pods
            if (await own.cluster.client.get(PODS, pod, namespace=own.namespace))["status"]["phase"] == "Running"
        ]
        return len(running) == count

    await eventually(enough)
    return running


async def test_a_job_over_two_nodes_is_foretold_to_fit_and_then_drawn_on_both(cluster: Cluster) -> None:
    own = await racks(cluster, each=2)
    users, planner = own.users_anywhere(), await account_of(cluster, PLANNER)
    jobs = ("one", "other")
    for job in jobs:
        await users.ask(job, SPAN.format(2))
    body = policy(POLICY, own.driver, whole())
    plan = await gpupartition(cluster, "plan", "-f", "-", "-o", "json", stdin=body, kubeconfig=planner)
    told = [each["after"] for each in plan.data["fit"]["pending"] if each["namespace"] == own.namespace]
    assert sorted(each["fits"] for each in told) == ["DoesNotFit", "Fits"]
    foretold = [(each["pool"], each["device"]) for some in told for each in some["devices"]]

    await own.gets(whole())
    printed = await gpupartition(cluster, "classes", POLICY, kubeconfig=planner)
    assert printed.code == 0, printed.errors
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(printed.out)]
    assert names == [f"whole.{own.driver}", f"2nodes.{own.driver}"]
    (runs,) = await some_that_run(own, *jobs, count=1)
    given = await users.allocation(runs)
    assert [(given["pool"], given["device"])] == foretold
    await users.waits(*(job for job in jobs if job != runs))
    for node in own.nodes:
        seen = await gpupartition(cluster, "map", node, "-o", "json", kubeconfig=planner)
        (drawn,) = [each for each in seen.data["pools"] if each["driver"] == own.driver]
        held = [part for gpu in drawn["gpus"] for part in gpu["parts"]]
        assert {(part["device"], part["use"]) for part in held} == {(given["device"], "used")}
        assert len(held) == 2


async def test_a_rack_changes_under_its_users_and_the_operator_may_die_meanwhile(cluster: Cluster) -> None:
    own = await racks(cluster, each=2)
    rack, users = own.in_rack(own.racks[0]), own.users_anywhere()
    async with Watcher(cluster) as history:
        await own.gets(equal(2))
        await own.users(own.nodes[0]).ask("half", "mine.profile == '1of2'")
        had = await users.device("half")
        former = await generations(rack)
        await own.want(equal(4))
        await eventually(partial(begun, rack, former))
        await own.program.kill()
        await operator(cluster)
        await ready(cluster, POLICY)
        await history.caught_up()
        before = len(history.changes(NODE_STATES, own.nodes[1]))
        assert await users.device("half") == had
        await eventually(partial(are_retired, rack, had))
        await own.users(own.nodes[1]).ask("quarter", "mine.profile == '1of4'")
        await users.device("quarter")
        await users.end("half")
        await eventually(partial(are_retired, rack))
        assert all("of2" not in name for name in await rack.offers())
    assert nothing_is_ever_sold_twice(history, rack) == 2
    after = history.changes(NODE_STATES, own.nodes[1])[before:]
    assert {each.body["status"]["phase"] for each in after} <= {"UpToDate"}, "it has what is wanted, whoever has gone"


async def generations(rack: Site) -> set[int]:
    return {each["spec"]["pool"]["generation"] for each in await rack.slices()}


async def begun(rack: Site, former: set[int]) -> bool:
    """Some of the slices are new, or all: one follows the other at once."""
    return not await generations(rack) <= former


async def are_retired(rack: Site, *devices: str) -> bool:
    assert await rack.retired() == list(devices)
    return True


async def test_a_rack_that_loses_the_node_that_leads_it_goes_on_with_the_others(cluster: Cluster) -> None:
    own = await racks(cluster, each=3)
    rack, users = own.in_rack(own.racks[0]), own.users_anywhere()
    gone, *left = own.nodes
    async with Watcher(cluster) as history:
        await own.gets(equal(2))
        await own.users(left[0]).ask("half", "mine.profile == '1of2'")
        had = await users.device("half")
        await cluster.client.delete(NODES, gone)

        async def without() -> bool:
            keys = {name.rpartition("-")[2] for name in await rack.offers() if name.startswith("gpu-")}
            assert keys == {node_key(node) for node in left}
            return True

        await eventually(without)
        await ready(cluster, POLICY)
        assert await users.device("half") == had
        await eventually(partial(are_retired, rack))
        await users.ask("job", SPAN.format(2))
        await users.waits("job")
        await users.end("half")
        await users.device("job")
    assert nothing_is_ever_sold_twice(history, rack) >= 1


async def test_a_node_moves_to_another_rack_when_nobody_has_a_device_of_it_any_more(cluster: Cluster) -> None:
    own = await racks(cluster, each=2, count=2)
    users, (_, moves, *_) = own.users_anywhere(), own.nodes
    there, here = (own.in_rack(rack) for rack in own.racks)
    async with Watcher(cluster) as history:
        await own.gets(whole())
        await own.users(moves).ask("user", "mine.profile == 'full'")
        had = await users.device("user")
        await cluster.client.patch(NODES, moves, {"metadata": {"labels": {RACK: own.racks[1]}}})

        async def retired() -> bool:
            assert await there.retired() == [had]
            record = (await cluster.client.get(NODE_STATES, moves))["status"]
            assert (record["phase"], record["reason"]) == ("Pending", "NotInGroup"), record
            return True

        await eventually(retired)
        assert not any(name.endswith(node_key(moves)) for name in await here.offers())
        await users.end("user")

        async def moved() -> bool:
            assert sum(name.endswith(node_key(moves)) for name in await here.offers()) == 2
            return True

        await eventually(moved)
        await ready(cluster, POLICY)
        await own.users(moves).ask("next", "mine.profile == 'full'")
        assert (await users.allocation("next"))["pool"] == here.pool_name()
    for now in history.instants():
        pools = {
            each["spec"]["pool"]["name"]
            for each in now.objects(RESOURCE_SLICES)
            if each["spec"]["driver"] == own.driver
            and any(device.get("nodeName") == moves for device in each["spec"].get("devices", ()))
        }
        assert len(pools) <= 1, pools
