"""A pool as the scheduler sees it: devices and shared counters, read from ResourceSlices (offered.py) or compiled from a layout."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

from gpupartition.domain.objects import as_text

T = TypeVar("T")

Amounts = Mapping[str, int]
"""Counters or capacity by name: quantities as whole numbers, fractions rounded up; memory in bytes."""

MAX_RECORD: Final = 262_144  # characters of a pool in a node's record
NODES: Final = "gpupartition-nodes"
"""The counter set of a group's pool, with a counter for each of its nodes (groups.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device: what it has, what it takes from which counter set, and whether several claims may share it.

    `attributes` and `request_policy` are kept as the API writes them (`{"index": {"int": 0}}`, `{"memory": {"default": "40Gi", ...}}`).

    Some drivers choose names, places and sizes of partitions themselves. Their devices say of which `gpu` and of which `kind` they are, and
    nothing else of them counts.

    `retired`: of a former layout, tainted so that nobody is given it any more, and published as long as somebody may have it.

    `place`: where it is, in a pool of several nodes, as the API writes it (`{"nodeName": "n1"}`, `{"nodeSelector": {...}}`).
    """

    name: str
    capacity: Amounts = field(default_factory=dict)
    costs: Mapping[str, Amounts] = field(default_factory=dict)
    shared: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    request_policy: Mapping[str, Any] = field(default_factory=dict)
    gpu: str = ""
    kind: str = ""
    retired: bool = False
    place: Mapping[str, Any] = field(default_factory=dict)

    def text(self, *names: str) -> str:
        """What an attribute says, by the first of these names that it has; "" where that is no text, or there is none."""
        for name in names:
            if found := self.attributes.get(name):
                return str(found.get("string", ""))
        return ""

    def hardware(self) -> tuple[Any, ...]:
        """What the device is, without its labels: two devices that agree here are the same thing to whoever holds one."""
        if self.gpu:
            return self.gpu, self.kind
        costs = {name: dict(amounts) for name, amounts in self.costs.items()}
        return self.name, dict(self.capacity), costs, self.shared, dict(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All devices of one (driver, pool name), in the order in which the scheduler tries them.

    `kept` are GPUs, with their attributes, of which nobody wants anything: whatever is cut from them is not compared.

    `group`: the nodes that share the pool ("": it is that of one node).
    """

    devices: tuple[Device, ...] = ()
    counters: Mapping[str, Amounts] = field(default_factory=dict)
    generation: int = 0
    problem: str = ""
    kept: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    _once: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was asked before."""

    def __hash__(self) -> int:
        """Pools that are equal have devices of the same names, as all nodes of a kind do: those the first one's serial number tells apart."""
        if "hash" not in self._once:
            first = as_text([dict(device.attributes) for device in self.devices[:1]])
            self._once["hash"] = hash((self.generation, first, *(d.name for d in self.devices)))
        return int(self._once["hash"])

    @property
    def usable(self) -> bool:
        """Whether the scheduler would allocate from it. An absent pool is usable: there is nothing to get wrong."""
        return not self.problem

    def equals(self, other: Pool) -> bool:
        """The same devices in the same order at the same cost: what verifying a change asks for. Attributes, taints, versions are free.

        Where the driver chooses names and places: as many devices of each kind on each GPU.
        """
        if self.by_kind or other.by_kind:
            return self.same_shape(other)
        return self.usable and other.usable and self.of_kind(_hardware) == other.of_kind(_hardware)

    @property
    def bare(self) -> Pool:
        """The same without attributes, on which nothing depends that is compared: where it was read, one for all nodes of a kind."""
        bare: Pool = self._once.get("bare", self)
        return bare

    def labelled(self, attributes: Iterable[Mapping[str, Any]]) -> Pool:
        """The same with attributes for each of its devices, whose bare pool this is."""
        devices = zip(self.devices, attributes, strict=True)
        pool = replace(self, devices=tuple(replace(device, attributes=its_own) for device, its_own in devices))
        pool._once["bare"] = self  # noqa: SLF001
        return pool

    def of_kind(self, asked: Callable[[Pool], T]) -> T:
        """What has nothing to do with attributes: worked out once for all nodes of a kind."""
        if self.bare is not self:
            return self.bare.of_kind(asked)
        if asked not in self._once:
            self._once[asked] = asked(self)
        found: T = self._once[asked]
        return found

    @property
    def gpus(self) -> frozenset[str]:
        """What the devices are cut from: their counter sets; a device that shares nothing is a GPU of its own."""
        return self.of_kind(_gpus)

    def equals_but_for_lost_gpus(self, other: Pool) -> bool:
        """Equal to the other one on the GPUs that there are, which are some of the other's, and not all."""
        mine = self.gpus
        if not mine or not mine < other.gpus or not self.usable:
            return False
        kept = tuple(d for d in other.devices if _parents(d) <= mine)
        counters = {name: amounts for name, amounts in other.counters.items() if name in self.counters}
        return self.equals(Pool(devices=kept, counters=counters, kept=other.kept))

    def same_shape(self, other: Pool) -> bool:
        """The same partitions of the same parents, whatever their bytes: a driver that rounds memory differently has not drifted."""
        kept = self.kept.keys() | other.kept.keys()
        one, another = (_shape(each, kept) if kept else each.of_kind(_shape) for each in (self, other))
        return self.usable and other.usable and one == another

    @property
    def by_kind(self) -> bool:
        """Whether its driver chooses names, places and sizes itself."""
        return bool(self.kept or (self.devices and self.devices[0].gpu))  # it does for all of its devices, or for none

    def vanishing(self, then: Pool) -> frozenset[str]:
        """Names of the devices that are gone, or are something else, in `then`. A held device among them would over-commit its GPU."""
        return _vanishing(self.bare, then.bare)

    def vanishing_names(self, then: Pool) -> frozenset[str]:
        """Names of the devices that have no counterpart in `then`, whatever that is now."""
        return self.fewer(then) if self.by_kind or then.by_kind else self.names - then.names

    @property
    def names(self) -> frozenset[str]:
        """Names of the devices."""
        return self.of_kind(_names)

    def retire(self, then: Pool) -> Pool:
        """What must stay published beside `then` until nobody has it: the devices that vanish, and the counters that they draw on."""
        return _retire(self, then)

    def without_retired(self) -> tuple[Pool, Pool]:
        """What is offered, and what is retired. A counter set on which only retired devices draw is theirs."""
        return _without_retired(self)

    def beside(self, stay: Pool) -> Pool:
        """This pool, with devices that stay behind its own; what somebody may have keeps its name."""
        return _beside(self, stay)

    def goes_with(self, stay: Pool) -> bool:
        """Whether both can be published at once: no name stands for two things, and no counter set either."""
        return not self.names & stay.names and all(
            dict(self.counters.get(name, amounts)) == dict(amounts)
            for name, amounts in stay.counters.items()
            if name != NODES  # where every node has as much
        )

    def keep(self, names: Collection[str]) -> Pool:
        """Only the devices of these names, and what they draw on."""
        return self.of([d for d in self.devices if d.name in names])

    def of(self, devices: Sequence[Device]) -> Pool:
        """These of its devices alone, and what they draw on."""
        drawn = {name for d in devices for name in d.costs}
        counters = {name: amounts for name, amounts in _drawn(self.counters, devices).items() if name in drawn}
        return Pool(devices=tuple(devices), counters=counters, group=self.group)

    @property
    def kinds(self) -> Mapping[str, Sequence[str]]:
        """The kinds of devices on each GPU, sorted, where its driver chooses names itself."""
        found: dict[str, list[str]] = {}
        for device in self.devices:
            found.setdefault(device.gpu, []).append(device.kind)
        return {gpu: sorted(kinds) for gpu, kinds in found.items()}

    def recut(self, then: Pool) -> frozenset[str]:
        """The GPUs of which `then` has other kinds of devices, or more, or fewer; of those that it keeps nothing is wanted."""
        before, after = self.kinds, then.kinds
        gpus = (before.keys() | after.keys()) - then.kept.keys()
        return frozenset(gpu for gpu in gpus if before.get(gpu) != after.get(gpu))

    def fewer(self, then: Pool) -> frozenset[str]:
        """Names of the devices beyond as many as `then` has of each kind on each GPU."""
        left, gone = Counter((d.gpu, d.kind) for d in then.devices), set()
        for device in self.devices:
            left[device.gpu, device.kind] -= 1
            if left[device.gpu, device.kind] < 0 and device.gpu not in then.kept:
                gone.add(device.name)
        return frozenset(gone)

    def to_json(self) -> str:
        """Canonical text: equal pools give equal text."""
        if "text" not in self._once:
            counters = {name: {c: str(v) for c, v in amounts.items()} for name, amounts in self.counters.items()}
            body: dict[str, Any] = {"devices": [_device_to_json(d) for d in self.devices], "counters": counters}
            body |= {"kept": dict(self.kept)} if self.kept else {}
            body |= {"group": self.group} if self.group else {}
            self._once["text"] = as_text(body)
        return str(self._once["text"])

    @classmethod
    def from_json(cls, text: str) -> Pool:
        """The pool that `to_json` wrote; the empty text is the empty pool."""
        return _from_json(text)


