"""What a node's GPUs look like to the scheduler: how they are cut, to scale, and which parts are free, used, shared or closed.

Read from what is published and allocated, whatever the driver. Devices that exclude one another are not shown together: those in use are, and
of the others as many as there is still room for, in the order in which the scheduler tries them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from gpupartition.domain.allocator.claims import CLOSING
from gpupartition.domain.capacity import profile_of
from gpupartition.domain.groups import of_node, on_nodes, over_several
from gpupartition.domain.holders import Holder, holders
from gpupartition.domain.objects import Object
from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import NODES, Device, Pool

MEMORY_SLICES: Final = 8  # of a GPU that can be cut by MIG, unless somebody knows better
_SLOT: Final = re.compile(r"^(?:memorySlice(\d{1,2})|memory-slice-(\d{1,2}))$")  # in a driver's capacities; in counters
_GB: Final = re.compile(r"^\d+g\.(\d+)gb")
_BUS: Final = ("pciBusID", "pciAddr", "parentPciAddr")


class Use(Enum):
    """What a part of a GPU is to claims: open to any, had by one, open to several of which at least one has it, closed, or no device at all.

    RETIRING is of a former layout, and goes when its claim ends.
    """

    FREE = "free"
    USED = "used"
    SHARED = "shared"
    RETIRING = "retiring"
    TAINTED = "tainted"
    UNCUT = "not cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part. `size` is in a unit that all parts of a GPU share, `memory` in bytes, `slots` are the memory slices of a MIG partition.

    `held_by` are the pods that have it, and claims that no pod uses, as namespace/name.
    """

    use: Use
    size: int = 1
    device: str = ""
    profile: str = ""
    memory: int = 0
    slots: tuple[int, ...] = ()
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as it is now: its parts in their order, or one part when it is whole or used as a whole."""

    index: int
    parts: tuple[Part, ...]
    product: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMap:
    """One node's GPUs.

    `problem` says why the scheduler would not use the pool; `lost` names devices that claims have and no slice shows; `over` are devices over
    this node and others of which nobody has any part, so that they could be had. `cordoned`: what is free is open to no new pod all the same.
    """

    node: str
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[str, ...] = ()
    problem: str = ""
    over: tuple[Part, ...] = ()
    cordoned: bool = False


def read(
    node: str,
    driver: str,
    slices: Iterable[Object],
    claims: Iterable[Object],
    *,
    pool: str = "",
    rules: Iterable[Object] = (),
    cordoned: bool = False,
    memory_slices: Callable[[str], int] = lambda _: MEMORY_SLICES,
) -> NodeMap:
    """Map one node's pool of a driver, from ResourceSlices, ResourceClaims and DeviceTaintRules, of whomever.

    The pool is named after the node unless `pool` says otherwise. `memory_slices`: into how many the memory of a product is cut by MIG.
    """
    name = pool or node
    bodies = [s for s in slices if (s["spec"]["driver"], s["spec"]["pool"]["name"]) == (driver, name)]
    published = offered_by(bodies)
    there, held = of_node(published, node), dict[str, list[Holder]]()
    holding = holders(claims, node=node, driver=driver, pool=name)
    for holder in holding:
        if holder.device in there.names or holder.device not in published.names:
            held.setdefault(holder.device, []).append(holder)
    view = _View(there, held, _tainted(bodies, rules, driver, name), memory_slices)
    taken = on_nodes(published.keep({holder.device for holder in holding if not holder.admin}))
    over = [d for d in over_several(published, node) if not d.retired and not taken & d.costs[NODES].keys()]
    mapped = _map(node, driver, view)
    return replace(mapped, over=tuple(view.part(device) for device in over), cordoned=cordoned)


def of_pool(
    node: str, driver: str, pool: Pool, *, memory_slices: Callable[[str], int] = lambda _: MEMORY_SLICES
) -> NodeMap:
    """Map a pool that nobody has anything of, such as one that is only planned."""
    return _map(node, driver, _View(of_node(pool, node), {}, frozenset(), memory_slices))


def _map(node: str, driver: str, view: _View) -> NodeMap:
    groups: dict[tuple[Any, ...], list[Device]] = {}
    for device in view.pool.devices:
        groups.setdefault(_gpu_of(device), []).append(device)
    counted = all(key[0] == 0 for key in groups)  # else they are numbered as they are plugged in
    return NodeMap(
        node=node,
        driver=driver,
        gpus=tuple(
            view.gpu(key[1] if counted else rank, devices) for rank, (key, devices) in enumerate(sorted(groups.items()))
        ),
        lost=tuple(sorted(view.held.keys() - view.pool.names)),
        problem=view.pool.problem,
    )


@dataclass(frozen=True, slots=True)
class _View:
    pool: Pool
    held: Mapping[str, Sequence[Holder]]
    tainted: frozenset[str]
    memory_slices: Callable[[str], int]

    def gpu(self, index: int, devices: Sequence[Device]) -> Gpu:
        """One GPU, from all its devices."""
        product = next((text for d in devices if (text := _text(d, "productName") or _text(d, "product"))), "")
        shown = sorted(self._together(devices), key=devices.index)
        slotted = all(_slots(d) for d in shown)
        parts = self._in_slots(shown, self.memory_slices(product)) if slotted else self._by_memory(shown, devices)
        return Gpu(index=index, parts=parts, product=product)

    def _together(self, devices: Sequence[Device]) -> list[Device]:
        """The devices in use, and those that could be had beside them."""
        left = {name: dict(amounts) for name, amounts in self.pool.counters.items()}
        parts = [d for d in devices if not self._is_whole(d)]
        shown = [d for d in devices if d.name in self.held]
        for device in shown:
            _take(device, left)
        for device in sorted(parts or devices, key=lambda d: d.retired):  # what is about to go comes last
            if device.name not in self.held and _fits(device, left):
                _take(device, left)
                shown.append(device)
        return shown

    def _is_whole(self, device: Device) -> bool:
        """Takes all that its GPU has; a device without counters has no siblings that it could share a GPU with."""
        return all(dict(cost) == dict(self.pool.counters.get(name, {})) for name, cost in device.costs.items())

    def _in_slots(self, shown: Sequence[Device], count: int) -> tuple[Part, ...]:
        """Partitions where they lie, with what is left between them."""
        parts: list[Part] = []
        at = 0
        for device in sorted(shown, key=_slots):
            slots = _slots(device)
            if slots[0] > at:
                parts.append(Part(use=Use.UNCUT, size=slots[0] - at, slots=tuple(range(at, slots[0]))))
            parts.append(self.part(device, len(slots)))
            at = slots[-1] + 1
        if at < count:
            parts.append(Part(use=Use.UNCUT, size=count - at, slots=tuple(range(at, count))))
        return tuple(parts)

    def _by_memory(self, shown: Sequence[Device], devices: Sequence[Device]) -> tuple[Part, ...]:
        """Partitions by their memory, with what no device that is shown has of the GPU's; alike where it is not known of all."""
        known = all(_scale(d) > 0 for d in shown)  # amounts of others may be negative
        parts = [self.part(device, _scale(device) if known else 1) for device in shown]
        sets = {name for device in devices for name in device.costs}
        whole = max((self.pool.counters.get(name, {}).get("memory", 0) for name in sets), default=0)
        left = whole - sum(part.size for part in parts)
        if known and left > whole // 16:  # less is what rounding leaves
            parts.append(Part(use=Use.UNCUT, size=left))
        return tuple(parts)

    def part(self, device: Device, size: int = 1) -> Part:
        """A device as a part of so much."""
        holding = self.held.get(device.name, ())
        use = Use.TAINTED if device.name in self.tainted else Use.FREE
        if holding:
            use = Use.RETIRING if device.retired else Use.SHARED if device.shared else Use.USED
        return Part(
            use=use,
            size=size,
            device=device.name,
            profile=profile_of(device),
            memory=_memory(device),
            slots=_slots(device),
            held_by=tuple(sorted({name for h in holding for name in h.pods or (h.claim,)})),
        )


