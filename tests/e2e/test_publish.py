"""A driver name that the operator owns: what is published for which GPUs, and what the scheduler makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from testbed.controlplane import ControlPlane, Shape
from tests.e2e import harness, rollout
from tests.e2e.harness import DRIVERS
from tests.e2e.publishing import FULL, PART, POLICY, gpus, profile, site
from tests.e2e.rollout import condition, equal, ready, stalled, whole

from gpupartition.kube import NODES
from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.harness import Cluster


async def test_of_two_devices_of_6_gi_that_share_8_gi_one_can_be_allocated(cluster: Cluster) -> None:
    six = profile("6g", "6Gi", {"memory": "6Gi"}, {"memory": "6Gi"})
    own = await site(cluster, gpus(1, memory="8Gi", counters={"memory": "8Gi"}, profiles=[six]))
    choices = {"profiles": ["6g"], "offerWhole": False}
    await own.gets({"name": "sixes", "match": {"all": True}, "type": "Choices", "choices": choices})
    counters, devices = (each["spec"] for each in await own.slices())
    assert counters["sharedCounters"] == [{"name": "gpu-0", "counters": {"memory": {"value": "8Gi"}}}]
    cost = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "6Gi"}}}]
    assert [(each["name"], each["consumesCounters"]) for each in devices["devices"]] == [
        ("gpu-0-6g-0", cost),
        ("gpu-0-6g-1", cost),
    ]
    users = own.users()
    await users.ask("first")
    assert await users.device("first") == "gpu-0-6g-0"
    await users.ask("second")
    await users.waits("second")
    await users.end("first")
    assert await users.device("second") == "gpu-0-6g-0"


async def test_twelve_gpus_take_two_slices_of_counters_and_are_one_pool(cluster: Cluster) -> None:
    own = await site(cluster, gpus(12))
    await own.gets(equal(2))
    slices = [each["spec"] for each in await own.slices()]
    assert [(len(each.get("sharedCounters", ())), len(each.get("devices", ()))) for each in slices] == [
        (8, 0),
        (4, 0),
        (0, 36),
    ]
    assert {each["pool"]["name"] for each in slices} == {f"{own.driver}/{own.nodes[0]}"}
    users = own.users()
    await users.ask("last-gpu", f"mine.index == 11 && {FULL}")
    assert await users.device("last-gpu") == "gpu-11-full"
    await users.ask("part-of-it", f"mine.index == 11 && {PART}")
    await users.waits("part-of-it")
    await users.ask("anywhere")
    assert await users.device("anywhere") == "gpu-0-1of2"


async def test_a_shared_part_gives_what_is_asked_in_steps_and_else_its_default(cluster: Cluster) -> None:
    memory = {"default": "10Gi", "min": "1Gi", "max": "30Gi", "step": "1Gi"}
    own = await site(cluster, gpus(1))
    await own.gets(equal(2, sharing={"mode": "Shared", "capacity": {"memory": memory}}))
    (devices,) = [each["spec"]["devices"] for each in await own.slices() if "devices" in each["spec"]]
    policies = [each["capacity"]["memory"]["requestPolicy"] for each in devices if each["allowMultipleAllocations"]]
    bounds = {"min": "1Gi", "max": "30Gi", "step": "1Gi"}
    assert policies == [{"default": "10Gi", "validRange": bounds}] * 3

    users = own.users()
    await users.ask("modest", PART, capacity={"memory": "1500Mi"})
    await users.ask("silent", PART)
    await users.ask("greedy", PART, capacity={"memory": "31Gi"})
    given = {name: await users.allocation(name) for name in ("modest", "silent")}
    assert {each["device"] for each in given.values()} == {"gpu-0-1of2"}
    consumed = {name: each["consumedCapacity"] for name, each in given.items()}
    assert consumed == {"modest": {"memory": "2Gi"}, "silent": {"memory": "10Gi"}}
    await users.waits("greedy")
    await users.ask("rest", PART, capacity={"memory": "28Gi"})
    assert await users.device("rest") == "gpu-0-1of2"
    await users.ask("next", PART, capacity={"memory": "1Gi"})
    assert await users.device("next") == "gpu-0-2of2"


async def test_gpus_of_one_node_get_layouts_by_product_and_by_number(cluster: Cluster) -> None:
    own = await site(cluster, gpus(2, "H100"), gpus(3, "L4", "24Gi"))
    await own.gets(
        {**equal(4), "match": {"products": ["H100"]}, "equal": {"parts": 4, "offerWhole": False}},
        {**equal(2), "match": {"indexes": [2]}},
        whole(),
    )
    quarters = [f"gpu-{gpu}-{part}of4" for gpu in (0, 1) for part in (1, 2, 3, 4)]
    halves = ["gpu-2-1of2", "gpu-2-2of2", "gpu-2-full"]
    assert await own.offers() == [*quarters, *halves, "gpu-3-full", "gpu-4-full"]
    users = own.users()
    await users.ask("l4", "mine.productName == 'L4'")
    assert await users.device("l4") == "gpu-2-1of2"
    await users.ask("whole-l4", f"mine.productName == 'L4' && {FULL}")
    assert await users.device("whole-l4") == "gpu-3-full"
    await users.ask("whole-h100", f"mine.productName == 'H100' && {FULL}")
    await users.waits("whole-h100")


async def test_choices_are_offered_in_every_place_and_first_where_they_strand_least(cluster: Cluster) -> None:
    slots = {f"slot{number}": "1" for number in range(3)}
    one = profile("1g", "10Gi", *({slot: "1"} for slot in slots))
    two = profile("2g", "20Gi", {"slot0": "1", "slot1": "1"})
    own = await site(cluster, gpus(1, memory="30Gi", counters=slots, profiles=[one, two]))
    choices = {"profiles": ["2g", "1g"]}
    await own.gets({"name": "free", "match": {"all": True}, "type": "Choices", "choices": choices})
    assert await own.offers() == ["gpu-0-1g-2", "gpu-0-1g-0", "gpu-0-1g-1", "gpu-0-2g-0", "gpu-0-full"]
    users = own.users()
    await users.ask("small", "mine.profile == '1g'")
    assert await users.device("small") == "gpu-0-1g-2"
    await users.ask("large", "mine.profile == '2g'")
    assert await users.device("large") == "gpu-0-2g-0"
    await users.ask("another", "mine.profile == '1g'")
    await users.waits("another")
    await users.end("large")
    assert await users.device("another") == "gpu-0-1g-0"
    await users.end("small")
    await users.ask("whole", FULL)
    await users.waits("whole")
    await users.end("another")
    assert await users.device("whole") == "gpu-0-full"


async def test_labels_say_which_gpus_a_node_has_and_a_node_without_them_is_named(cluster: Cluster) -> None:
    keys = {key: f"nvidia.com/gpu.{key}" for key in ("count", "product", "memory")}
    own = await site(cluster, inventory={"nodeLabels": keys}, nodes=0)
    labels = {keys["product"]: "A100", keys["memory"]: "40960"}
    (four,) = await cluster.nodes(1, pool=own.driver, labels={**labels, keys["count"]: "4"})
    (nameless,) = await cluster.nodes(1, pool=own.driver, labels=labels)
    await own.want(equal(2))
    refused = await stalled(cluster, POLICY, "NoInventory")
    message = condition(refused, "Accepted")["message"]
    assert f"node {nameless}: its label {keys['count']} is missing" in message
    await cluster.client.patch(NODES, nameless, {"metadata": {"labels": {keys["count"]: "2"}}})
    await ready(cluster, POLICY)
    assert [len(await own.offers(node)) for node in (four, nameless)] == [12, 6]
    (devices,) = [each["spec"]["devices"] for each in await own.slices(four) if "devices" in each["spec"]]
    assert devices[0]["capacity"] == {"memory": {"value": "20Gi"}}
    assert devices[0]["attributes"]["productName"] == {"string": "A100"}


async def test_a_driver_name_under_which_somebody_else_publishes_is_refused(cluster: Cluster) -> None:
    base = await cluster.example_driver()
    (node,) = await cluster.nodes(1, pool=base.pool)
    theirs = await cluster.published(8, node=node, driver=base.driver)
    await rollout.operator(cluster)
    inventory = {"gpus": [gpus(8)]}
    spec = {"type": "Publish", "publish": {"driverName": base.driver, "inventory": inventory}}
    body = {"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": {"name": cluster.name}, "spec": spec}
    await rollout.apply(cluster, body)
    await rollout.apply(cluster, rollout.policy(cluster.name, cluster.name, equal(2)))
    policy = await stalled(cluster, cluster.name, "DriverNameTaken")
    assert theirs[0]["metadata"]["name"] in condition(policy, "Accepted")["message"]
    assert len(await cluster.published(8, node=node, driver=base.driver)) == len(theirs)


@pytest.mark.newest
@pytest.mark.parametrize(("gates", "kept"), [("DRAOptionalNodeOperations=true", True), ("", False)])
async def test_whoever_needs_no_node_plugin_says_so_where_the_server_keeps_it(
    tmp_path: Path, gates: str, kept: bool
) -> None:
    shape = Shape(nodes=0, feature_gates=gates)
    async with ControlPlane(tmp_path, shape=shape) as control_plane, harness.cluster(control_plane, "skip") as cluster:
        own = await site(cluster, gpus(2))
        skip = {"spec": {"publish": {"nodeOperations": "Skip"}}}
        await cluster.client.patch(DRIVERS, own.driver, skip)
        await own.want(equal(2))
        if not kept:
            refused = await stalled(cluster, POLICY, "FeatureGateOff")
            assert "DRAOptionalNodeOperations" in condition(refused, "Accepted")["message"]
            plugin = {"spec": {"publish": {"nodeOperations": "Plugin"}}}
            await cluster.client.patch(DRIVERS, own.driver, plugin)
        await ready(cluster, POLICY)
        skipped = {tuple(each["spec"].get("skipNodeOperations", ())) for each in await own.slices()}
        assert skipped == {("*",) if kept else ()}
