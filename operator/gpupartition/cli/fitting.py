"""What will fit, from a cluster as it is and from plans: what it takes to ask domain/prospect.py, read and laid together."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from gpupartition.backends.foreseen import slices_after
from gpupartition.cli.foresight import Foresight
from gpupartition.cli.options import Unusable
from gpupartition.controller.caches import OURS, trim, trim_node
from gpupartition.controller.intent import Driver
from gpupartition.controller.probe import TAINT_RULES
from gpupartition.domain.allocator.allocate import Allocator
from gpupartition.domain.allocator.shares import DeviceId, Held
from gpupartition.domain.allocator.taints import tainted
from gpupartition.domain.asks import Ask, Desk, Key, alone, is_allocated, is_waiting, key_of, results_of, waiting
from gpupartition.domain.fit import Floor
from gpupartition.domain.plan import PoolPlan
from gpupartition.domain.pool import Pool
from gpupartition.domain.prospect import Prospect, emptied, expected
from gpupartition.kube import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    Forbidden,
    NotFound,
    Object,
)
from gpupartition.names import CORDONED

PATIENCE: Final = 10.0  # seconds: nobody waits longer for a plan; the rest is told as not looked at

Place = tuple[str, str]
"""Driver and pool."""


def until(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds are over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


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


async def look(client: Client, seen: Foresight | None = None) -> Sight:
    """Read it, but for what was `seen` already. Raises ApiError."""
    elsewhere = "spec.nodeName=" if seen is not None else ""
    slices = (await client.list(RESOURCE_SLICES, field_selector=elsewhere, keep=trim)).items
    if seen is not None:
        slices = [body for body in slices if not body["spec"].get("nodeName")]
    return Sight(
        nodes=list(seen.caches.nodes.values()) if seen else (await client.list(NODES, keep=trim_node)).items,
        slices=[*(seen.caches.slices.values() if seen else ()), *slices],
        claims=seen.claims if seen else (await client.list(RESOURCE_CLAIMS, keep=trim)).items,
        classes=(await client.list(DEVICE_CLASSES)).items,
        templates=(await client.list(RESOURCE_CLAIM_TEMPLATES)).items,
        rules=await _rules(client),
    )


async def _rules(client: Client) -> Sequence[Object]:
    for kind in TAINT_RULES:
        try:
            return (await client.list(kind)).items
        except NotFound:
            continue
    return ()


def _unplaced(body: Object) -> Object | None:
    return _asking(body) if is_waiting(body) else None


def _asking(body: Object) -> Object:
    """What a pod needs, and where it may run."""
    wanted = ("nodeName", "nodeSelector", "affinity", "tolerations", "priority", "resourceClaims")
    spec = {name: body["spec"][name] for name in wanted if name in body["spec"]}
    for name in ("containers", "initContainers"):
        kept = ({k: c[k] for k in ("resources", "restartPolicy") if k in c} for c in body["spec"].get(name) or ())
        spec[name] = list(kept)
    return {"metadata": trim(body)["metadata"], "spec": spec, "status": body.get("status") or {}}


async def foreseen_to_fit(client: Client, seen: Foresight, *, needed: bool) -> Prospect:
    """What will fit, or why that was not looked at. Raises ApiError, and Unusable where it is `needed` and cannot be said."""
    try:
        found = await prospect(client, seen, until(PATIENCE))
    except Forbidden as error:
        if needed:
            raise
        return Prospect(why_not=f"{error}; bind the ClusterRole gpupartition-plan of this release")
    looked_at, everybody = found.looked_at
    if needed and not found.unschedulable and looked_at < everybody:
        raise Unusable(
            f"it cannot be said that nobody is unschedulable: in {PATIENCE:g} s only {looked_at} of {everybody} who want devices were "
            "looked at; plan fewer policies at once, or without --fail-on=unschedulable"
        )
    return found


async def prospect(client: Client, seen: Foresight, late: Callable[[], bool]) -> Prospect:
    """What will fit once these plans have come true. Raises ApiError."""
    sight = await look(client, seen)
    unplaced = (await client.list(PODS, field_selector="spec.nodeName=", keep=_unplaced)).items
    board = Board(sight, seen)
    desk = Desk(sight.claims, sight.templates, sight.classes)
    harmed = board.harmed()
    asks, again = waiting(unplaced, sight.claims, desk), _restarts(harmed, await _pods(client, harmed), desk)
    left = emptied(sight.classes, sight.slices, board.once_free_slices, late)
    if not asks and not again:
        return Prospect(emptied=left)
    floors = board.now(), board.after(), board.once_free(harmed)
    pending, restarts = expected(asks, again, *floors, late=late)
    return Prospect(pending=pending, restarts=restarts, emptied=left)


async def _pods(client: Client, claims: Iterable[Object]) -> Mapping[Key, Object]:
    """The pods that have these claims."""
    wanted = {(key_of(claim)[0], pod["name"]): pod.get("uid") for claim in claims for pod in _users(claim)}

    def keep(body: Object) -> Object | None:
        key = key_of(body)
        return _asking(body) if key in wanted and wanted[key] == body["metadata"].get("uid") else None

    found: dict[Key, Object] = {}
    for namespace in sorted({namespace for namespace, _ in wanted}):
        listed = await client.list(PODS, namespace=namespace, keep=keep)
        found |= {key_of(body): body for body in listed.items}
    return found


def _users(claim: Object) -> list[Object]:
    return [r for r in (claim.get("status") or {}).get("reservedFor") or () if r.get("resource") == "pods"]


def _restarts(claims: Iterable[Object], pods: Mapping[Key, Object], desk: Desk) -> list[Ask]:
    """The next start of those who have these claims; of a claim that no pod has, the next time that somebody wants it."""
    asks: dict[Key, Ask] = {}
    for claim in claims:
        users = [pods[key] for pod in _users(claim) if (key := (key_of(claim)[0], pod["name"])) in pods]
        for pod in users:
            asks.setdefault(key_of(pod), desk.next_start(pod))
        if not users:
            asks[key_of(claim)] = alone(claim)
    return list(asks.values())


class Board:
    """The cluster's nodes and slices: now, after all waves, and once nothing is in the way of the plans any more."""

    def __init__(self, sight: Sight, seen: Foresight | None = None) -> None:
        self._sight: Final = sight
        drivers = {scope.driver.name: scope.driver for scope in seen.scopes} if seen else {}
        self._pools: Final[dict[Place, tuple[Driver, PoolPlan]]] = {
            (driver.driver_name, driver.backend.pool_name(driver.spec, pool.node)): (driver, pool)
            for plan in (seen.plans if seen else ())
            for driver in (drivers[plan.driver],)
            for pool in plan.pools
            if pool.once_free is not pool.now
        }
        self._present: Final[dict[Place, list[Object]]] = {place: [] for place in self._pools}
        for body in sight.slices:
            if (place := _place(body)) in self._present:
                self._present[place].append(body)

    def now(self) -> Floor:
        """As it is."""
        return self._floor(self._sight.nodes, self._sight.slices, self._sight.rules, self._sight.claims)

    def after(self) -> Floor:
        """After all waves: who is waited for has ended, and nodes that are blocked are as they are."""
        return self._open(self._changed(_after), self._sight.claims, self._gone(_after))

    def once_free(self, ended: Sequence[Object]) -> Floor:
        """With every node changed, when those who have these claims have ended."""
        over = set(map(id, ended))
        claims = [claim for claim in self._sight.claims if id(claim) not in over]
        return self._open(self.once_free_slices, claims, set())

    @cached_property
    def once_free_slices(self) -> list[Object]:
        """With every node changed."""
        return self._changed(_once_free)

    def harmed(self) -> list[Object]:
        """The claims whose devices are taken away, or are not there any more."""
        gone = self._gone(_once_free)
        return [
            claim
            for claim in self._sight.claims
            if is_allocated(claim) and any(self._is_taken(_device(result), gone) for result in results_of(claim))
        ]

    def _is_taken(self, device: DeviceId, gone: Collection[DeviceId]) -> bool:
        changing = self._pools.get(device[:2])
        return device in gone or (changing is not None and device[2] not in changing[1].now.names)

    def _changed(self, then: Callable[[PoolPlan], Pool]) -> list[Object]:
        """The slices once the pools are those."""
        changed: set[Place] = set()
        found: list[Object] = []
        for place, (driver, pool) in self._pools.items():
            wanted = then(pool)
            if not wanted.equals(pool.now):
                changed.add(place)
                present = self._present[place]
                found += slices_after(driver.spec.type, *place, pool.node, now=pool.now, then=wanted, present=present)
        return [body for body in self._sight.slices if _place(body) not in changed] + found

    def _gone(self, then: Callable[[PoolPlan], Pool]) -> set[DeviceId]:
        """Devices that a change takes away from whoever has them."""
        return {
            (*place, name)
            for place, (driver, pool) in self._pools.items()
            for name in driver.backend.disturbs(pool.now, then(pool))
        }

    def _open(self, slices: Iterable[Object], claims: Iterable[Object], gone: Collection[DeviceId]) -> Floor:
        """With what this operator keeps closed while it is at work opened again."""
        rules = [rule for rule in self._sight.rules if not _is_ours(rule)]
        held = (_without(claim, gone) for claim in claims) if gone else claims
        return self._floor(map(_uncordoned, self._sight.nodes), slices, rules, held)

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


def _is_ours(rule: Object) -> bool:
    key, _, value = OURS.partition("=")
    return bool((rule["metadata"].get("labels") or {}).get(key) == value)


def _uncordoned(node: Object) -> Object:
    if CORDONED not in node["metadata"]["annotations"]:
        return node
    return {**node, "spec": {k: v for k, v in node["spec"].items() if k != "unschedulable"}}
