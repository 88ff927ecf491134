"""Which nodes or pods a label selector means (metav1.LabelSelector, apimachinery labels.Selector)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpupartition.api.v1alpha1 import NodeSelector, PodSelector

OPERATORS: Final[Mapping[str, Callable[[str | None, Sequence[str]], bool]]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value not in values,  # an absent label is not in any list: Kubernetes matches it
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}
"""What a requirement with these values asks of a label's value; None: there is no such label."""


def matches(selector: NodeSelector | PodSelector, labels: Mapping[str, str]) -> bool:
    """All requirements hold. A selector without any is nobody's: read as Kubernetes does it would mean every node."""
    if not selector.match_labels and not selector.match_expressions:
        return False
    required = ((r.key, r.operator, r.values) for r in selector.match_expressions)
    return fits(selector.match_labels, required, labels)


def fits(wanted: Mapping[str, str], required: Iterable[tuple[str, str, list[str]]], labels: Mapping[str, str]) -> bool:
    """All labels are there with their values, and all requirements (key, operator, values) hold."""
    return wanted.items() <= labels.items() and all(
        OPERATORS[operator](labels.get(key), values) for key, operator, values in required
    )