FLEET: Final = 128
"""The nodes of a fleet have a few pools, and what follows from one pool is worked out once for all that have it."""


def _names(pool: Pool) -> frozenset[str]:
    return frozenset(d.name for d in pool.devices)


def _gpus(pool: Pool) -> frozenset[str]:
    return frozenset(name for device in pool.devices for name in _parents(device)) | frozenset(pool.kept)


def _hardware(pool: Pool) -> str:
    """What counts of it where its devices' names do."""
    counters = {name: dict(amounts) for name, amounts in pool.counters.items()}
    return as_text([[device.hardware() for device in pool.devices], counters])


def _shape(pool: Pool, kept: Collection[str] = ()) -> list[tuple[str, tuple[str, ...]]]:
    return sorted(
        (d.gpu, (d.kind,)) if d.gpu else (d.name, tuple(sorted(d.costs))) for d in pool.devices if d.gpu not in kept
    )


@lru_cache(maxsize=FLEET)
def _vanishing(now: Pool, then: Pool) -> frozenset[str]:
    if now.by_kind or then.by_kind:
        return now.fewer(then)
    kept = {d.name: d.hardware() for d in then.devices}
    return frozenset(d.name for d in now.devices if kept.get(d.name) != d.hardware())


@lru_cache(maxsize=FLEET)
def _retire(now: Pool, then: Pool) -> Pool:
    gone = now.vanishing(then)
    return now.of([replace(d, retired=True) for d in now.devices if d.name in gone])


