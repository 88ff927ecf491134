"""The devices of a cluster as the scheduler sees them from one node: which pools there are, in which order, and which of them serve.

Follows GatherPools of k8s.io/dynamic-resource-allocation v0.37 (structured, incubating). `domain.pool` reads one pool that is ours; here
are all pools, whoever publishes them, with all that decides whether a claim gets a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gpupartition.domain.allocator.places import Node, Place
from gpupartition.domain.allocator.selectors import UNKNOWN, Unknown
from gpupartition.domain.allocator.shares import Amount, Capacity, DeviceId, amount_of

PoolId = tuple[str, str]
"""Driver and name."""

Counter = tuple[str, str]
"""Name of the set, name in the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the scheduler has switched on, as of 1.37 without any flag. Alpha features are not modelled: they are off."""

    admin_access: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    device_taints: bool = True
    fractional_capacity_range: bool = False
    partitionable_devices: bool = True
    prioritized_list: bool = True


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Device:
    """One device of a slice. Equal only to itself."""

    id: DeviceId
    body: Mapping[str, Any]
    place: Place
    """Its own, where its slice leaves it to the devices; otherwise the slice's."""

    placed_alone: bool
    shared: bool
    capacity: Mapping[str, Capacity]
    costs: Mapping[Counter, Amount]
    taints: Sequence[Mapping[str, Any]]
    attributes: Mapping[str, tuple[str, Any]]
    unknown: frozenset[str] = frozenset()
    """Of which of `attributes` and `capacity` it may have more than is known: it is not published yet."""

    @property
    def driver(self) -> str:
        """Whose device it is."""
        return self.id[0]

    @property
    def pool(self) -> PoolId:
        """In which pool it is."""
        return self.id[:2]

    def attribute(self, name: str) -> tuple[str, Any] | None:
        """By a fully qualified name; what has no domain has the driver's. Raises Unknown."""
        domain, _, own = name.partition("/")
        found = self.attributes.get(name)
        found = self.attributes.get(own) if found is None and domain == self.driver else found
        if found is None and "attributes" in self.unknown:
            raise Unknown(f"it is not known whether device {self.id[2]} has the attribute {name}")
        return found


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Slice:
    """One ResourceSlice, read once for all nodes. `count`: how many its pool has; `by_device`: each device says where it can be used."""

    name: str
    pool: PoolId
    generation: int
    count: int
    place: Place
    by_device: bool
    counters: Mapping[str, Mapping[str, Amount]]
    twice: str
    """A counter set that it has twice, which makes its pool invalid."""

    devices: Sequence[Device]
    beyond: bool
    """Whether it uses what is modelled as off: compatibility groups."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Slice:
        """From a ResourceSlice as the API has it."""
        spec = body["spec"]
        pool, by_device, place = (
            (spec["driver"], spec["pool"]["name"]),
            bool(spec.get("perDeviceNodeSelection")),
            Place.read(spec),
        )
        sets = spec.get("sharedCounters") or ()
        names = [each["name"] for each in sets]
        devices = spec.get("devices") or ()
        return cls(
            name=body["metadata"]["name"],
            pool=pool,
            generation=int(spec["pool"].get("generation", 0)),
            count=int(spec["pool"]["resourceSliceCount"]),
            place=place,
            by_device=by_device,
            counters={each["name"]: _amounts(each["counters"]) for each in sets},
            twice=next((name for name in names if names.count(name) > 1), ""),
            devices=[_read_device(device, pool, None if by_device else place) for device in devices],
            beyond=any(
                cost.get("compatibilityGroups") for device in devices for cost in device.get("consumesCounters", ())
            ),
        )

    def reaches(self, node: Node) -> bool:
        """Whether the node can use anything of it."""
        if self.place:
            return self.place.reaches(node)
        return self.by_device and any(device.place.reaches(node) for device in self.devices)


def _read_device(body: Mapping[str, Any], pool: PoolId, place: Place | None) -> Device:
    costs: dict[Counter, Amount] = {}
    for cost in body.get("consumesCounters") or ():
        for name, amount in _amounts(cost["counters"]).items():
            counter = cost["counterSet"], name
            costs[counter] = costs.get(counter, 0) + amount
    return Device(
        id=(*pool, body["name"]),
        body=body,
        place=Place.read(body) if place is None else place,
        placed_alone=place is None,
        shared=bool(body.get("allowMultipleAllocations")),
        capacity={name: Capacity.read(each) for name, each in (body.get("capacity") or {}).items()},
        costs=costs,
        taints=body.get("taints") or (),
        attributes={
            name: next(iter(value.items()), ("", None)) for name, value in (body.get("attributes") or {}).items()
        },
        unknown=frozenset(body.get(UNKNOWN, ())),
    )


def _amounts(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Amount]:
    return {name: amount_of(str(value["value"])) for name, value in values.items()}


class Trouble(Enum):
    """Why nothing is allocated from a pool."""

    UPDATED = "currently being updated"
    INVALID = "currently invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool as one node sees it."""

    id: PoolId
    devices: Sequence[Device] = ()
    elsewhere: Sequence[Device] = ()
    """Those of slices that the node cannot use. They draw on the same counters."""

    counters: Mapping[Counter, Amount] = field(default_factory=dict)
    trouble: Trouble | None = None
    why: str = ""


