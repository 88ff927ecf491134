"""From which nodes devices can be used: core/v1 NodeSelector, and what slices say instead of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpupartition.domain.selector import OPERATORS


@dataclass(frozen=True, slots=True)
class Node:
    """What a node selector looks at."""

    name: str
    labels: Mapping[str, str]

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Node:
        """From a Node as the API has it."""
        return cls(body["metadata"]["name"], body["metadata"].get("labels") or {})


@dataclass(frozen=True, slots=True)
class Place:
    """From where something can be used: by one node, by those that a selector means, by all, or (as the API forbids) by none."""

    node: str = ""
    everywhere: bool = False
    selector: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Place:
        """From a slice's spec, or from a device of a slice that leaves it to them."""
        return cls(body.get("nodeName") or "", bool(body.get("allNodes")), body.get("nodeSelector"))

    def __bool__(self) -> bool:
        return bool(self.node) or self.everywhere or self.selector is not None

    def reaches(self, node: Node) -> bool:
        """Whether the node can use it."""
        if self.node:
            return self.node == node.name
        return self.everywhere or (self.selector is not None and selects(self.selector, node))


def selects(selector: Mapping[str, Any], node: Node) -> bool:
    """core/v1 NodeSelector: one term is enough, all of a term must hold, and an empty term means no node."""
    return any(_means(term, node) for term in selector.get("nodeSelectorTerms", ()))


def _means(term: Mapping[str, Any], node: Node) -> bool:
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    by_label = all(_holds(requirement, node.labels.get(requirement["key"])) for requirement in labels)
    by_name = all(
        _holds(requirement, node.name if requirement["key"] == "metadata.name" else None) for requirement in fields
    )
    return bool(labels or fields) and by_label and by_name


def _as_number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


_OPERATORS: Final[Mapping[str, Callable[[str | None, Sequence[str]], bool]]] = {
    **OPERATORS,
    "Gt": lambda value, values: (number := _as_number(value)) is not None and number > int(values[0]),
    "Lt": lambda value, values: (number := _as_number(value)) is not None and number < int(values[0]),
}


def _holds(requirement: Mapping[str, Any], value: str | None) -> bool:
    return _OPERATORS[requirement["operator"]](value, requirement.get("values") or ())