@lru_cache(maxsize=FLEET)
def _without_retired(pool: Pool) -> tuple[Pool, Pool]:
    retired = pool.of([d for d in pool.devices if d.retired])
    if not retired.devices:
        return pool, retired
    offered = tuple(d for d in pool.devices if not d.retired)
    theirs = retired.counters.keys() - {name for d in offered for name in d.costs}
    counters = {n: amounts for n, amounts in _drawn(pool.counters, offered).items() if n not in theirs}
    return replace(pool, devices=offered, counters=counters), retired


@lru_cache(maxsize=FLEET)
def _beside(pool: Pool, stay: Pool) -> Pool:
    kept = tuple(d for d in pool.devices if d.name not in stay.names)
    both = {**pool.counters.get(NODES, {}), **stay.counters.get(NODES, {})}
    counters = {**pool.counters, **stay.counters} | ({NODES: both} if both else {})
    return replace(pool, devices=kept + stay.devices, counters=counters, group=pool.group or stay.group)


def _parents(device: Device) -> frozenset[str]:
    """The GPUs that it is cut from; none where it has whole nodes."""
    return frozenset(device.costs) - {NODES} if device.costs else frozenset({device.gpu or device.name})


def _drawn(counters: Mapping[str, Amounts], devices: Iterable[Device]) -> Mapping[str, Amounts]:
    """The counter sets, but of the nodes only those that the devices are on."""
    if NODES not in counters:
        return counters
    on = {node for d in devices for node in d.costs.get(NODES, ())}
    return {**counters, NODES: {node: places for node, places in counters[NODES].items() if node in on}}


@lru_cache(maxsize=256)  # each record of a fleet names a few pools, and nearly all name the same ones
def _from_json(text: str) -> Pool:
    body = json.loads(text or "{}")
    return Pool(
        devices=tuple(_device_from_json(d) for d in body.get("devices", ())),
        counters={name: {c: int(v) for c, v in amounts.items()} for name, amounts in body.get("counters", {}).items()},
        kept=body.get("kept", {}),
        group=body.get("group", ""),
    )


def _device_to_json(device: Device) -> dict[str, Any]:
    body: dict[str, Any] = {"name": device.name, "capacity": {k: str(v) for k, v in device.capacity.items()}}
    if device.costs:
        body["costs"] = {name: {c: str(v) for c, v in cost.items()} for name, cost in device.costs.items()}
    if device.shared:
        body["shared"] = True
    if device.attributes:
        body["attributes"] = device.attributes
    if device.request_policy:
        body["requestPolicy"] = device.request_policy
    if device.gpu:
        body |= {"gpu": device.gpu, "kind": device.kind}
    if device.retired:
        body["retired"] = True
    if device.place:
        body["place"] = device.place
    return body


def _device_from_json(body: Mapping[str, Any]) -> Device:
    return Device(
        name=body["name"],
        capacity={k: int(v) for k, v in body["capacity"].items()},
        costs={name: {c: int(v) for c, v in cost.items()} for name, cost in body.get("costs", {}).items()},
        shared=body.get("shared", False),
        attributes=body.get("attributes", {}),
        request_policy=body.get("requestPolicy", {}),
        gpu=body.get("gpu", ""),
        kind=body.get("kind", ""),
        retired=body.get("retired", False),
        place=body.get("place", {}),
    )