def node_selector(devices: Iterable[Device], node: Node) -> dict[str, Any] | None:
    """Where those who share a claim with these devices can run, as its allocation says it; None: anywhere. Raises ValueError."""
    term: dict[str, list[Any]] = {}
    for device in devices:
        if device.place.node or device.body.get("bindsToNode"):
            here = {"key": "metadata.name", "operator": "In", "values": [node.name]}
            return {"nodeSelectorTerms": [{"matchFields": [here]}]}
        terms = (device.place.selector or {}).get("nodeSelectorTerms") or ()
        if len(terms) > 1:
            raise ValueError(
                f"device {'/'.join(device.id)} has a node selector with {len(terms)} terms; it may have one"
            )
        for kind in ("matchFields", "matchExpressions"):
            for requirement in (terms[0].get(kind) if terms else None) or ():
                if all(_said(requirement) != _said(each) for each in term.get(kind, ())):
                    term.setdefault(kind, []).append(requirement)
    return {"nodeSelectorTerms": [term]} if term else None


def _said(requirement: Mapping[str, Any]) -> tuple[str, str, frozenset[str]]:
    return requirement["key"], requirement["operator"], frozenset(requirement.get("values") or ())


class Slices:
    """All slices of a cluster. Each is read when a node that it may be about is first asked for: most questions are about a few nodes."""

    def __init__(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        self._by_node: dict[str, list[Mapping[str, Any]]] = {}
        self._by_pool: dict[PoolId, list[Mapping[str, Any]]] = {}
        self._read: dict[str, Slice] = {}
        for body in bodies:
            spec = body["spec"]
            self._by_node.setdefault(spec.get("nodeName") or "", []).append(body)
            self._by_pool.setdefault((spec["driver"], spec["pool"]["name"]), []).append(body)

    def near(self, node: Node) -> Iterator[Slice]:
        """Those that may reach the node, its own first."""
        for body in (*self._by_node.get(node.name, ()), *self._by_node.get("", ())):
            yield self._once(body)

    def of(self, pool: PoolId) -> list[Slice]:
        """All of a pool."""
        return [self._once(body) for body in self._by_pool.get(pool, ())]

    def _once(self, body: Mapping[str, Any]) -> Slice:
        name = body["metadata"]["name"]
        if name not in self._read:
            self._read[name] = Slice.read(body)
        return self._read[name]


def gather(slices: Slices, node: Node, features: Features) -> list[Pool]:
    """The pools that have something for the node, in the order of search: by driver and name, those whose devices must be bound last.

    The order of the slices decides only where those of one pool disagree on how many there are.
    """
    newest: dict[PoolId, list[Slice]] = {}
    for each in slices.near(node):
        understood = not each.beyond and (features.partitionable_devices or not (each.by_device or each.counters))
        if understood and each.reaches(node):
            there = newest.setdefault(each.pool, [])
            if there and each.generation > there[0].generation:
                there.clear()
            if not there or each.generation == there[0].generation:
                there.append(each)
    pools = [pool for pool_id, there in newest.items() if (pool := _pool(pool_id, there, slices, features)) is not None]
    return sorted(pools, key=lambda pool: (any(_must_be_bound(device) for device in pool.devices), pool.id))


def _must_be_bound(device: Device) -> bool:
    return device.body.get("bindingConditions") is not None


def _pool(pool_id: PoolId, there: Sequence[Slice], slices: Slices, features: Features) -> Pool | None:
    """None when its slices are of the past: a newer generation has nothing for the node."""
    count, everywhere = there[0].count, there
    if len(there) != count:
        same = slices.of(pool_id)
        if any(each.generation > there[0].generation for each in same):
            return None
        everywhere = [each for each in same if each.generation == there[0].generation and not each.beyond]
        if len(everywhere) != count:
            why = f"{len(everywhere)} of {count} slices of generation {there[0].generation} are there"
            return Pool(id=pool_id, trouble=Trouble.UPDATED, why=why)
    return _complete(pool_id, sorted(there, key=lambda each: each.name), everywhere, features)


def _complete(pool_id: PoolId, there: Sequence[Slice], everywhere: Sequence[Slice], features: Features) -> Pool:
    names = {each.name for each in there}
    others = [each for each in everywhere if each.name not in names]
    devices = _devices_of(there, features)
    elsewhere = _devices_of(others, features)
    counters = {
        (name, counter): amount
        for each in (*there, *others)
        for name, amounts in each.counters.items()
        for counter, amount in amounts.items()
    }
    why = _named_twice([device.id[2] for device in devices], "device")
    if features.partitionable_devices:
        sets = [name for each in (*there, *others) for name in (*each.counters, *filter(None, [each.twice]))]
        why = why or _named_twice(sets, "counter set")
        why = why or next(
            (
                f"device {device.id[2]} draws on counter {counter[1]} of {counter[0]}, which does not exist"
                for device in (*devices, *elsewhere)
                for counter in device.costs
                if counter not in counters
            ),
            "",
        )
    if why:
        return Pool(id=pool_id, trouble=Trouble.INVALID, why=why)
    return Pool(id=pool_id, devices=devices, elsewhere=elsewhere, counters=counters)


def _devices_of(slices: Iterable[Slice], features: Features) -> list[Device]:
    return [
        device for each in slices if not (features.partitionable_devices and each.counters) for device in each.devices
    ]


def _named_twice(names: Sequence[str], what: str) -> str:
    if len(set(names)) == len(names):
        return ""
    return f"{what} {next(name for name in names if names.count(name) > 1)} is there twice"
