"""The backends on a real API server: what they expect is what is published, and what they write is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e.harness import eventually

from gpupartition.api.v1alpha1 import Assigned, DriverSpec, PolicySpec
from gpupartition.backends import BACKENDS
from gpupartition.backends.probe import dropped, probe
from gpupartition.controller.actuator import carry_out
from gpupartition.domain.backend import Backend, Cluster, Config, NodeFacts, Observation
from gpupartition.domain.effects import EnsureConfig
from gpupartition.kube import (
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_SLICES,
    Client,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.harness import Cluster as TestCluster


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One node and one driver, read anew for every question."""

    client: Client
    driver: DriverSpec
    node: str

    @property
    def backend(self) -> Backend:
        return BACKENDS[self.driver.type]

    async def cluster(self) -> Cluster:
        namespace = next(iter(self.backend.namespaces(self.driver)), "")
        if not namespace:
            return Cluster()
        return Cluster(
            daemon_sets=(await self.client.list(DAEMON_SETS, namespace=namespace)).items,
            controller_revisions=(await self.client.list(CONTROLLER_REVISIONS, namespace=namespace)).items,
        )

    async def facts(self) -> NodeFacts:
        here = f"spec.nodeName={self.node}"
        name = self.backend.driver_name(self.driver, await self.cluster())
        namespace = next(iter(self.backend.namespaces(self.driver)), "")
        pods = await self.client.list(PODS, namespace=namespace, field_selector=here) if namespace else None
        slices = await self.client.list(RESOURCE_SLICES, field_selector=f"{here},spec.driver={name}")
        return NodeFacts(
            node=await self.client.get(NODES, self.node), slices=slices.items, pods=pods.items if pods else ()
        )

    async def observe(self) -> Observation:
        return self.backend.observe(self.driver, await self.facts(), await self.cluster())

    async def way_back(self) -> Config:
        return self.backend.way_back(self.driver, await self.facts(), await self.cluster())

    async def compile(self, *layouts: Mapping[str, Any]) -> Config:
        policy = {"driver": "d", "nodeSelector": {"matchLabels": {"a": "b"}}, "layouts": layouts}
        facts = NodeFacts(node=await self.client.get(NODES, self.node))
        return self.backend.compile(self.driver, PolicySpec.model_validate(policy), facts, await self.cluster())

    async def assign(self, to: Assigned, step: str) -> None:
        """Write until nothing remains to be written."""

        async def all_written() -> bool:
            effect = self.backend.assign(self.driver, await self.facts(), to, step, 1)
            if effect is not None:
                assert await carry_out(self.client, effect), effect
            return effect is None

        await eventually(all_written)

    async def repair(self, current: Assigned) -> None:
        async def all_written() -> bool:
            effect = self.backend.repair(self.driver, await self.facts(), current, None, 1)
            if effect is not None:
                assert await carry_out(self.client, effect), effect
            return effect is None

        await eventually(all_written)

    async def ensure(self, config: Config) -> None:
        for body in config.objects:
            assert await carry_out(self.client, EnsureConfig(kind=body["kind"], body=body, present=None))

    async def arrives_at(self, config: Config) -> None:
        async def there() -> bool:
            seen = await self.observe()
            assert seen.ready, seen
            assert (seen.assignment, seen.running) == (config.assignment, config.fingerprint)
            assert seen.pool.equals(config.pool), (seen.pool, config.pool)
            return True

        await eventually(there)


def whole(**more: Any) -> dict[str, Any]:
    return {"name": "all", "match": {"all": True}, "type": "Whole", **more}


def equal(parts: int, **more: Any) -> dict[str, Any]:
    return whole(type="Equal", equal={"parts": parts}, **more)


SHARED = {"sharing": {"mode": "Shared"}}


async def test_the_example_driver_publishes_what_its_backend_expects_of_every_layout(cluster: TestCluster) -> None:
    base = await cluster.example_driver(gpus=8)
    (node,) = await cluster.nodes(1, pool=base.pool)
    spec = {"daemonSet": {"namespace": base.namespace, "name": base.daemon_set}, "gpusPerNode": 8}
    driver = DriverSpec.model_validate({"type": "ExampleDriver", "exampleDriver": spec})
    bench = Bench(client=cluster.client, driver=driver, node=node)
    assert bench.backend.preflight(driver, await bench.cluster()) == []

    # The base runs the very config that Whole asks for: nothing would have to be written.
    as_installed = await bench.compile(whole())
    await eventually(lambda: _runs(bench, as_installed))
    home = await bench.way_back()
    assert (home.assignment, home.objects) == (None, ())

    layouts = [equal(2), equal(3), equal(7), whole(**SHARED), equal(4, **SHARED), equal(5, **SHARED)]
    for number, layout in enumerate(layouts):
        config = await bench.compile(layout)
        await bench.ensure(config)
        await bench.assign(config.assigned(), f"step-{number}")
        await bench.arrives_at(config)
        assert (await bench.compile(layout)).objects == config.objects, "the variant's template is the base's still"
        back = await bench.way_back()
        assert (back.assignment, back.fingerprint) == (config.assignment, config.fingerprint)

    await bench.assign(home.assigned(), "home")
    await bench.arrives_at(home)


