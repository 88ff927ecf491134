"""A driver name that the operator owns: what it publishes for which GPUs, what the scheduler makes of it, and what it never lets be seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from testbed.controlplane import ControlPlane, Shape
from tests.e2e import harness
from tests.e2e.claims import Users, device_class
from tests.e2e.harness import NODE_STATES, eventually
from tests.e2e.rollout import (
    Watcher,
    annotate,
    apply,
    at_rest,
    condition,
    equal,
    operator,
    policy,
    reaches,
    ready,
    said,
    stalled,
    whole,
)

from gpupartition.domain import quantity
from gpupartition.kube import DEVICE_TAINT_RULES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.e2e.harness import Cluster

Object = dict[str, Any]

POLICY: Final = "own"
WAIT: Final = {"drain": {"mode": "Wait"}}
FULL: Final = "mine.profile == 'full'"
PART: Final = "mine.profile != 'full'"


def gpus(count: int, product: str = "H100", memory: str = "80Gi", **more: Any) -> Object:
    """Equal GPUs of an inventory."""
    return {"count": count, "product": product, "memory": memory, **more}


def profile(name: str, memory: str, *placements: Mapping[str, str]) -> Object:
    """A partition of an inventory: what it offers, and what it takes at each of its placements."""
    return {"name": name, "capacity": {"memory": memory}, "placements": [{"counters": dict(p)} for p in placements]}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A driver name that the operator owns, with nodes, a namespace and one policy of this test."""

    cluster: Cluster
    driver: str
    namespace: str
    nodes: tuple[str, ...] = ()

    async def want(self, *layouts: Object, **rollout: Any) -> None:
        """Apply the policy."""
        await apply(self.cluster, policy(POLICY, self.driver, *layouts, rollout=rollout))

    async def gets(self, *layouts: Object, **rollout: Any) -> None:
        """Apply the policy, and wait until every node is verified."""
        await self.want(*layouts, **rollout)
        await ready(self.cluster, POLICY)

    async def slices(self, node: str = "") -> list[Object]:
        """The slices of a node (the first), in the order in which the scheduler reads them."""
        selector = f"spec.driver={self.driver},spec.nodeName={node or self.nodes[0]}"
        found = (await self.cluster.client.list(RESOURCE_SLICES, field_selector=selector)).items
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    async def offers(self, node: str = "") -> list[str]:
        """The names of the devices that can be allocated from a node (the first), in the scheduler's order of preference."""
        pool = usable(await self.slices(node))
        assert pool is not None
        return [each["name"] for each in pool]

    def users(self, node: str = "") -> Users:
        """Users of a node's devices (the first's)."""
        return Users(cluster=self.cluster, namespace=self.namespace, driver=self.driver, node=node or self.nodes[0])


async def site(
    cluster: Cluster, *groups: Object, nodes: int = 1, inventory: Object | None = None, **seconds: float
) -> Site:
    """Make nodes with these GPUs, a driver name for them, and an operator that waits for so many seconds."""
    await operator(cluster, **seconds)
    return await without_operator(cluster, *groups, nodes=nodes, inventory=inventory)


async def without_operator(cluster: Cluster, *groups: Object, nodes: int = 1, inventory: Object | None = None) -> Site:
    """Make nodes with these GPUs, and a driver name for them."""
    name = f"{cluster.name}.publish.example"
    await device_class(cluster, name)
    spec = {
        "type": "Publish",
        "publish": {"driverName": name, "inventory": inventory or {"gpus": list(groups)}},
        "maxUnavailable": "100%",
    }
    await apply(
        cluster,
        {"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": {"name": name}, "spec": spec},
    )
    return Site(
        cluster=cluster,
        driver=name,
        namespace=await cluster.namespace(),
        nodes=tuple(await cluster.nodes(nodes, pool=name)) if nodes else (),
    )


# ── pools, as the scheduler reads them ────────────────────────────────────────────────────────────────────────────────


def usable(slices: Iterable[Object]) -> list[Object] | None:
    """The devices of a pool that can be allocated; None while there is a pool and none of it can.

    As k8s.io/dynamic-resource-allocation has it: of the slices of the highest generation there must be as many as they say.
    """
    specs = [each["spec"] for each in sorted(slices, key=lambda each: str(each["metadata"]["name"]))]
    newest = max((each["pool"]["generation"] for each in specs), default=0)
    current = [each for each in specs if each["pool"]["generation"] == newest]
    counts = {each["pool"]["resourceSliceCount"] for each in current}
    assert len(counts) <= 1, "which of two counts holds depends on which slice was created first"
    if counts not in (set(), {len(current)}):
        return None
    return [device for each in current for device in each.get("devices", ())]


