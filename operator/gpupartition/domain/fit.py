"""Who would find devices: pods and claims one after the other, each on the first node that has what it needs, as the cluster is or will be.

Of a pod this looks at its claims, and on which nodes it may run at all: spec.nodeName, nodeSelector, required node affinity, and taints of
nodes. Nothing else that the scheduler weighs is in it: CPU and memory, affinity between pods, spreading, volumes, preemption, scores. So a
"no" is the devices' no, and a "yes" means that devices are not what the pod waits for.

Nodes are tried in the order of their names. Whoever got devices keeps them before those who come later.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpupartition.domain.allocator.allocate import Allocator, Answer
from gpupartition.domain.allocator.claims import is_tolerated
from gpupartition.domain.allocator.places import Node, selects
from gpupartition.domain.allocator.pools import PoolId
from gpupartition.domain.allocator.selectors import Unknown
from gpupartition.domain.allocator.shares import DeviceId, Held
from gpupartition.domain.allocator.wanted import GivenUp
from gpupartition.domain.asks import Ask, Key, is_allocated, key_of
from gpupartition.domain.objects import Object
from gpupartition.domain.wording import few

UNSCHEDULABLE: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}  # what a cordon means


class Fits(StrEnum):
    """Whether devices are found."""

    YES = "Fits"
    NO = "DoesNotFit"
    UNKNOWN = "Unknown"  # it depends on what a driver has not published yet
    UNSEEN = "NotLookedAt"  # the time was up


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What comes of an ask: on which node, with which devices, or why not."""

    fits: Fits
    node: str = ""
    devices: tuple[DeviceId, ...] = ()
    why: str = ""


class Floor:
    """All nodes with their devices, and who has which. Devices that are given away here stay given away."""

    def __init__(self, nodes: Iterable[Object], allocator: Allocator) -> None:
        self._nodes: Final = sorted(nodes, key=lambda each: str(each["metadata"]["name"]))
        self._allocator = allocator
        self._empty: Final = allocator.holding(Held())
        self._bound: Final[dict[Key, Object | None]] = {}  # claims that got devices here: from where these can be used
        self._trails: Final[dict[str, _Trail]] = {}  # by what is asked

    def place(self, asks: Iterable[Ask], late: Callable[[], bool] = lambda: False) -> dict[Ask, Outcome]:
        """What comes of each, in turn. Once it is late the others are not looked at."""
        found: dict[Ask, Outcome] = {}
        for ask in asks:
            found[ask] = Outcome(fits=Fits.UNSEEN, why=LATE) if late() else self._place(ask, late)
        return found

    def _place(self, ask: Ask, late: Callable[[], bool]) -> Outcome:
        if ask.problem:
            return Outcome(fits=Fits.NO, why=ask.problem)
        wanted = [claim for claim in ask.claims if not is_allocated(claim) and key_of(claim) not in self._bound]
        question = self._question(ask, wanted)
        if question not in self._trails:
            self._trails[question] = _Trail(deque(self._nodes_for(ask)))
        trail = self._trails[question]
        while trail.left and trail.end is None:
            node = trail.left[0]
            try:
                answer = self._allocator.allocate(node, wanted, late=late)
            except Unknown as error:
                trail.unknown = trail.unknown or str(error)
            except GivenUp as error:
                if late():
                    return Outcome(fits=Fits.UNSEEN, why=LATE)
                trail.end = Outcome(fits=Fits.NO, why=str(error))
                break
            else:
                if answer.claims is not None:
                    return self._give(node, wanted, answer)
            trail.left.popleft()
        if trail.end is None and trail.unknown:
            trail.end = Outcome(fits=Fits.UNKNOWN, why=trail.unknown)
        if trail.end is None:
            trail.end = Outcome(fits=Fits.NO, why=self._why_not(ask, wanted, late))
        return trail.end

    def _give(self, node: Object, wanted: Sequence[Object], answer: Answer) -> Outcome:
        self._allocator = self._allocator.having_given(answer)
        for claim, allocated in zip(wanted, answer.claims or (), strict=True):
            self._bound[key_of(claim)] = allocated.node_selector
        devices = tuple(r.id for allocated in answer.claims or () for r in allocated.results)
        return Outcome(fits=Fits.YES, node=node["metadata"]["name"], devices=devices)

    def _question(self, ask: Ask, wanted: Sequence[Object]) -> str:
        """Equal for those who get the same answer from the same devices. More that is held never makes a no a yes."""
        where = [ask.pod.get(name) for name in ("nodeName", "nodeSelector", "affinity", "tolerations")]
        return json.dumps([[claim["spec"] for claim in wanted], where, self._places(ask)], sort_keys=True, default=str)

    def _places(self, ask: Ask) -> list[Object]:
        """From where those of its claims that have devices can be used."""
        found = (
            claim["status"]["allocation"].get("nodeSelector") if is_allocated(claim) else self._bound.get(key_of(claim))
            for claim in ask.claims
        )
        return [selector for selector in found if selector]

    def _nodes_for(self, ask: Ask) -> list[Object]:
        """The nodes that it may run on."""
        places = self._places(ask)
        return [
            node
            for node in self._nodes
            if may_run(ask.pod, node) and all(selects(place, Node.read(node)) for place in places)
        ]

    def _why_not(self, ask: Ask, wanted: Sequence[Object], late: Callable[[], bool]) -> str:
        """Whether there is nothing, or nothing left."""
        nodes, invalid = self._nodes_for(ask), dict[PoolId, str]()
        if not nodes:
            return "there is no node that it may run on"
        try:
            for node in nodes:
                answer = self._empty.allocate(node, wanted, late=late)
                if answer.claims is not None:
                    return "what it could have is taken, or too little of it is left on any one node"
                invalid |= answer.invalid
        except (GivenUp, Unknown):
            return "no node that it may run on has such devices free"
        pools = [f"pool {name} of {driver}: {why}" for (driver, name), why in sorted(invalid.items())]
        told = f"; nothing is taken of {few(pools, between='; ')}" if pools else ""
        return f"no node that it may run on has such devices{told}"


@dataclass(slots=True)
class _Trail:
    """Where something is looked for: the nodes that have not failed it yet, and how it ended for all who ask the same."""

    left: deque[Object]
    unknown: str = ""
    end: Outcome | None = None


LATE: Final = "the time was up before it was its turn"


def may_run(pod: Object, node: Object) -> bool:
    """Whether a pod may run on a node, as far as that is said of nodes themselves."""
    labels, where = node["metadata"].get("labels") or {}, Node.read(node)
    if pod.get("nodeName"):
        return bool(pod["nodeName"] == where.name)
    if any(labels.get(name) != value for name, value in (pod.get("nodeSelector") or {}).items()):
        return False
    affinity = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity and not selects(affinity, where):
        return False
    spec = node.get("spec") or {}
    taints = [*(spec.get("taints") or ()), *([UNSCHEDULABLE] if spec.get("unschedulable") else ())]
    return all(is_tolerated(taint, pod.get("tolerations") or ()) for taint in taints)
