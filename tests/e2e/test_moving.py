"""From a device plugin to claims: pods that ask as they always did are served by the DRA driver, and where the plugin is left, by that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import yaml
from testbed.controlplane import ROOT
from tests.e2e.mig import profiles, site
from tests.e2e.nvidia import H100

from gpupartition.kube import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

EXAMPLE: Final = (ROOT / "manifests/examples/pods/mig-as-before.yaml").read_text(encoding="utf-8")
RESOURCE: Final = "nvidia.com/mig-1g.10gb"


async def test_pods_that_asked_a_device_plugin_for_partitions_ask_as_before(cluster: Cluster) -> None:
    device_class, pod = yaml.safe_load_all(EXAMPLE)
    where = await site(cluster, f"1x {H100}")
    await where.gets(profiles(("1g.10gb", 7)))
    (new,), (old,) = where.nodes, await cluster.nodes(1)
    await cluster.client.patch(NODES, old, {"status": {"allocatable": {RESOURCE: "7"}}}, subresource="status")
    await cluster.create(DEVICE_CLASSES, device_class)
    user = await cluster.namespace("user")
    for node in (new, old):
        spec = {**pod["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}
        await cluster.pod(f"on-{node}", namespace=user, spec=spec)
        await cluster.running(f"on-{node}", namespace=user)
    (claim,) = (await cluster.client.list(RESOURCE_CLAIMS, namespace=user)).items
    assert claim["metadata"]["ownerReferences"][0]["name"] == f"on-{new}", "the other one has what the plugin offers"
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"]) == ("gpu.nvidia.com", new)
    assert "-mig-1g10gb-" in result["device"]