def _fits(device: Device, left: Mapping[str, Mapping[str, int]]) -> bool:
    return all(
        left[name].get(c, 0) >= n for name, cost in device.costs.items() if name in left for c, n in cost.items()
    )


def _take(device: Device, left: Mapping[str, dict[str, int]]) -> None:
    for name, cost in device.costs.items():
        for counter, amount in cost.items():
            if counter in left.get(name, ()):
                left[name][counter] -= amount


def _tainted(slices: Iterable[Object], rules: Iterable[Object], driver: str, pool: str) -> frozenset[str]:
    """Names of the devices to which no new claim comes, unless it tolerates that."""
    about = {"driver": driver, "pool": pool}
    chosen = [
        rule["spec"].get("deviceSelector") or {} for rule in rules if rule["spec"]["taint"].get("effect") in CLOSING
    ]
    mine = [c for c in chosen if all(c.get(key, value) == value for key, value in about.items())]
    return frozenset(
        device["name"]
        for body in slices
        for device in body["spec"].get("devices", ())
        if any(taint.get("effect") in CLOSING for taint in device.get("taints", ()))
        or any(selected.get("device", device["name"]) == device["name"] for selected in mine)
    )


def _gpu_of(device: Device) -> tuple[Any, ...]:
    """What tells GPUs apart: the number that the driver gives them, else where they are plugged in, else what they share."""
    for key, value in device.attributes.items():
        if key.rpartition("/")[2] == "index" and "int" in value:
            return 0, int(value["int"]), ()
    bus = next((text for name in _BUS if (text := _text(device, name))), "")
    if bus:
        return 1, 0, (bus,)
    return 2, 0, _counted(device.gpu or min(device.costs, default=device.name))


def _counted(text: str) -> tuple[str | int, ...]:
    """So that gpu-2 comes before gpu-10."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text))


def _text(device: Device, name: str) -> str:
    found = (value for key, value in device.attributes.items() if key.rpartition("/")[2] == name)
    return next((str(value.get("string", "")) for value in found), "")


def _memory(device: Device) -> int:
    return next((amount for key, amount in device.capacity.items() if key.rpartition("/")[2] == "memory"), 0)


def _scale(device: Device) -> int:
    """How large it is beside others; of a device that is only planned as its profile says: 1g.10gb."""
    named = _GB.search(profile_of(device))
    return _memory(device) or (int(named[1]) << 30 if named else 0)


def _slots(device: Device) -> tuple[int, ...]:
    drawn = [name for cost in device.costs.values() for name, amount in cost.items() if amount]
    names = [*(key.rpartition("/")[2] for key in device.capacity), *drawn]
    return tuple(sorted({int(each[1] or each[2]) for name in names if (each := _SLOT.match(name))}))
