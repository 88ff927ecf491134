"""An assignment that is a label of the Node: read, written with its step in one patch, and its step used up without it."""

from __future__ import annotations

from collections.abc import Mapping

from gpupartition.api.v1alpha1 import Assigned
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.effects import PatchNode
from gpupartition.domain.objects import Object
from gpupartition.names import STEP


def label_of(node: Object, name: str) -> str | None:
    """The value of a label; None where there is none."""
    value: str | None = node["metadata"].get("labels", {}).get(name)
    return value


def step_of(node: Object) -> str:
    """The step that the node carries; "" where there is none."""
    return str(node["metadata"].get("annotations", {}).get(STEP, ""))


def assign(facts: NodeFacts, label: str, to: Assigned, step: str) -> PatchNode | None:
    """Label and step together. A step that is used up is never written again."""
    return None if step_of(facts.node) == step else _patch(facts.node, {label: to.assignment}, step)


def assign_anew(facts: NodeFacts, label: str, answer: str, to: Assigned, step: str) -> PatchNode | None:
    """As `assign`, for an agent that answers by a second label, which goes in the same patch, and that notices only changes.

    The same value is taken away first, which uses no step up.
    """
    if step_of(facts.node) == step:
        return None
    if to.assignment is not None and label_of(facts.node, label) == to.assignment:
        return _patch(facts.node, {label: None, answer: None})
    return _patch(facts.node, {label: to.assignment, answer: None}, step)


def cancel(facts: NodeFacts, step: str) -> PatchNode | None:
    """The step alone: an assignment with it that comes late finds another resourceVersion."""
    return None if step_of(facts.node) == step else _patch(facts.node, {}, step)


def _patch(node: Object, labels: Mapping[str, str | None], step: str | None = None) -> PatchNode:
    meta = node["metadata"]
    return PatchNode(
        node=meta["name"],
        resource_version=meta["resourceVersion"],
        labels=labels,
        annotations={STEP: step} if step is not None else {},
    )