def shared_counters(slices: Iterable[Object]) -> dict[tuple[str, str], int]:
    """How much there is of each counter."""
    sets = [counters for each in slices for counters in each["spec"].get("sharedCounters", ())]
    return {(each["name"], name): amount for each in sets for name, amount in amounts(each["counters"])}


def costs(device: Object) -> Iterator[tuple[tuple[str, str], int]]:
    """How much a device takes of each counter."""
    for each in device["consumesCounters"]:
        yield from (((each["counterSet"], name), amount) for name, amount in amounts(each["counters"]))


def amounts(values: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, int]]:
    """Quantities as numbers."""
    yield from ((name, quantity.parse(each["value"])) for name, each in values.items())


def without_generation(slices: Iterable[Object]) -> list[Object]:
    """What slices say, whenever they say it."""
    specs = [each["spec"] for each in slices]
    return [{**each, "pool": {**each["pool"], "generation": 0}} for each in specs]


def states(history: Watcher, driver: str) -> list[tuple[str, ...] | None]:
    """What could be allocated from the one pool of a driver, in the order in which it changed; None: there was a pool, and nothing could."""
    seen: list[tuple[str, ...] | None] = []
    for now in history.instants():
        pool = usable(each for each in now.objects(RESOURCE_SLICES) if each["spec"]["driver"] == driver)
        state = None if pool is None else tuple(device["name"] for device in pool)
        if not seen or seen[-1] != state:
            seen.append(state)
    return seen


def nothing_is_ever_sold_twice(history: Watcher, driver: str) -> int:
    """Assert of every instant: what is allocated is published, unchanged, and fits into its GPU. Returns the most allocated at once."""
    offered: dict[str, Object] = {}
    total: dict[tuple[str, str], int] = {}
    given: dict[str, Object] = {}
    most = 0
    for now in history.instants():
        slices = [each for each in now.objects(RESOURCE_SLICES) if each["spec"]["driver"] == driver]
        pool = usable(slices)
        if pool is not None:
            offered, total = {each["name"]: each for each in pool}, shared_counters(slices)
        results = {
            claim["metadata"]["uid"]: result["device"]
            for claim in now.objects(RESOURCE_CLAIMS)
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            if result["driver"] == driver
        }
        given = {uid: given.get(uid) or offered[device] for uid, device in results.items()}
        spent: Counter[tuple[str, str]] = Counter()
        for device in given.values():
            assert offered.get(device["name"]) == device, f"{device['name']} was taken away from under its user"
            spent.update(dict(costs(device)))
        assert all(amount <= total[counter] for counter, amount in spent.items()), spent
        most = max(most, len(given))
    return most


# ── what is published for which GPUs ──────────────────────────────────────────────────────────────────────────────────


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


# ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_of_a_pool_that_changes_all_is_old_or_all_is_new_or_nothing_can_be_allocated(cluster: Cluster) -> None:
    own = await site(cluster, gpus(16))
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
    assert states(history, own.driver) == [(), None, halves, None, quarters, None, halves]


async def test_a_device_that_would_vanish_is_waited_for_and_one_that_stays_is_not(cluster: Cluster) -> None:
    own = await site(cluster, gpus(4), settle=1)
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
    assert nothing_is_ever_sold_twice(history, own.driver) == 2 + len(queued)


async def test_slices_that_somebody_wipes_or_edits_are_restored_at_once(cluster: Cluster) -> None:
    own = await site(cluster, gpus(12))
    await own.gets(equal(2))
    await at_rest(cluster)
    users = own.users()
    await users.ask("user", f"mine.index == 11 && {PART}")
    given = await users.allocation("user")
    good = without_generation(await own.slices())

    async def restored() -> bool:
        slices = await own.slices()
        assert without_generation(slices) == good
        assert len({each["spec"]["pool"]["generation"] for each in slices}) == 1
        return True

    client, node = cluster.client, own.nodes[0]
    async with Watcher(cluster, NODE_STATES, RESOURCE_SLICES) as history:
        for number in range(3):
            await client.delete(RESOURCE_SLICES, (await own.slices())[number]["metadata"]["name"])
            await eventually(restored)
        await client.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")  # a kubelet starts
        await eventually(restored)
        for edited in (more_memory, one_device_less, another_count):
            slices = await own.slices()
            await client.replace(RESOURCE_SLICES, edited(slices))
            await eventually(restored)
        for generation in (1, 1000):
            body = foreign(own, generation)
            await client.create(RESOURCE_SLICES, body)
            await cluster.gone(RESOURCE_SLICES, body["metadata"]["name"])
            await eventually(restored)
    assert history.phases(node) == []
    assert await users.allocation("user") == given


