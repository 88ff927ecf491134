"""Nodes that have a layout already, under policies that want just that: who goes together, and by which labels each policy finds its nodes.

A policy selects exactly its own nodes, of all that the cluster has: by a label that tells them from every other node, or else by their names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Final

from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.groups import HOSTNAME
from gpupartition.names import API_VERSION

Layouts = Sequence[Mapping[str, Any]]
Labels = Mapping[str, str]

LASTING: Final = (
    "amd.com/gpu.product-name",
    "node.kubernetes.io/instance-type",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
)
"""Labels that say what a node is, whatever layout it has. NVIDIA's product label is none: it changes with the layout."""
MAX_VALUES: Final = 64  # of one requirement of a selector
MAX_NAME: Final = 58  # of the 63 characters that a name may have, so that there is room for a number


class LeftOut(Exception):  # noqa: N818  (reads as what happened)
    """It cannot be said what a node has, or what a driver is: why, and what to do."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A node, the GpuPartitionDriver that has it, and the layouts that are compiled into what it has.

    `touched`: what would be done to it all the same, if they were enforced; "" when nothing.
    """

    node: str
    driver: str
    layouts: Layouts
    touched: str = ""


@dataclass(frozen=True, slots=True)
class Adopting:
    """A policy for nodes that have its layout, and the label by which it finds them; `instead` are labels that would do, too.

    `touched`: what enforcing it would do to them, for which it only observes.
    """

    body: Mapping[str, Any]
    nodes: tuple[str, ...]
    label: str
    instead: tuple[str, ...] = ()
    touched: str = ""


def unfit(seen: Observation) -> str:
    """Why it cannot be said now what a node has; "" where it can."""
    if seen.pool.problem:
        return f"what it publishes is not complete: {seen.pool.problem}"
    if not seen.pool.devices:
        return "it publishes nothing"
    return "" if seen.ready or seen.failed else seen.complaint or "its driver is not ready"


def why_not(wanted: Config, seen: Observation) -> str:
    """Why a fit node does not have what is wanted; "" where it publishes just that."""
    return "" if seen.pool.equals(wanted.pool) else "it publishes something that no layout is compiled into"


def touched(wanted: Config, seen: Observation) -> str:
    """What the operator would do to a node that publishes what is wanted; "" where it would only take it on."""
    if seen.ready and seen.running == wanted.fingerprint:
        return ""
    why = seen.failed or f"{seen.assignment or 'nothing'} is assigned to them, which does not say what they publish"
    return f"{why}: to enforce this, {wanted.assignment or 'nothing'} is assigned, and the driver is restarted there"


def policies(
    adopted: Sequence[Adopted],
    labels: Mapping[str, Labels],
    *,
    keys: Sequence[str] = LASTING,
    taken: Collection[str] = (),
) -> tuple[list[Adopting], list[str]]:
    """Policies that select these nodes and no others; and the nodes that no label tells from others.

    `labels`: of all nodes of the cluster; `keys`: labels to select by, the best first; `taken`: names of policies that there are.
    """
    used = set(taken)
    found: list[Adopting] = []
    left: list[str] = []
    for (driver, text, would), nodes in sorted(_together(adopted).items()):
        layouts = json.loads(text)
        for selector, mine in selectors(nodes, labels, keys):
            if selector is None:
                left += mine
                continue
            name = free(f"{driver}-{'-'.join(each['name'] for each in layouts)}", used)
            mode = {"mode": "Observe"} if would else {}
            spec = {"driver": driver, **mode, "nodeSelector": selector.spec, "layouts": layouts}
            body = {"apiVersion": API_VERSION, "kind": "GpuPartitionPolicy", "metadata": {"name": name}, "spec": spec}
            instead = _instead(nodes, labels) if selector.label == HOSTNAME else ()
            found.append(Adopting(body, tuple(mine), selector.label, instead, would))
    return found, left


@dataclass(frozen=True, slots=True)
class Selector:
    """A node selector as a policy has it, and the label that it goes by."""

    label: str
    spec: Mapping[str, Any]


def selectors(
    nodes: Sequence[str], labels: Mapping[str, Labels], keys: Sequence[str]
) -> Iterator[tuple[Selector | None, Sequence[str]]]:
    """Selectors, each with the nodes that it selects: exactly these nodes together, and each of them once. None: no label does that."""
    for key in keys:
        values = _values(key, nodes, labels)
        if values and len(values) <= MAX_VALUES:
            yield Selector(key, _by(key, values)), nodes
            return
    bearers = Counter(each.get(HOSTNAME) for each in labels.values())
    apart = [node for node in nodes if HOSTNAME in labels[node] and bearers[labels[node][HOSTNAME]] == 1]
    for begin in range(0, len(apart), MAX_VALUES):
        some = apart[begin : begin + MAX_VALUES]
        yield Selector(HOSTNAME, _by(HOSTNAME, [labels[node][HOSTNAME] for node in some])), some
    if len(apart) < len(nodes):
        yield None, sorted(set(nodes) - set(apart))


def _values(key: str, nodes: Sequence[str], labels: Mapping[str, Labels]) -> list[str]:
    """The values of a label that these nodes have, and no other node has; none where it does not tell them apart."""
    wanted = {labels[node].get(key) for node in nodes}
    bearers = sum(each.get(key) in wanted for each in labels.values())
    if None in wanted or bearers > len(nodes):
        return []
    return sorted(value for value in wanted if value is not None)


def _instead(nodes: Sequence[str], labels: Mapping[str, Labels]) -> tuple[str, ...]:
    """Labels that all these nodes have with one value, and no other node with that; of Kubernetes' own, such as the architecture, none."""
    alike = sorted(set(labels[nodes[0]].items()).intersection(*(labels[node].items() for node in nodes)))
    keys = (key for key, _ in alike if not key.partition("/")[0].endswith("kubernetes.io"))
    return tuple(key for key in keys if _values(key, nodes, labels))


def _by(key: str, values: Sequence[str]) -> Mapping[str, Any]:
    if len(values) == 1:
        return {"matchLabels": {key: values[0]}}
    return {"matchExpressions": [{"key": key, "operator": "In", "values": sorted(values)}]}


def _together(adopted: Sequence[Adopted]) -> dict[tuple[str, str, str], list[str]]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for each in sorted(adopted, key=lambda a: a.node):
        found.setdefault((each.driver, json.dumps(each.layouts), each.touched), []).append(each.node)
    return found


def free(name: str, used: set[str]) -> str:
    """The name, shortened if need be, or the same with the first number that nothing has; it is used from now on."""
    short = name[:MAX_NAME].rstrip("-.")
    numbered = (f"{short}-{number}" for number in count(2))
    found = next(each for each in chain([short], numbered) if each not in used)
    used.add(found)
    return found
