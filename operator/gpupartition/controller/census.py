"""What the nodes of a policy publish, counted at each look at it, and read only where something has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from gpupartition.api.v1alpha1 import Phase, ProfileCapacity
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Driver
from gpupartition.controller.packed import PackedSlice, opened
from gpupartition.controller.remembered import Remembered
from gpupartition.controller.scope import Scope
from gpupartition.domain.backend import Config, NodeFacts
from gpupartition.domain.capacity import Stock, by_profile, profiles_of, stock_of
from gpupartition.domain.pool import FLEET
from gpupartition.kube import Object
from gpupartition.kube.pauses import Pauses


class Census:
    """Counts from the copies."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._stocks: Remembered[Stock] = Remembered()
        self._runs: Remembered[bool] = Remembered()

    async def capacity(self, scope: Scope) -> list[ProfileCapacity]:
        """Devices of each profile on the policy's nodes."""
        driver, caches = scope.driver, self._caches
        common = self._stocks.common(driver.name, driver.driver_name, nodes=len(caches.nodes.values()))

        def look(node: str) -> Stock:
            pool = driver.backend.pool_name(driver.spec, node, scope.groups.get(node))
            slices = _published(caches, driver, scope, node) if pool else []
            claims = tuple(caches.claims.by("pool", pool))
            return self._stocks.of(node, (common, *slices, *claims), lambda: _stock(driver, slices, claims))

        stocks, pauses = [], Pauses()
        for node in scope.nodes:
            stocks.append(look(node))
            if pauses.due:
                await pauses.take()
        return by_profile(stocks)

    async def would_change(self, scope: Scope) -> int:
        """How many of the policy's nodes do not have what is wanted, as far as the copies know."""
        driver = scope.driver
        facts = (driver.spec, driver.driver_name, driver.cluster)
        common = self._runs.common(driver.name, facts, nodes=len(self._caches.nodes.values()))
        others, pauses = 0, Pauses()
        for name, node in scope.nodes.items():
            others += not self._has(scope, name, node, common)
            if pauses.due:
                await pauses.take()
        return others

    def _has(self, scope: Scope, name: str, node: Object, common: object) -> bool:
        intent, record, driver = scope.intents.get(name), scope.records.get(name), scope.driver
        wanted = intent.wanted if intent is not None else None
        if wanted is None:
            return False
        if record is not None and record.state.phase is Phase.UP_TO_DATE:
            target = record.state.target
            return target is not None and target.fingerprint == wanted.fingerprint
        slices = _published(self._caches, driver, scope, name)
        pods = [p for n in driver.backend.namespaces(driver.spec) for p in self._caches.pods(n, name)]
        objects = (common, wanted, node, *slices, *pods)
        return self._runs.of(name, objects, lambda: _has(scope, wanted, node, slices, pods))


def _published(caches: Caches, driver: Driver, scope: Scope, node: str) -> list[PackedSlice]:
    return caches.packed_on(node, driver.driver_name, scope.groups.get(node))


def _stock(driver: Driver, slices: Iterable[PackedSlice], claims: Iterable[Object]) -> Stock:
    return stock_of(((each.pool, _profiles(each.offered)) for each in slices), claims, driver=driver.driver_name)


@lru_cache(maxsize=FLEET)
def _profiles(offered: str) -> Mapping[str, str]:
    return profiles_of(opened(offered).get("devices", ()))


def _has(scope: Scope, wanted: Config, node: Object, slices: Iterable[PackedSlice], pods: list[Object]) -> bool:
    """Whether a node publishes and runs what is wanted."""
    driver, bodies = scope.driver, [each.body() for each in slices]
    facts = NodeFacts(node=node, slices=bodies, pods=pods, group=scope.groups.get(node["metadata"]["name"]))
    seen = driver.backend.observe(driver.spec, facts, driver.cluster)
    return seen.running == wanted.fingerprint and seen.pool.equals(wanted.pool)
