"""A node selector means what Kubernetes means by it, but for the empty one."""

from __future__ import annotations

from typing import Any

import pytest

from gpupartition.api.v1alpha1 import NodeSelector
from gpupartition.domain.selector import matches

LABELS = {"pool": "inference", "zone": "1", "gpu": ""}


def selector(labels: dict[str, str] | None = None, *expressions: tuple[str, str, list[str]]) -> NodeSelector:
    body: dict[str, Any] = {
        "matchLabels": labels or {},
        "matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in expressions],
    }
    return NodeSelector.model_validate(body)


@pytest.mark.parametrize(
    ("asked", "matched"),
    [
        (selector({"pool": "inference"}), True),
        (selector({"pool": "inference", "zone": "1"}), True),
        (selector({"pool": "inference", "zone": "2"}), False),
        (selector({"absent": ""}), False),
        (selector({"gpu": ""}), True),
        (selector(None, ("zone", "In", ["1", "2"])), True),
        (selector(None, ("zone", "In", ["2"])), False),
        (selector(None, ("absent", "In", ["1"])), False),
        (selector(None, ("zone", "NotIn", ["2"])), True),
        (selector(None, ("zone", "NotIn", ["1"])), False),
        (selector(None, ("absent", "NotIn", ["1"])), True),
        (selector(None, ("gpu", "Exists", [])), True),
        (selector(None, ("absent", "Exists", [])), False),
        (selector(None, ("absent", "DoesNotExist", [])), True),
        (selector(None, ("gpu", "DoesNotExist", [])), False),
        (selector({"pool": "inference"}, ("zone", "In", ["2"])), False),
        (selector({"pool": "inference"}, ("zone", "In", ["1"]), ("absent", "Exists", [])), False),
    ],
)
def test_all_requirements_must_hold(asked: NodeSelector, matched: bool) -> None:
    assert matches(asked, LABELS) is matched


def test_a_selector_without_requirements_selects_nobody() -> None:
    assert not matches(NodeSelector(), LABELS)
