"""Which nodes a label selector means (metav1.LabelSelector, apimachinery labels.Selector)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpupartition.api.v1alpha1 import NodeSelector

_OPERATORS: Final[Mapping[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value not in values,  # an absent label is not in any list: Kubernetes matches it
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


def matches(selector: NodeSelector, labels: Mapping[str, str]) -> bool:
    """All requirements hold. A selector without any is nobody's: read as Kubernetes does it would mean every node."""
    if not selector.match_labels and not selector.match_expressions:
        return False
    return all(labels.get(k) == v for k, v in selector.match_labels.items()) and all(
        _OPERATORS[r.operator](labels.get(r.key), r.values) for r in selector.match_expressions
    )
