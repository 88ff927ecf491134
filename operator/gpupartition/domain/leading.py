"""What a node's record says of the pool of its group.

Two pools must never have devices of one node: their counters know nothing of each other. Nodes move from group to group, and whoever leads a
group may see that late. So a record names, before the first write, every pool that it is about to write; whoever is about to write reads
all records after that, and waits while another one has a pool with a node of his. Of two who do so at once, each sees the other.

A pool is handed over from record to record: whoever comes to lead takes what the former one's says, and only then that one forgets it. So
somebody knows at any time what is in there, though slices get lost meanwhile. What is taken is of a higher generation, and what the pool is
changed to of a still higher one: so of two who have it, one has to forget it, and never the one who knows what has become of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus, Phase
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


def leader(having: Mapping[str, NodeStateStatus], members: Sequence[str]) -> str:
    """Who leads: a member that has the pool, whoever is about to change it, else the first member, else whoever has it."""
    own = [name for name in having if name in members]
    moving = [name for name, state in having.items() if state.phase not in AT_REST]
    return next((min(some) for some in (own, moving, members, having) if some), "")


def former(having: Mapping[str, NodeStateStatus], leads: str) -> str:
    """From whose record the leader has still to take the pool; "" where its own says what became of it."""
    others = [name for name, state in having.items() if name != leads and state.phase in AT_REST]
    left, own = max(others, key=lambda name: (having[name].generation, name), default=""), having.get(leads)
    return left if not left or own is None or own.generation <= having[left].generation else ""


def settled(state: NodeStateStatus, of_leader: NodeStateStatus | None) -> str:
    """The fingerprint that a node was verified with, together with the one that leads; "" while not both are."""
    both = [each.current for each in (state, of_leader) if each is not None and each.phase is Phase.UP_TO_DATE]
    found = {each.fingerprint for each in both if each is not None}
    return found.pop() if len(both) == 2 and len(found) == 1 else ""


def taken_over(state: NodeStateStatus, left: NodeStateStatus) -> NodeStateStatus:
    """A record with the pool that another one's has: what is published stays as it is."""
    update = {"current": left.current, "retiring": left.retiring, "generation": left.generation + 1}
    return state.model_copy(update=update)


def before_all(found: Assigned, group: str) -> Assigned:
    """What there was before anybody wanted anything: of a group's pool nothing, for whoever begins to lead finds what others have made."""
    if not group:
        return found
    nothing = Pool(group=group)
    return found.model_copy(
        update={"fingerprint": short(of_pool(nothing)), "assignment": None, "pool": nothing.to_json()}
    )
