"""A cluster's nodes and devices laid out to be asked who would find some: now, after all waves, and once nothing is in the way of plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from gpupartition.backends.expected_slices import expected_slices
from gpupartition.cli.planned import Planned
from gpupartition.controller.declared import Driver
from gpupartition.domain.allocator.allocate import Allocator
from gpupartition.domain.allocator.shares import DeviceId, Held
from gpupartition.domain.allocator.taints import tainted
from gpupartition.domain.asks import Key, is_allocated, key_of, results_of
from gpupartition.domain.fit import Floor
from gpupartition.domain.groups import Group
from gpupartition.domain.plan import PoolPlan
from gpupartition.domain.pool import Pool
from gpupartition.domain.quiesce import is_ours
from gpupartition.kube import Object
from gpupartition.names import CORDONED

Place = tuple[str, str]
"""Driver and pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What of a cluster decides about devices, as the API has it: `slices` and `claims` are all that there are."""

    nodes: Sequence[Object]
    slices: Sequence[Object]
    claims: Sequence[Object]
    classes: Sequence[Object]
    templates: Sequence[Object]
    rules: Sequence[Object]

    def without(self, claims: Collection[Key]) -> Sight:
        """As if these claims were not there."""
        return replace(self, claims=[claim for claim in self.claims if key_of(claim) not in claims])

    def with_classes(self, classes: Sequence[Object]) -> Sight:
        """With these DeviceClasses, in the place of those of the same names."""
        names = {each["metadata"]["name"] for each in classes}
        return replace(self, classes=[*(c for c in self.classes if c["metadata"]["name"] not in names), *classes])


class _Changing:
    """A node's pool that a plan changes: what comes of it with a layout, found out once."""

    def __init__(self, driver: Driver, plan: PoolPlan) -> None:
        self.driver, self.plan = driver, plan
        names = (pool.group for pool in (plan.wanted, plan.once_free, plan.after) if pool is not None and pool.group)
        group = next((Group(name=name, leader=plan.node) for name in names), None)
        self.place: Final[Place] = driver.driver_name, driver.backend.pool_name(driver.spec, plan.node, group)
        self.present: Final[list[Object]] = []
        self._gone: Final[dict[int, Collection[str]]] = {}

    def gone(self, then: Pool) -> Collection[str]:
        """Devices that the change takes away from whoever has them."""
        if id(then) not in self._gone:
            same = then is self.plan.now
            self._gone[id(then)] = () if same else self.driver.backend.disturbs(self.plan.now, then)
        return self._gone[id(then)]

    def slices(self, then: Pool) -> Sequence[Object]:
        """What it publishes then."""
        if then is self.plan.now or then.equals(self.plan.now):
            return self.present
        kind, node = self.driver.spec.type, self.plan.node
        return expected_slices(kind, *self.place, node, now=self.plan.now, then=then, present=self.present)


class Board:
    """The cluster as it was seen, with the plans for it, if there are any."""

    def __init__(self, sight: Sight, seen: Planned | None = None) -> None:
        self._sight: Final = sight
        drivers = {scope.driver.name: scope.driver for scope in seen.scopes} if seen else {}
        changing = [
            _Changing(drivers[plan.driver], pool)
            for plan in (seen.plans if seen else ())
            for pool in plan.pools
            if pool.once_free is not pool.now
        ]
        self._changing: Final = {each.place: each for each in changing}
        self._others: Final[list[Object]] = []
        for body in sight.slices:
            each = self._changing.get(_place(body))
            (self._others if each is None else each.present).append(body)

    def now(self) -> Floor:
        """As it is."""
        return self._floor(self._sight.nodes, self._sight.slices, self._sight.rules, self._sight.claims)

    def after(self) -> Floor:
        """After all waves: who is waited for has ended, and nodes that are blocked are as they are."""
        gone = self._gone(_after)
        return self._open(self._slices(_after), (_without(claim, gone) for claim in self._sight.claims))

    def once_free(self, ended: Sequence[Object]) -> Floor:
        """With every node changed, when those who have these claims have ended."""
        over = set(map(id, ended))
        return self._open(self.once_free_slices, (claim for claim in self._sight.claims if id(claim) not in over))

    @cached_property
    def once_free_slices(self) -> list[Object]:
        """With every node changed."""
        return list(self._slices(_once_free))

    def harmed(self) -> list[Object]:
        """The claims whose devices are taken away, or are not there any more."""
        gone = self._gone(_once_free)
        return [
            claim
            for claim in self._sight.claims
            if is_allocated(claim) and any(self._is_taken(_device(result), gone) for result in results_of(claim))
        ]

    def _is_taken(self, device: DeviceId, gone: Collection[DeviceId]) -> bool:
        changing = self._changing.get(device[:2])
        return device in gone or (changing is not None and device[2] not in changing.plan.now.names)

    def _slices(self, then: Callable[[PoolPlan], Pool]) -> Iterator[Object]:
        """What is published once the pools are those."""
        yield from self._others
        for each in self._changing.values():
            yield from each.slices(then(each.plan))

    def _gone(self, then: Callable[[PoolPlan], Pool]) -> set[DeviceId]:
        return {(*each.place, name) for each in self._changing.values() for name in each.gone(then(each.plan))}

    def _open(self, slices: Iterable[Object], claims: Iterable[Object]) -> Floor:
        """With what this operator keeps closed while it is at work opened again."""
        rules = [rule for rule in self._sight.rules if not is_ours(rule)]
        return self._floor(map(_uncordoned, self._sight.nodes), slices, rules, claims)

    def _floor(
        self, nodes: Iterable[Object], slices: Iterable[Object], rules: Iterable[Object], claims: Iterable[Object]
    ) -> Floor:
        return Floor(nodes, Allocator(tainted(slices, rules), self._sight.classes, Held.read(claims)))


def _place(body: Object) -> Place:
    return body["spec"]["driver"], body["spec"]["pool"]["name"]


def _after(pool: PoolPlan) -> Pool:
    return pool.after


def _once_free(pool: PoolPlan) -> Pool:
    return pool.once_free


def _device(result: Mapping[str, Any]) -> DeviceId:
    return result["driver"], result["pool"], result["device"]


def _without(claim: Object, gone: Collection[DeviceId]) -> Object:
    """The claim without devices that are gone."""
    left = [result for result in results_of(claim) if _device(result) not in gone]
    return {"status": {"allocation": {"devices": {"results": left}}}}


def _uncordoned(node: Object) -> Object:
    if CORDONED not in node["metadata"]["annotations"]:
        return node
    return {**node, "spec": {k: v for k, v in node["spec"].items() if k != "unschedulable"}}
