"""The inventory of a driver: which GPUs a node has, read from what a person wrote, from labels of the node, and from the tables of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpupartition.api.v1alpha1 import GpuGroup, Inventory, NodeLabelInventory, Profile
from gpupartition.domain import quantity
from gpupartition.domain.counters import FULL
from gpupartition.domain.gpus import MAX_GPUS, MIB, Gpu, Partition
from gpupartition.domain.objects import Object
from gpupartition.domain.pool import Amounts
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.products import plain_product
from gpupartition.domain.tabled import Tables, tabled

_AT: Final = "spec.publish.inventory.gpus"


def groups_on(inventory: Inventory, node: Object) -> Sequence[GpuGroup]:
    """The groups of equal GPUs that the node has. Raises Refused (NoInventory) where its labels do not say."""
    return inventory.gpus if inventory.node_labels is None else [_from_labels(inventory.node_labels, node)]


def numbered(groups: Sequence[GpuGroup], tables: Tables) -> tuple[Gpu, ...]:
    """The GPUs of these groups, by index: as they are written, else as a table knows them. Raises Refused with everything that is wrong."""
    problems: list[Problem] = []
    gpus: list[Gpu] = []
    for place, group in enumerate(groups):
        gpu = _Reading(problems).gpu(f"{_AT}[{place}]", group, tables)
        gpus += [replace(gpu, index=index, group=place) for index in range(len(gpus), len(gpus) + group.count)]
    if len(gpus) > MAX_GPUS:
        problems.append(
            Problem(
                reason="TooManyGpus",
                at=_AT,
                why=f"{len(gpus)} GPUs on a node are more than {MAX_GPUS}",
                fix="lower the counts",
            )
        )
    if problems:
        raise Refused(*problems)
    return tuple(gpus)


class _Reading:
    """Reads quantities and collects what is wrong with them; a bad one reads as 1, so that the rest is looked at too."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def gpu(self, at: str, group: GpuGroup, tables: Tables) -> Gpu:
        product, memory = plain_product(group.product), self.amount(f"{at}.memory", group.memory)
        known = tabled(product, memory, tables) if not group.counters and not group.profiles else None
        if known is not None:
            return known
        counters = self.amounts(f"{at}.counters", group.counters) or {"memory": memory}
        return Gpu(
            product=product,
            memory=memory,
            counters=counters,
            whole=Partition(name=FULL, capacity={"memory": memory}, placements={0: counters}),
            partitions={
                profile.name: self.partition(f"{at}.profiles[{number}]", profile, counters)
                for number, profile in enumerate(group.profiles)
            },
        )

    def amount(self, at: str, text: str) -> int:
        try:
            value = quantity.parse(text)
        except ValueError as error:
            self._wrong(at, str(error).partition("; ")[0], str(error).partition("; ")[2])
            return 1
        if value < 1:
            self._wrong(at, f"{text} is not more than 0", "write a positive quantity, such as 40Gi")
            return 1
        return value

    def amounts(self, at: str, texts: Mapping[str, str]) -> dict[str, int]:
        return {name: self.amount(f"{at}[{name}]", text) for name, text in texts.items()}

    def partition(self, at: str, profile: Profile, counters: Amounts) -> Partition:
        capacity = self.amounts(f"{at}.capacity", profile.capacity)
        placements = {}
        for number, placement in enumerate(profile.placements):
            where = f"{at}.placements[{number}].counters"
            costs = self.amounts(where, placement.counters)
            self.problems += _costs(where, profile.name, costs, capacity, counters)
            placements[number] = costs
        return Partition(name=profile.name, capacity=capacity, placements=placements)

    def _wrong(self, at: str, why: str, fix: str) -> None:
        self.problems.append(Problem(reason="InventoryInvalid", at=at, why=why, fix=fix))


def _costs(at: str, profile: str, costs: Amounts, capacity: Amounts, counters: Amounts) -> Iterator[Problem]:
    show = quantity.render
    for name, cost in costs.items():
        if name not in counters:
            yield Problem(
                reason="InventoryInvalid",
                at=f"{at}[{name}]",
                why=f"the GPU has no counter {name}",
                fix=f"use one of {', '.join(sorted(counters))}, or add it to the group's counters",
            )
        elif cost > counters[name]:
            yield Problem(
                reason="InventoryInvalid",
                at=f"{at}[{name}]",
                why=f"{profile} takes {show(cost)} of {name}, and the GPU has {show(counters[name])}",
                fix=f"write at most {show(counters[name])}",
            )
        elif name in capacity and cost < capacity[name]:
            yield Problem(
                reason="InventoryInvalid",
                at=f"{at}[{name}]",
                why=f"{profile} offers {show(capacity[name])} of {name} and takes only {show(cost)} from the GPU: the rest would be sold twice",
                fix=f"write at least {show(capacity[name])}",
            )


def _from_labels(labels: NodeLabelInventory, node: Object) -> GpuGroup:
    name = node["metadata"]["name"]
    present: Mapping[str, Any] = node["metadata"].get("labels", {})
    missing = [key for key in (labels.count, labels.product, labels.memory) if not present.get(key)]
    problems = [_no_inventory(name, key, "is missing") for key in missing]
    count, memory = str(present.get(labels.count, "")), str(present.get(labels.memory, ""))
    if labels.count not in missing and not (count.isascii() and count.isdigit() and 1 <= int(count) <= MAX_GPUS):
        problems.append(_no_inventory(name, labels.count, f"is {count!r} instead of a number from 1 to {MAX_GPUS}"))
    if labels.memory not in missing:
        try:
            size = quantity.parse(str(int(memory) * MIB) if memory.isascii() and memory.isdigit() else memory)
            memory = quantity.render(size)  # a label has room for longer spellings than a group
            if size < 1:
                problems.append(_no_inventory(name, labels.memory, "is not more than 0"))
        except ValueError:
            problems.append(
                _no_inventory(name, labels.memory, f"is {memory!r} instead of a quantity, or of MiB as a bare number")
            )
    if problems:
        raise Refused(*problems)
    return GpuGroup(count=int(count), product=str(present[labels.product]), memory=memory)


def _no_inventory(node: str, label: str, why: str) -> Problem:
    return Problem(
        reason="NoInventory",
        at=f"node {node}",
        why=f"its label {label} {why}",
        fix="let GPU feature discovery write it, or write it yourself, or list the GPUs in the driver's spec.publish.inventory.gpus",
    )
