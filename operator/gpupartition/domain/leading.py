"""What a node's record says of the pool of its group.

Two pools must never have devices of one node: their counters know nothing of each other. Nodes move from group to group, and whoever leads a
group may see that late. So a record names, before the first write, every pool that it is about to write; whoever is about to write reads
all records after that, and waits while another one has a pool with a node of his. Of two who do so at once, each sees the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus
from gpupartition.domain.fingerprint import of_pool, short
from gpupartition.domain.groups import on_nodes
from gpupartition.domain.pool import NODES, Pool
from gpupartition.domain.world import AT_REST


def led(state: NodeStateStatus) -> str:
    """The group whose pool this record has; "" for none."""
    return next((pool.group for pool in _pools(state) if pool.group), "")


def nodes_led(state: NodeStateStatus) -> frozenset[str]:
    """The keys of the nodes that are, or may come to be, in that pool."""
    return frozenset[str]().union(*map(on_nodes, _pools(state)))


def _pools(state: NodeStateStatus) -> Iterator[Pool]:
    """All that is, was or may come to be published by this record: of a node at rest not what it is still to get."""
    ways = [state.current] if state.phase in AT_REST else [state.target, state.previous, state.current]
    for text in (*(way.pool for way in ways if way is not None), state.retiring):
        pool = Pool.from_json(text) if NODES in text else Pool()
        if pool.devices:
            yield pool


def before_all(found: Assigned) -> Assigned:
    """What there was before anybody wanted anything: of a group's pool nothing, for whoever begins to lead finds what others have made."""
    group = Pool.from_json(found.pool).group
    if not group:
        return found
    nothing = Pool(group=group)
    return found.model_copy(
        update={"fingerprint": short(of_pool(nothing)), "assignment": None, "pool": nothing.to_json()}
    )