async def _runs(bench: Bench, config: Config) -> bool:
    seen = await bench.observe()
    return seen.ready and seen.running == config.fingerprint and seen.pool.equals(config.pool)


TWELVE = {"count": 12, "product": "H100", "memory": "80Gi"}
# The example of the Kubernetes documentation: 8Gi that can be cut once, at one of two places.
EIGHT = {
    "count": 1,
    "product": "Small",
    "memory": "8Gi",
    "profiles": [
        {
            "name": "6gi+x",
            "capacity": {"memory": "6Gi"},
            "placements": [{"counters": {"memory": "6Gi"}}, {"counters": {"memory": "6Gi"}}],
        }
    ],
}


def publish(cluster: TestCluster, *groups: Mapping[str, Any]) -> DriverSpec:
    spec = {"driverName": f"{cluster.name}.example.org", "inventory": {"gpus": groups}}
    return DriverSpec.model_validate({"type": "Publish", "publish": spec})


ASKED = {"memory": {"default": "2Gi", "min": "1Gi", "step": "1Gi"}}
DEFAULT_ALONE = {"memory": {"default": "1000M"}}


async def test_published_pools_are_kept_as_they_were_written(cluster: TestCluster) -> None:
    (node,) = await cluster.nodes(1)
    bench = Bench(client=cluster.client, driver=publish(cluster, TWELVE, EIGHT), node=node)
    home = await bench.way_back()
    assert (home.assignment, home.pool.devices) == (None, ())
    rest = {"name": "rest", "match": {"all": True}, "type": "Choices", "choices": {"profiles": ["6gi+x"]}}
    h100 = {"name": "h100", "match": {"products": ["H100"]}}
    layouts: list[list[dict[str, Any]]] = [
        [whole()],
        [equal(7)],
        [{**h100, "type": "Equal", "equal": {"parts": 3}}, rest],
        [equal(2, sharing={"mode": "Shared", "capacity": ASKED})],
        [equal(4, sharing={"mode": "Shared", "capacity": DEFAULT_ALONE})],
    ]
    for number, some in enumerate(layouts):
        config = await bench.compile(*some)
        await bench.assign(config.assigned(), f"step-{number}")
        await bench.arrives_at(config)
        effect = bench.backend.repair(bench.driver, await bench.facts(), config.assigned(), None, 1)
        assert effect is None, "what the server respells is no edit"
    await bench.assign(home.assigned(), "home")
    await bench.arrives_at(home)
    await bench.repair(home.assigned())
    assert (await bench.facts()).slices == [], "a node at rest that shall have nothing has nothing"


async def test_wiped_slices_come_back(cluster: TestCluster) -> None:
    (node,) = await cluster.nodes(1)
    bench = Bench(client=cluster.client, driver=publish(cluster, TWELVE), node=node)
    config = await bench.compile(equal(2))
    await bench.assign(config.assigned(), "step")
    await cluster.client.delete_all(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")
    await bench.repair(config.assigned())
    await bench.arrives_at(config)


async def test_the_scheduler_cuts_eight_gi_once(cluster: TestCluster) -> None:
    (node,) = await cluster.nodes(1)
    driver = publish(cluster, EIGHT)
    bench = Bench(client=cluster.client, driver=driver, node=node)
    name = bench.backend.driver_name(driver, Cluster())
    selector = {"cel": {"expression": f"device.driver == '{name}'"}}
    await cluster.create(
        DEVICE_CLASSES,
        {
            "apiVersion": DEVICE_CLASSES.api_version,
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [selector]},
        },
    )
    config = await bench.compile(
        {"name": "cut", "match": {"all": True}, "type": "Choices", "choices": {"profiles": ["6gi+x"]}}
    )
    await bench.assign(config.assigned(), "step")
    namespace = await cluster.namespace()
    await cluster.holder("first", namespace=namespace, device_class=name)
    await cluster.running("first", namespace=namespace)
    await cluster.holder("second", namespace=namespace, device_class=name)

    async def refused() -> bool:
        pod = await cluster.client.get(PODS, "second", namespace=namespace)
        return any(c["reason"] == "Unschedulable" for c in pod["status"].get("conditions", ()))

    await eventually(refused)
    await cluster.client.delete(PODS, "first", namespace=namespace)
    await cluster.running("second", namespace=namespace)


@pytest.mark.parametrize(
    ("gates", "lost"),
    [
        ("", []),
        ("DRAPartitionableDevices=false", ["spec.devices[0].consumesCounters", "spec.sharedCounters"]),
        (
            "DRAConsumableCapacity=false",
            ["spec.devices[0].allowMultipleAllocations", "spec.devices[0].capacity.memory.requestPolicy"],
        ),
    ],
)
async def test_a_dry_run_tells_what_the_server_would_silently_drop(
    cluster: TestCluster, gates: str, lost: list[str]
) -> None:
    kubeconfig = await cluster.controlplane.second_apiserver(gates) if gates else cluster.controlplane.kubeconfig
    async with Client.connect(kubeconfig) as client:
        found = [
            path
            for body in probe(publish(cluster, EIGHT))
            for path in dropped(body, await client.create(RESOURCE_SLICES, body, dry_run=True))
        ]
    assert sorted(found) == lost
