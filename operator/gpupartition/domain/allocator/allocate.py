"""Which devices the scheduler would give to the claims of a pod on a node: the first combination that fits, in its order of search.

Follows the allocator of k8s.io/dynamic-resource-allocation v0.37 in the variant `incubating`, which 1.37 takes for its default features.
tests/e2e/test_oracle.py holds the two against each other. Kubernetes takes `stable` where neither binding conditions nor shared capacity are
on, and that one goes through pools in no order, so that nobody can foretell it; and `experimental` for what is alpha, which is not modelled.

It thinks as the scheduler does, and no better: claims and requests in order, of a request the devices in the order in which their drivers
publish them, the first alternative that leads to a solution, back from dead ends, and no score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpupartition.domain.allocator.claims import Claim
from gpupartition.domain.allocator.places import Node
from gpupartition.domain.allocator.pools import (
    Counter,
    Features,
    Pool,
    PoolId,
    Slices,
    Trouble,
    gather,
    node_selector,
)
from gpupartition.domain.allocator.search import Result, Search
from gpupartition.domain.allocator.shares import Amount, Held
from gpupartition.domain.allocator.wanted import GivenUp, Wants


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """What one claim gets, and where else its pods can run with it (core/v1 NodeSelector; None: anywhere)."""

    results: Sequence[Result]
    node_selector: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What each claim gets, in their order; None when they do not fit on the node. `invalid` says of pools why they were no help."""

    claims: Sequence[Allocated] | None
    invalid: Mapping[PoolId, str]


class Allocator:
    """The devices of a cluster, and who holds them. May be asked for many nodes and pods."""

    def __init__(
        self,
        slices: Iterable[Mapping[str, Any]],
        classes: Iterable[Mapping[str, Any]],
        held: Held,
        features: Features | None = None,
    ) -> None:
        """Slices and DeviceClasses as the API has them. Taints of DeviceTaintRules must be in the slices already."""
        self.features: Final = features or Features()
        self._slices: Final = Slices(slices)
        self._pools: Final[dict[str, Sequence[Pool]]] = {}  # by node, once asked
        self._classes: Final = {
            body["metadata"]["name"]: [each["cel"]["expression"] for each in body["spec"].get("selectors") or ()]
            for body in classes
        }
        self._holds(held)

    def _holds(self, held: Held) -> None:
        self.held = held
        self._left: dict[PoolId, dict[Counter, Amount]] = {}

    def holding(self, held: Held) -> Allocator:
        """The same devices in other hands."""
        other: Allocator = object.__new__(Allocator)
        other.__dict__.update(self.__dict__)
        other._holds(held)
        return other

    def having_given(self, answer: Answer) -> Allocator:
        """The same devices once the claims have got what was answered."""
        results = [r for claim in answer.claims or () for r in claim.results if not r.admin]
        return self.holding(
            self.held.and_also(
                (r.id for r in results if r.consumed is None),
                ((r.id, r.consumed) for r in results if r.consumed is not None),
            )
        )

    def allocate(
        self, node: Mapping[str, Any], claims: Iterable[Mapping[str, Any]], *, late: Callable[[], bool] = lambda: False
    ) -> Answer:
        """What the claims of one pod get on the node.

        `late` is asked before each step: the scheduler's filter gives up after 10 s, as a search may take for ever. Raises GivenUp, and
        Unknown where it comes upon a device of which not enough is known.
        """
        where = Node.read(node)
        if where.name not in self._pools:
            self._pools[where.name] = gather(self._slices, where, self.features)
        pools = self._pools[where.name]
        wants = Wants(features=self.features, classes=self._classes, node=where, pools=pools)
        found = Search(wants, [Claim.read(claim) for claim in claims], self.held, self._counters_left).run(late)
        return Answer(
            claims=None if found is None else [_allocated(results, where) for results in found],
            invalid={pool.id: pool.why for pool in pools if pool.trouble is Trouble.INVALID},
        )

    def _counters_left(self, pool: Pool) -> Mapping[Counter, Amount]:
        """What the devices that somebody holds leave of the pool's counters, shared ones counted once. Less than nothing when overdrawn."""
        if pool.id not in self._left:
            left = dict(pool.counters)
            for device in (*pool.devices, *pool.elsewhere):
                if device.id in self.held:
                    for counter, amount in device.costs.items():
                        left[counter] -= amount
            self._left[pool.id] = left
        return self._left[pool.id]


def _allocated(results: Sequence[Result], node: Node) -> Allocated:
    try:
        return Allocated(results=results, node_selector=node_selector((result.device for result in results), node))
    except ValueError as error:
        raise GivenUp(str(error)) from None
