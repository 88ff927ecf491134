"""What the cluster says at one moment: everything that the demo shows is read here, and nothing is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpupartition.domain import gpumap
from gpupartition.kinds import NODE_STATES, POLICIES
from gpupartition.kube import (
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    Object,
)
from testbed import nodes

GPU_DRIVER: Final = "gpu.example.com"

WAITS_FOR: Final[Mapping[str, str]] = {
    "": "",
    "Pending": "its turn",
    "Admitted": "the way back to be saved",
    "Quiescing": "proof that no new claim can come",
    "Draining": "a second look that finds no holder",
    "Applying": "its driver to start with the new layout",
    "Verifying": "the new slices to stay as they are",
    "Releasing": "its taint to be gone",
    "UpToDate": "",
    "RollingBack": "its former layout to be back",
    "Aborting": "its taint to be gone",
}
IN_HAND: Final = frozenset(
    {"Admitted", "Quiescing", "Draining", "Applying", "Verifying", "Releasing", "RollingBack", "Aborting"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One node in the table: its phase ("" before a policy has it), what it waits for, and whether a holder is in the way."""

    node: str
    phase: str
    waits: str
    blocked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One look at the cluster; objects as the server sent them, records by node."""

    names: tuple[str, ...]
    policy: Object | None
    records: Mapping[str, Object]
    slices: tuple[Object, ...]
    claims: tuple[Object, ...]
    pods: tuple[Object, ...]

    @classmethod
    async def look(cls, client: Client, names: tuple[str, ...]) -> Scene:
        """Read it all."""
        policies = (await client.list(POLICIES)).items
        records = (await client.list(NODE_STATES)).items
        return cls(
            names=names,
            policy=policies[0] if policies else None,
            records={record["metadata"]["name"]: record for record in records},
            slices=tuple((await client.list(RESOURCE_SLICES)).items),
            claims=tuple((await client.list(RESOURCE_CLAIMS)).items),
            pods=tuple((await client.list(PODS)).items),
        )

    def maps(self) -> list[gpumap.NodeMap]:
        """Every node's GPUs."""
        return [gpumap.read(name, GPU_DRIVER, self.slices, self.claims) for name in self.names]

    def rows(self) -> list[Row]:
        """Every node's row."""
        return [self._row(name) for name in self.names]

    def in_hand(self) -> list[str]:
        """Nodes that are being changed."""
        return [row.node for row in self.rows() if row.phase in IN_HAND]

    def ready(self) -> tuple[bool, str, str]:
        """The policy's condition Ready: whether it is, the reason, the sentence."""
        status = (self.policy or {}).get("status", {})
        found = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), None)
        if found is None or self.policy is None:
            return False, "", ""
        current = found.get("observedGeneration") == self.policy["metadata"]["generation"]
        return found["status"] == "True" and current, found["reason"], found["message"]

    def progress(self) -> str:
        """Nodes up to date of nodes matched, such as 1/4."""
        return str((self.policy or {}).get("status", {}).get("progress", ""))

    def devices(self, node: str) -> list[str]:
        """Names of the devices that a node publishes."""
        return [d["name"] for s in self._slices(node) for d in s["spec"].get("devices", ())]

    def untouched(self, node: str) -> tuple[object, ...]:
        """What a roll-out changes on a node: equal answers mean that it has done nothing there."""
        pods = [
            (p["metadata"]["uid"], p["metadata"].get("deletionTimestamp"))
            for p in self.pods
            if p["metadata"]["namespace"] == nodes.DRIVER_NAMESPACE and p["spec"].get("nodeName") == node
        ]
        slices = [(s["metadata"]["uid"], s["metadata"]["generation"]) for s in self._slices(node)]
        return sorted(pods), sorted(slices)

    def pod(self, namespace: str, name: str) -> Object | None:
        """A pod, or None when there is none."""
        return next((p for p in self.pods if _is(p, namespace, name)), None)

    def got(self, namespace: str, pod: str) -> tuple[str, str] | None:
        """Node and device that a running pod's claim was given; None while it has none."""
        body = self.pod(namespace, pod)
        if body is None or body["status"].get("phase") != "Running":
            return None
        for status in body["status"].get("resourceClaimStatuses", ()):
            claim = next((c for c in self.claims if _is(c, namespace, status["resourceClaimName"])), {})
            for result in _results(claim):
                return result["pool"], result["device"]
        return None

    def size(self, node: str, device: str) -> str:
        """Memory of a device, as published."""
        devices = [d for s in self._slices(node) for d in s["spec"].get("devices", ())]
        return next((str(d["capacity"]["memory"]["value"]) for d in devices if d["name"] == device), "")

    def _slices(self, node: str) -> list[Object]:
        return [s for s in self.slices if s["spec"].get("nodeName") == node and s["spec"]["driver"] == GPU_DRIVER]

    def _row(self, name: str) -> Row:
        status = self.records.get(name, {}).get("status", {})
        phase = str(status.get("phase", ""))
        blockers = status.get("blockers", ())
        if not blockers or phase == "UpToDate":
            waits = WAITS_FOR.get(phase, str(status.get("message", "")))
            return Row(node=name, phase=phase, waits=waits, blocked=False)
        first = blockers[0]
        more = f" and {len(blockers) - 1} more" if len(blockers) > 1 else ""
        holder = f"pod {first['pod']}" if first.get("pod") else f"claim {first['claim']}"
        return Row(node=name, phase=phase, waits=f"{holder}, which has {first['device']}{more}", blocked=True)


def _results(claim: Mapping[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return found


def _is(body: Object, namespace: str, name: str) -> bool:
    meta = body["metadata"]
    return (meta.get("namespace"), meta["name"]) == (namespace, name)
