"""An assignment that is a label of the Node: read, written with its step in one patch, and its step used up without it.

And what backends have in common that assign so to a driver which publishes its slices itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpupartition.api.v1alpha1 import Assigned, DriverSpec
from gpupartition.domain.backend import Cluster, NodeFacts
from gpupartition.domain.effects import Effect, PatchNode
from gpupartition.domain.groups import Group
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


def _patch(node: Object, labels: Mapping[str, str | None], step: str | None = None) -> PatchNode:
    meta = node["metadata"]
    return PatchNode(
        node=meta["name"],
        resource_version=meta["resourceVersion"],
        labels=labels,
        annotations={STEP: step} if step is not None else {},
    )


class OnNode:
    """The part of a backend that is the same for all of them."""

    def pool_name(self, driver: DriverSpec, node: str, group: Group | None = None) -> str:  # noqa: ARG002
        """The node's name."""
        return node

    def live(self, driver: DriverSpec, cluster: Cluster) -> bool:  # noqa: ARG002
        """Never: the driver publishes what the hardware is."""
        return False

    def cancel(self, driver: DriverSpec, facts: NodeFacts, step: str) -> Effect | None:  # noqa: ARG002
        """The step alone: an `assign` of it that comes late finds another resourceVersion."""
        return None if step_of(facts.node) == step else _patch(facts.node, {}, step)

    def repair(
        self,
        driver: DriverSpec,  # noqa: ARG002
        facts: NodeFacts,  # noqa: ARG002
        to: Assigned,  # noqa: ARG002
        step: str | None,  # noqa: ARG002
        generation: int,  # noqa: ARG002
    ) -> Effect | None:
        """Nothing: the driver publishes its slices itself."""
        return None
