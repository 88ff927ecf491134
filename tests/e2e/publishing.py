"""What tests of the driver type Publish speak: a site of its own, and pools as the scheduler reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.claims import Users, device_class
from tests.e2e.harness import eventually
from tests.e2e.history import Watcher
from tests.e2e.rollout import apply, operator, policy, ready

from gpupartition.domain import quantity
from gpupartition.kube import RESOURCE_CLAIMS, RESOURCE_SLICES
from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from testbed.programs import Program
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

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
    program: Program
    """The first operator."""
    nodes: tuple[str, ...] = ()

    live: bool = True
    """Whether layouts change under their users."""

    async def has(self, *groups: Object, inventory: Object | None = None) -> None:
        """Say which GPUs the nodes have."""
        publish = {"driverName": self.driver, "inventory": inventory or {"gpus": list(groups)}, "live": self.live}
        spec = {"type": "Publish", "publish": publish, "maxUnavailable": "100%"}
        body = {"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": {"name": self.driver}}
        await apply(self.cluster, {**body, "spec": spec})

    async def want(self, *layouts: Object, **rollout: Any) -> None:
        """Apply the policy."""
        await apply(self.cluster, policy(POLICY, self.driver, *layouts, rollout=rollout))

    async def gets(self, *layouts: Object, **rollout: Any) -> None:
        """Apply the policy, and wait until every node is verified."""
        await self.want(*layouts, **rollout)
        await ready(self.cluster, POLICY)

    def pool_name(self, node: str = "") -> str:
        """The pool of a node (the first)."""
        return f"{self.driver}/{node or self.nodes[0]}"

    def among(self, slices: Iterable[Object], node: str = "") -> list[Object]:
        """Those slices that are in the pool of a node (the first), in the order in which the scheduler reads them."""
        found = [each for each in slices if each["spec"]["pool"]["name"] == self.pool_name(node)]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    async def slices(self, node: str = "") -> list[Object]:
        """The slices of a node (the first), in the order in which the scheduler reads them."""
        return self.among((await self.cluster.client.list(RESOURCE_SLICES)).items, node)

    async def offers(self, node: str = "") -> list[str]:
        """The names of the devices that can be allocated from a node (the first), in the scheduler's order of preference."""
        pool = usable(await self.slices(node))
        assert pool is not None
        return [each["name"] for each in pool]

    async def retired(self, node: str = "") -> list[str]:
        """The names of the devices of a node (the first) that nobody is given any more."""
        pool = usable(await self.slices(node))
        assert pool is not None
        return [each["name"] for each in pool if each.get("taints")]

    async def says(self, node: str = "") -> list[Object]:
        """What the slices of a node (the first) say, whatever their generation, which has to be one, and since when devices are tainted."""
        slices = await self.slices(node)
        for each in slices:
            for taint in (t for device in each["spec"].get("devices", ()) for t in device.get("taints", ())):
                del taint["timeAdded"]
        assert len({each["spec"]["pool"]["generation"] for each in slices}) <= 1
        return [each["spec"] | {"pool": {**each["spec"]["pool"], "generation": 0}} for each in slices]

    async def says_again(self, good: list[Object], node: str = "") -> None:
        """Wait until the slices of a node (the first) say this."""

        async def look() -> bool:
            assert await self.says(node) == good
            return True

        await eventually(look)

    async def wiped(self, node: str = "") -> None:
        """Delete all slices of a node (the first), as its kubelet does when it starts."""
        selector = f"spec.nodeName={node or self.nodes[0]}"
        await self.cluster.client.delete_all(RESOURCE_SLICES, field_selector=selector)

    def users(self, node: str = "") -> Users:
        """Users of a node's devices (the first's)."""
        return Users(cluster=self.cluster, namespace=self.namespace, driver=self.driver, node=node or self.nodes[0])


async def site(
    cluster: Cluster,
    *groups: Object,
    nodes: int = 1,
    inventory: Object | None = None,
    live: bool = True,
    kubeconfig: Path | None = None,
    **seconds: float,
) -> Site:
    """Make nodes with these GPUs, a driver name for them, and an operator (with this kubeconfig) that waits for so many seconds."""
    program = await operator(cluster, kubeconfig, **seconds)
    own = Site(
        cluster=cluster,
        driver=await device_class(cluster, f"{cluster.name}.publish.example"),
        namespace=await cluster.namespace(),
        program=program,
        live=live,
    )
    await own.has(*groups, inventory=inventory)
    return replace(own, nodes=tuple(await cluster.nodes(nodes, pool=own.driver)) if nodes else ())


# ── pools, as the scheduler reads them ────────────────────────────────────────────────────────────────────────────────


def usable(slices: Iterable[Object]) -> list[Object] | None:
    """The devices of these slices of a pool that can be allocated; None while there is a pool and none of it can.

    As k8s.io/dynamic-resource-allocation has it: of the slices of the highest generation there must be as many as they say.
    """
    specs = [each["spec"] for each in slices]
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


def states(history: Watcher, own: Site) -> list[tuple[str, ...] | None]:
    """What could be allocated from the first node, in the order in which it changed; None: there was a pool, and nothing could."""
    seen: list[tuple[str, ...] | None] = []
    for now in history.instants():
        pool = usable(own.among(now.objects(RESOURCE_SLICES)))
        state = None if pool is None else tuple(device["name"] for device in pool)
        if not seen or seen[-1] != state:
            seen.append(state)
    return seen


def nothing_is_ever_sold_twice(history: Watcher, own: Site) -> int:
    """Assert of the first node, at every instant: what is allocated is published, unchanged, and fits into its GPU.

    Returns how much was allocated at once, at most.
    """
    offered: dict[str, Object] = {}
    total: dict[tuple[str, str], int] = {}
    given: dict[tuple[str, str], Object] = {}
    most = 0
    for now in history.instants():
        slices = own.among(now.objects(RESOURCE_SLICES))
        pool = usable(slices)
        if pool is not None:
            offered, total = {each["name"]: each for each in pool}, shared_counters(slices)
        results = {
            (claim["metadata"]["uid"], result["device"]): result["device"]
            for claim in now.objects(RESOURCE_CLAIMS)
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            if result["pool"] == own.pool_name()
        }
        given = {one: given.get(one) or offered[device] for one, device in results.items()}
        spent: Counter[tuple[str, str]] = Counter()
        for device in given.values():
            now_offered = offered.get(device["name"], {})
            for what in ("capacity", "consumesCounters"):
                assert now_offered.get(what) == device[what], f"{device['name']} was taken away from under its user"
            spent.update(dict(costs(device)))
        assert all(amount <= total[counter] for counter, amount in spent.items()), spent
        most = max(most, len(given))
    return most


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
            "pool": {"name": own.pool_name(node), "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": "intruder"}],
        },
    }
