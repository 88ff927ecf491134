"""ResourceSlices of a pool that this operator writes, and the order of writes in which no half-written pool can be used.

A pool is as many slices as the API's limits ask for: counter sets first, then devices. The first slice is the anchor. Every change begins
with the anchor at a generation above all that is there, and from that instant on the pool is incomplete until its last slice has followed.
What a slice says at a generation is never changed at that generation. A pool without devices is the anchor alone, empty: it keeps the step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from gpupartition.api.v1alpha1 import DriverSpec, NodeOperations
from gpupartition.domain import fingerprint, quantity
from gpupartition.domain.effects import CreateSlice, DeleteSlice, Effect, PutSlice
from gpupartition.domain.objects import Object
from gpupartition.domain.pool import Amounts, Device, Pool
from gpupartition.names import DRAWING, FINGERPRINT, LAYOUT, STEP, TAINT_KEY

# k8s.io/api resource/v1 types.go, 1.35 to 1.37: ResourceSliceMaxCounterSets, ResourceSliceMaxDevicesWithAdvancedFeatures.
MAX_COUNTER_SETS: Final = 8
MAX_DEVICES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What shall be published: the pool, the driver's and the pool's name, the assignment that the slices are labelled with.

    For one node, or for all `nodes` of a group. A slice goes when the last of them has gone.
    """

    driver: str
    pool_name: str
    nodes: Sequence[Object]
    pool: Pool
    group: str = ""
    assignment: str | None
    skips: bool = False
    """Whether the kubelet starts pods without asking a node plugin."""

    @property
    def unit(self) -> str:
        """Whose pool it is, as the names of its slices say it."""
        return self.group or str(self.nodes[0]["metadata"]["name"])

    def bodies(self, generation: int, step: str) -> list[dict[str, Any]]:
        """All slices at this generation, the anchor first. Only the anchor carries the step and the whole fingerprint.

        Where devices draw on counters the slice says how many, so that an API server that drops it refuses the slice (manifests/admission).
        """
        whole, contents = _written(self.pool.to_json())
        bodies = [self._body(number, content, generation, len(contents)) for number, content in enumerate(contents)]
        bodies[0]["metadata"]["annotations"] |= {FINGERPRINT: whole} | ({STEP: step} if step else {})
        return bodies

    def _body(self, number: int, content: Mapping[str, Any], generation: int, count: int) -> dict[str, Any]:
        owners = [node["metadata"] for node in self.nodes]
        drawing = sum("consumesCounters" in device for device in content.get("devices", ()))
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": slice_name(self.driver, self.unit, number),
                "labels": {LAYOUT: self.assignment} if self.assignment is not None else {},
                "annotations": {DRAWING: str(drawing)} if drawing else {},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": owner["name"], "uid": owner["uid"]} for owner in owners
                ],
            },
            "spec": {
                "driver": self.driver,
                **self._where(content),
                "pool": {"name": self.pool_name, "generation": generation, "resourceSliceCount": count},
                **({"skipNodeOperations": ["*"]} if self.skips else {}),
                **content,
            },
        }

    def _where(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """For which nodes the slice counts. Each device of a group says so itself; every slice has to say something."""
        if not self.group:
            return {"nodeName": self.unit}
        return {"perDeviceNodeSelection" if "devices" in content else "allNodes": True}


def skips(driver: DriverSpec) -> bool:
    """Whether nobody prepares the driver's devices on their node."""
    return driver.publish is not None and driver.publish.node_operations is NodeOperations.SKIP


def slice_name(driver: str, unit: str, number: int) -> str:
    """Fixed, so that creating a slice twice is a conflict, and in the order in which the scheduler tries them.

    The hash keeps driver `a` on node `b-c` apart from driver `a-b` on node `c`, and long names apart when they are cut (253 characters).
    """
    mark = hashlib.sha256(f"{driver}/{unit}".encode()).hexdigest()[:8]
    return f"{driver}-{unit}"[:237].rstrip("-.") + f"-{mark}-{number:05d}"


def slice_count(pool: Pool) -> int:
    """In how many slices a pool is written."""
    return len(_written(pool.to_json())[1])


def next_write(present: Sequence[Object], target: Target, step: str | None, generation: int) -> Effect | None:
    """The one write that comes next on the way to the target; None when all is there.

    `present` are all slices of the pool as read. `step` None means no step of its own: the anchor keeps the one it has. `generation` is the
    least at which a change may begin.
    """
    there = {s["metadata"]["name"]: s for s in present}
    anchor = there.get(slice_name(target.driver, target.unit, 0))
    if anchor is not None and step in (None, step_of(anchor)):
        begun_at = _generation(anchor)
        wanted = {str(body["metadata"]["name"]): body for body in target.bodies(begun_at, step_of(anchor))}
        differ = [name for name, body in wanted.items() if name not in there or not _same(body, there[name])]
        if not any(name in there and _generation(there[name]) == begun_at for name in differ):
            if differ:
                return _write(wanted[differ[0]], there.get(differ[0]))
            disowned = next((name for name, body in wanted.items() if not _owned(body, there[name])), None)
            if disowned is not None:
                return _write(wanted[disowned], there[disowned])
            return next((delete(there[name]) for name in sorted(there) if name not in wanted), None)
    above = max([generation, *(_generation(s) + 1 for s in present)])
    kept = step_of(anchor) if anchor is not None else ""
    return _write(target.bodies(above, kept if step is None else step)[0], anchor)


def use_up(present: Sequence[Object], target: Target, step: str) -> Effect | None:
    """Write the step and nothing else. Where there is no anchor, an empty one: that offers nothing, like a pool without its anchor."""
    anchor = next((s for s in present if s["metadata"]["name"] == slice_name(target.driver, target.unit, 0)), None)
    if anchor is None:
        above = max([1, *(_generation(s) + 1 for s in present)])
        return CreateSlice(body=target.bodies(above, step)[0])
    if step_of(anchor) == step:
        return None
    metadata = anchor["metadata"]
    return PutSlice(
        body={**anchor, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), STEP: step}}}
    )


