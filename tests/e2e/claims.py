"""Claims as users write them: what each asks for, which device it got, and proof that it got none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.harness import eventually

from gpupartition.kube import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

REQUEST: Final = "gpu"


async def device_class(cluster: Cluster, driver: str) -> str:
    """Make a DeviceClass of all devices of a driver, named like it."""
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    body = {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": selectors},
    }
    await cluster.create(DEVICE_CLASSES, body)
    return driver


@dataclass(frozen=True, kw_only=True)
class Users:
    """The users of one driver's devices on one node: each is a claim, and a pod of the same name that has it."""

    cluster: Cluster
    namespace: str
    driver: str
    """Name of the driver, and of its DeviceClass."""
    node: str
    """Where their pods have to run; "": wherever their claims let them."""

    async def ask(self, name: str, cel: str = "", *, capacity: Mapping[str, str] | None = None, count: int = 1) -> None:
        """Claim devices that fit `cel` (`mine` stands for the driver's attributes), or some capacity of one. Does not wait."""
        exactly: Object = {"deviceClassName": self.driver, "count": count}
        if cel:
            expression = cel.replace("mine", f"device.attributes['{self.driver}']")
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        if capacity:
            exactly["capacity"] = {"requests": dict(capacity)}
        claim = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
        }
        await self.cluster.client.create(RESOURCE_CLAIMS, claim)
        spec = {
            "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": REQUEST}]}}],
            "resourceClaims": [{"name": REQUEST, "resourceClaimName": name}],
            **({"nodeSelector": {"kubernetes.io/hostname": self.node}} if self.node else {}),
        }
        await self.cluster.pod(name, namespace=self.namespace, spec=spec)

    async def allocations(self, name: str) -> list[Object]:
        """Wait until this user's pod runs; returns what its claim was given: `allocation.devices.results`."""
        await self.cluster.running(name, namespace=self.namespace)
        claim = await self.cluster.client.get(RESOURCE_CLAIMS, name, namespace=self.namespace)
        results: list[Object] = claim["status"]["allocation"]["devices"]["results"]
        assert all((each["driver"], each["request"]) == (self.driver, REQUEST) for each in results), results
        return results

    async def allocation(self, name: str) -> Object:
        """The same of a user of one device."""
        (result,) = await self.allocations(name)
        return result

    async def device(self, name: str) -> str:
        """Wait until this user's pod runs; returns the name of its device."""
        return str((await self.allocation(name))["device"])

    async def devices(self, name: str) -> list[str]:
        """Wait until this user's pod runs; returns the names of its devices."""
        return [str(each["device"]) for each in await self.allocations(name)]

    async def waits(self, name: str) -> None:
        """Wait until the scheduler has said that it finds no device for this user, or that the node is cordoned."""

        async def refused() -> bool:
            pod = await self.cluster.client.get(PODS, name, namespace=self.namespace)
            said = [each for each in pod["status"].get("conditions", ()) if each["type"] == "PodScheduled"]
            assert [(each["status"], each.get("reason")) for each in said] == [("False", "Unschedulable")], pod[
                "status"
            ]
            return any(why in said[0]["message"] for why in ("cannot allocate all claims", "were unschedulable"))

        await eventually(refused)

    async def end(self, name: str) -> None:
        """End this user's pod, as when its work is done. Its claim stays, and is free from then on."""
        await self.cluster.client.delete(PODS, name, namespace=self.namespace)
        await self.cluster.gone(PODS, name, namespace=self.namespace)

        async def free() -> bool:
            claim = await self.cluster.client.get(RESOURCE_CLAIMS, name, namespace=self.namespace)
            return "allocation" not in claim.get("status", {})

        await eventually(free)
