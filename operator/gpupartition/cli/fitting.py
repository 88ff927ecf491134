"""What will fit, from a cluster as it is and from plans: what it takes to ask domain/prospect.py, read and laid together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpupartition.cli.board import Board, Sight
from gpupartition.cli.cluster import taint_rules
from gpupartition.cli.options import Unusable
from gpupartition.cli.planned import Planned
from gpupartition.controller.trimmed import trim, trim_node
from gpupartition.domain.asks import Ask, Desk, Key, alone, is_waiting, key_of, waiting
from gpupartition.domain.prospect import Prospect, compared, emptied
from gpupartition.kube import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    Forbidden,
    Object,
)

PATIENCE: Final = 10.0  # seconds: nobody waits longer for a plan; the rest is told as not looked at


def until(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds are over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


async def look(client: Client, seen: Planned | None = None) -> Sight:
    """Read it, but for what was `seen` already. Raises ApiError."""
    return Sight(
        nodes=list(seen.caches.nodes.values()) if seen else (await client.list(NODES, keep=trim_node)).items,
        slices=[each.body() for each in seen.caches.slices.values()]
        if seen
        else (await client.list(RESOURCE_SLICES, keep=trim)).items,
        claims=seen.claims if seen else (await client.list(RESOURCE_CLAIMS, keep=trim)).items,
        classes=(await client.list(DEVICE_CLASSES)).items,
        templates=(await client.list(RESOURCE_CLAIM_TEMPLATES)).items,
        rules=await taint_rules(client),
    )


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


async def prospect_in_time(client: Client, seen: Planned, *, needed: bool) -> Prospect:
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


async def prospect(client: Client, seen: Planned, late: Callable[[], bool]) -> Prospect:
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
    pending, restarts = compared(asks, again, *floors, late=late)
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