async def test_slices_are_restored_too_while_their_node_waits_for_its_turn(cluster: Cluster) -> None:
    own = await site(cluster, gpus(4))
    await own.gets(equal(2))
    users = own.users()
    await users.ask("user", PART)
    assert await users.device("user") == "gpu-0-1of2"
    good = without_generation(await own.slices())
    await own.want(equal(4))
    await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
    await reaches(cluster, own.nodes[0], "Pending")
    await cluster.client.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={own.nodes[0]}")

    async def restored() -> bool:
        assert without_generation(await own.slices()) == good
        return True

    await eventually(restored)
    await users.end("user")
    await ready(cluster, POLICY)
    assert len(await own.offers()) == 20


async def test_what_does_not_stay_published_is_rolled_back_to_the_former_slices(cluster: Cluster) -> None:
    own = await site(cluster, gpus(12), nodes=3, min_ready=2, verifying=4)
    await own.gets(equal(2), maxUnavailable=3)
    await at_rest(cluster)
    good = {node: without_generation(await own.slices(node)) for node in own.nodes}
    async with Watcher(cluster) as history:
        await own.want(equal(4), maxUnavailable=3)
        edited, wiped, invaded = own.nodes
        await history.saw(NODE_STATES, edited, phase="Verifying")
        await cluster.client.replace(RESOURCE_SLICES, one_device_less(await own.slices(edited)))
        await history.saw(NODE_STATES, wiped, phase="Verifying")
        await cluster.client.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={wiped}")
        await history.saw(NODE_STATES, invaded, phase="Verifying")
        await cluster.client.create(RESOURCE_SLICES, foreign(own, 1000, invaded))
        failed = await stalled(cluster, POLICY, "RolledBack")
    assert {each["node"]: each["reason"] for each in failed["status"]["failedNodes"]} == dict.fromkeys(
        own.nodes, "VerifyingFailed"
    )
    for node in own.nodes:
        assert history.phases(node)[-4:] == ["Verifying", "RollingBack", "Releasing", "RolledBack"]
        assert without_generation(await own.slices(node)) == good[node]
        assert len(await own.offers(node)) == 36
    await at_rest(cluster)

    # A node that was rolled back is looked after like any other, and tried again when somebody asks.
    await cluster.client.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={wiped}")

    async def restored() -> bool:
        assert without_generation(await own.slices(wiped)) == good[wiped]
        return True

    await eventually(restored)
    await annotate(cluster, harness.POLICIES, POLICY, retry="1")
    await ready(cluster, POLICY)
    assert [len(await own.offers(node)) for node in own.nodes] == [60, 60, 60]


async def test_a_server_that_drops_counters_gets_no_slice_and_the_policy_says_which_gate_is_off(tmp_path: Path) -> None:
    shape = Shape(nodes=0, feature_gates="DRAPartitionableDevices=false")
    async with ControlPlane(tmp_path, shape=shape) as old, harness.cluster(old, "old") as cluster:
        own = await site(cluster, gpus(8))
        await own.want(equal(2))
        refused = await stalled(cluster, POLICY, "FeatureGateOff")
        accepted = condition(refused, "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "FeatureGateOff")
        assert "DRAPartitionableDevices" in accepted["message"]
        for kind in (RESOURCE_SLICES, NODE_STATES, DEVICE_TAINT_RULES):
            assert (await cluster.client.list(kind)).items == []


# ── what others do to slices ──────────────────────────────────────────────────────────────────────────────────────────


def more_memory(slices: list[Object]) -> Object:
    """Promise twice as much of the first counter."""
    anchor = slices[0]
    anchor["spec"]["sharedCounters"][0]["counters"]["memory"]["value"] = "160Gi"
    return anchor


def one_device_less(slices: list[Object]) -> Object:
    """Take the last device away."""
    last = slices[-1]
    del last["spec"]["devices"][-1]
    return last


def another_count(slices: list[Object]) -> Object:
    """Speak of a slice that is not there."""
    anchor = slices[0]
    anchor["spec"]["pool"]["resourceSliceCount"] += 1
    return anchor


def foreign(own: Site, generation: int, node: str = "") -> Object:
    """A slice that somebody else writes into the pool of a node (the first)."""
    node = node or own.nodes[0]
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-foreign-{generation}"},
        "spec": {
            "driver": own.driver,
            "nodeName": node,
            "pool": {"name": f"{own.driver}/{node}", "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": "intruder"}],
        },
    }
