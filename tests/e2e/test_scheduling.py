"""What the scheduler makes of layouts that were rolled out: who gets which device, who has to wait, and for what."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from testbed.drivers.example import Settings, draw
from tests.e2e.claims import Users
from tests.e2e.rollout import apply, driver, equal, operator, policy, ready

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

FULL: Final = "mine.?full.orValue(false)"
PARTITION: Final = "has(mine.partition)"
FIRST_OF_GPU_6: Final = "mine.index == 6 && mine.?partition.orValue(-1) == 0"
SHARED: Final = {"mode": "Shared"}
HALF_OF_A_HALF: Final = {"memory": "20Gi", "compute": "25"}


def on_gpu(index: int, cel: str) -> str:
    """Restrict an expression to one GPU."""
    return f"mine.index == {index} && {cel}"


async def halves(cluster: Cluster, *, shared: bool = False) -> Users:
    """Roll halves over one node with eight GPUs; returns its users."""
    base = await cluster.example_driver()
    (node,) = await cluster.nodes(1, pool=base.pool)
    await cluster.published(8, node=node, driver=base.driver)
    layout = equal(2, sharing=SHARED) if shared else equal(2)
    name = await driver(cluster, base)
    await operator(cluster)
    await apply(cluster, policy("halves", name, layout))
    await ready(cluster, "halves")
    slices = await cluster.published(24, node=node, driver=base.driver)
    parts = [each["spec"].get("sharedCounters") or each["spec"]["devices"] for each in slices]
    drawn = draw(Settings(node=node, devices=8, partitions=2, shared=shared))
    assert parts == [drawn[0]["sharedCounters"], drawn[1]["devices"]]
    return Users(cluster=cluster, namespace=await cluster.namespace(), driver=base.driver, node=node)


async def test_halves_of_eight_gpus_are_eight_counter_sets_and_twenty_four_devices(cluster: Cluster) -> None:
    users = await halves(cluster)
    counters, devices = (each["spec"] for each in await cluster.published(24, node=users.node, driver=users.driver))
    gpu = {"memory": {"value": "80Gi"}, "compute": {"value": "100"}}
    half = {"memory": {"value": "40Gi"}, "compute": {"value": "50"}}
    assert counters["sharedCounters"] == [{"name": f"gpu-{n}-counters", "counters": gpu} for n in range(8)]
    assert {each["name"]: each["capacity"] for each in devices["devices"]} == {
        name: size
        for n in range(8)
        for name, size in (
            (f"gpu-{n}-partition-0", half),
            (f"gpu-{n}-partition-1", half),
            (f"gpu-{n}-full", gpu),
        )
    }
    for each in devices["devices"]:
        index = each["attributes"]["index"]["int"]
        cost = each["capacity"]
        assert each["consumesCounters"] == [{"counterSet": f"gpu-{index}-counters", "counters": cost}]

    # Whoever comes takes the first device that fits, and closes its GPU for all that does not fit beside it.
    await users.ask("by-attribute", FULL)
    assert await users.device("by-attribute") == "gpu-0-full"
    await users.ask("a-part", PARTITION)
    assert await users.device("a-part") == "gpu-1-partition-0"
    await users.ask("by-size", f"device.capacity['{users.driver}'].memory.compareTo(quantity('80Gi')) >= 0")
    assert await users.device("by-size") == "gpu-2-full"


async def test_a_gpu_is_sold_whole_or_in_parts_and_never_both(cluster: Cluster) -> None:
    users = await halves(cluster)
    await users.ask("whole", on_gpu(7, FULL))
    assert await users.device("whole") == "gpu-7-full"
    await users.ask("part", on_gpu(7, PARTITION))
    await users.waits("part")
    await users.end("whole")
    assert await users.device("part") == "gpu-7-partition-0"

    await users.ask("whole-again", on_gpu(7, FULL))
    await users.waits("whole-again")
    await users.ask("other-part", on_gpu(7, PARTITION))
    assert await users.device("other-part") == "gpu-7-partition-1"
    await users.end("part")
    await users.end("other-part")
    assert await users.device("whole-again") == "gpu-7-full"


async def test_a_shared_half_serves_two_users_and_the_third_waits(cluster: Cluster) -> None:
    users = await halves(cluster, shared=True)
    for name in ("one", "two"):
        await users.ask(name, FIRST_OF_GPU_6, capacity=HALF_OF_A_HALF)
    one, two = await users.allocation("one"), await users.allocation("two")
    assert one["device"] == two["device"] == "gpu-6-partition-0"
    assert one["shareID"] != two["shareID"]
    assert one["consumedCapacity"] == two["consumedCapacity"] == HALF_OF_A_HALF
    await users.ask("three", FIRST_OF_GPU_6, capacity=HALF_OF_A_HALF)
    await users.waits("three")
    await users.ask("whole", on_gpu(6, FULL))
    await users.waits("whole")
    await users.end("one")
    three = await users.allocation("three")
    assert (three["device"], three["consumedCapacity"]) == ("gpu-6-partition-0", HALF_OF_A_HALF)


async def test_an_exclusive_half_serves_one_user_who_has_all_of_it(cluster: Cluster) -> None:
    users = await halves(cluster)
    await users.ask("one", FIRST_OF_GPU_6, capacity=HALF_OF_A_HALF)
    one = await users.allocation("one")
    assert one["device"] == "gpu-6-partition-0"
    assert "consumedCapacity" not in one
    assert "shareID" not in one
    await users.ask("two", FIRST_OF_GPU_6, capacity=HALF_OF_A_HALF)
    await users.waits("two")
    await users.end("one")
    assert await users.device("two") == "gpu-6-partition-0"


async def test_eight_gpus_serve_thirty_two_users_in_sixteen_shared_halves(cluster: Cluster) -> None:
    users = await halves(cluster, shared=True)
    names = [f"user-{number:02}" for number in range(1, 33)]
    given = []
    for (
        name
    ) in names:  # one after another: of a burst the scheduler was seen to leave a last pod unlooked-at for minutes
        await users.ask(name, PARTITION, capacity=HALF_OF_A_HALF)
        given.append(await users.allocation(name))
    on_device = Counter(each["device"] for each in given)
    assert on_device == {f"gpu-{gpu}-partition-{part}": 2 for gpu in range(8) for part in range(2)}
    shares = defaultdict(set)
    for each in given:
        shares[each["device"]].add(each["shareID"])
        assert each["consumedCapacity"] == HALF_OF_A_HALF
    assert {len(ids) for ids in shares.values()} == {2}
    await users.ask("one-too-many", PARTITION, capacity=HALF_OF_A_HALF)
    await users.waits("one-too-many")
    await users.end(names[0])
    assert await users.device("one-too-many") == given[0]["device"]