def delete(unwanted: Object) -> DeleteSlice:
    """Delete this very slice, as it was read."""
    metadata = unwanted["metadata"]
    return DeleteSlice(name=metadata["name"], uid=metadata["uid"], resource_version=metadata["resourceVersion"])


def step_of(anchor: Object) -> str:
    """The step that an anchor carries."""
    return str(anchor["metadata"].get("annotations", {}).get(STEP, ""))


def assignment_of(labelled: Object) -> str | None:
    """The assignment that a slice is labelled with."""
    value: str | None = labelled["metadata"].get("labels", {}).get(LAYOUT)
    return value


def coherent(present: Sequence[Object]) -> bool:
    """Whether all slices are of one generation and one assignment: nothing of a former layout is left."""
    return len({(_generation(s), assignment_of(s)) for s in present}) <= 1


def _write(body: Mapping[str, Any], present: Object | None) -> Effect:
    if present is None:
        return CreateSlice(body=body)
    metadata = {name: value for name, value in present["metadata"].items() if name != "managedFields"}
    for field, ours in (("labels", (LAYOUT,)), ("annotations", (STEP, FINGERPRINT, DRAWING))):
        others = {name: value for name, value in metadata.get(field, {}).items() if name not in ours}
        metadata[field] = others | body["metadata"].get(field, {})
    return PutSlice(body={**body, "metadata": {**metadata, "ownerReferences": body["metadata"]["ownerReferences"]}})


def _generation(read: Object) -> int:
    return int(read["spec"]["pool"]["generation"])


def _same(body: Mapping[str, Any], found: Object) -> bool:
    if assignment_of(body) != assignment_of(found):
        return False
    # Nearly always it is as it was written, or offers something else; what is canonical is costly to tell.
    if _names(body["spec"]) != _names(found["spec"]):
        return False
    return bool(body["spec"] == _untimed(found["spec"])) or _canonical(body["spec"]) == _canonical(found["spec"])


def _names(spec: Mapping[str, Any]) -> list[str]:
    return [each["name"] for each in (*spec.get("devices", ()), *spec.get("sharedCounters", ()))]


def _untimed(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what the API server notes at taints: when they came."""
    if not any("taints" in device for device in spec.get("devices", ())):
        return spec
    devices = [
        {**device, "taints": [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device["taints"]]}
        if device.get("taints")
        else device
        for device in spec["devices"]
    ]
    return {**spec, "devices": devices}


def _owned(body: Mapping[str, Any], found: Object) -> bool:
    """Whether all nodes that it is for own it: it is collected when the last of its owners has gone, by their UIDs."""
    wanted, there = ({o["uid"] for o in each["metadata"].get("ownerReferences", ())} for each in (body, found))
    return wanted <= there


def _canonical(value: Any, *, amounts: bool = False) -> fingerprint.Json:
    """A spec in which equal quantities are equal. Everything else counts as it is: what others add to our slices does not belong there."""
    if isinstance(value, list):
        return [_canonical(each, amounts=amounts) for each in value]
    if isinstance(value, Mapping):
        return {
            name: each
            if name == "attributes"
            else _canonical(each, amounts=amounts or name in ("capacity", "counters"))
            for name, each in value.items()
            if each is not False and name != "timeAdded"  # of a taint: the API server says when it came
        }
    return quantity.capped(value) if amounts and isinstance(value, str) else value


# A slice is written after a look at all of its pool, and the nodes of a fleet have few kinds of pools.
@lru_cache(maxsize=16)
def _written(pool: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """The whole fingerprint of a pool, which is given as JSON, and what its slices hold."""
    read = Pool.from_json(pool)
    return fingerprint.of_pool(read), [*_contents(read)] or [{}]


def _contents(pool: Pool) -> Iterator[dict[str, Any]]:
    sets = [{"name": name, "counters": quantities(amounts)} for name, amounts in pool.counters.items()]
    for some in _batches(sets, MAX_COUNTER_SETS):
        yield {"sharedCounters": some}
    for some in _batches([_device(d) for d in pool.devices], MAX_DEVICES):
        yield {"devices": some}


def _batches(items: Sequence[dict[str, Any]], size: int) -> Iterable[Sequence[dict[str, Any]]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _device(device: Device) -> dict[str, Any]:
    body: dict[str, Any] = {"name": device.name}
    if device.attributes:
        body["attributes"] = dict(device.attributes)
    if device.capacity:
        body["capacity"] = {
            name: amount | ({"requestPolicy": device.request_policy[name]} if name in device.request_policy else {})
            for name, amount in quantities(device.capacity).items()
        }
    if device.costs:
        body["consumesCounters"] = [
            {"counterSet": name, "counters": quantities(cost)} for name, cost in device.costs.items()
        ]
    if device.shared:
        body["allowMultipleAllocations"] = True
    if device.retired:
        body["taints"] = [{"key": TAINT_KEY, "value": "retired", "effect": "NoSchedule"}]
    return body | dict(device.place)


def quantities(amounts: Amounts) -> dict[str, dict[str, Any]]:
    """Counters or capacity as the API has them: amounts as quantities."""
    return {name: {"value": quantity.render(amount)} for name, amount in amounts.items()}
