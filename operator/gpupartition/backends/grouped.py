"""A node as one of a group whose GPUs are published together: why it is not in there, what it waits for, and the pool of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

from gpupartition.api.v1alpha1 import MultiNode
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.groups import HOSTNAME, MAX_NODES, Group, joined
from gpupartition.domain.layout import too_much
from gpupartition.domain.objects import Object
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused


def hostname(node: Object) -> str:
    """What a device over several nodes knows this one by."""
    return str(node["metadata"].get("labels", {}).get(HOSTNAME, ""))


def pool_of(spec: MultiNode, group: str, parts: Mapping[str, Pool], hosts: Mapping[str, str]) -> Pool:
    """The pool of a group from those of its nodes, by name, as are their hostnames. Raises Refused where they cannot be in one."""
    pool = joined(group, spec.group_label, parts, hosts, spec.sizes)
    problems = [*_of_hosts(hosts), *too_much(pool)]
    if problems:
        raise Refused(*problems)
    return pool


def joined_by(spec: MultiNode | None, facts: NodeFacts) -> Group:
    """The group of a node that is in one. Raises Refused: that node is left out."""
    assert spec is not None, "only such a driver knows groups"
    group, label = facts.group, spec.group_label
    left_out = partial(Problem, at=f"node {facts.name}", of_node=True)
    if group is None:
        why = f"its label {label} does not say to which group it belongs"
        fix = f"label it with {label}: the name of a group, of lower-case letters, digits, dots and dashes"
        raise Refused(left_out(reason="NoGroup", why=why, fix=fix))
    if group.skipped:
        why = f"node {group.skipped} of its group is left alone, so all of it is"
        fix = "remove the label gpupartition.dev/skip from that node"
        raise Refused(left_out(reason="SkipRequested", why=why, fix=fix))
    if group.kept_out:
        fix = "it joins as soon as that is over"
        raise Refused(left_out(reason="NotInGroup", why=group.kept_out, fix=fix, passing=True))
    if len(group.members) > MAX_NODES:
        why = f"{len(group.members)} nodes are labelled {label}: {group.name}, and a pool has counters for {MAX_NODES}"
        raise Refused(left_out(reason="GroupTooLarge", why=why, fix="make smaller groups"))
    return group


def follows(node: str, group: Group) -> Problem:
    """Why a node has not what is wanted: the one that leads its group has not."""
    return Problem(
        reason="FollowsNode",
        at=f"node {node}",
        why=f"follows node {group.leader}, which brings the pool of group {group.name} to what is wanted",
        fix=f"look at that one: kubectl get gpn {group.leader}",
        of_node=True,
        passing=True,
    )


def _of_hosts(hosts: Mapping[str, str]) -> Iterator[Problem]:
    """A device over some nodes finds them by their label: each has to have one, and of its own."""
    shared = Counter(hosts.values())
    for node, host in hosts.items():
        if not host or shared[host] > 1:
            yield Problem(
                reason="NoHostname",
                at=f"node {node}",
                why=f"its label {HOSTNAME} is {repr(host) + ', as that of another node' if host else 'missing'}",
                fix="let its kubelet write it, or write one that no other node has",
                of_node=True,
            )
