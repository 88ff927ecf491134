"""The CRDs in crds/ are those of the models, and keep the laws that the API server does not check."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pydantic import BaseModel

from gpupartition.api import crd, reference
from gpupartition.api.v1alpha1 import Condition, PolicySpec

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
KINDS = pytest.mark.parametrize("kind", crd.KINDS, ids=lambda kind: kind.kind)


def schema(kind: crd.Kind) -> dict[str, Any]:
    version = crd.crd(kind)["spec"]["versions"][0]
    return dict(version["schema"]["openAPIV3Schema"])


def walk(node: dict[str, Any], at: str = "", *, listed: bool = False) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield the schema of each field below, with its path and whether it stands in a list or is a value of a map."""
    yield at, node, listed
    for name, field in node.get("properties", {}).items():
        yield from walk(field, f"{at}.{name}", listed=listed)
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from walk(node[key], f"{at}[]", listed=True)


def fields(kind: crd.Kind) -> Iterator[tuple[str, dict[str, Any], bool]]:
    for name in ("spec", "status"):
        yield from walk(schema(kind)["properties"][name], name)


def test_the_committed_crds_are_those_of_the_models() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "crds").glob("*.yaml")} == crd.files(), (
        "run `make crds`"
    )


def test_the_committed_reference_is_that_of_the_models() -> None:
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert reference.rewritten(page) == page, "run `make crds`"


def reasons() -> Iterator[str]:
    """Each reason that a Problem or a Verdict is made with, as it stands in the sources."""
    for path in (ROOT / "operator/gpupartition").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"Problem", "Verdict"}
            ):
                yield from (
                    word.value.value
                    for word in node.keywords
                    if word.arg == "reason"
                    and isinstance(word.value, ast.Constant)
                    and isinstance(word.value.value, str)
                )


def test_the_reference_explains_each_reason_that_a_status_can_have() -> None:
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    named = set(reasons())
    assert {"BaseMissing", "RolloutComplete"} <= named
    assert sorted(reason for reason in named if f"`{reason}`" not in page) == [], "explain them in docs/reference.md"


@KINDS
def test_nothing_is_unbounded(kind: crd.Kind) -> None:
    bound = {"string": "maxLength", "array": "maxItems"}
    for at, field, _ in fields(kind):
        if (name := bound.get(field.get("type", ""))) and not field.keys() & {"enum", "format"}:
            assert name in field, at
        if "additionalProperties" in field:
            assert "maxProperties" in field, at


@KINDS
def test_each_field_is_described_and_typed(kind: crd.Kind) -> None:
    for at, field, listed in fields(kind):
        assert "type" in field or field["x-kubernetes-int-or-string"], at
        assert listed or field["description"], at


@KINDS
def test_no_default_stands_in_a_list_where_tools_would_take_it_for_a_difference(kind: crd.Kind) -> None:
    assert [at for at, field, listed in fields(kind) if listed and "default" in field] == []


@KINDS
def test_only_what_users_write_has_defaults_and_a_new_status_says_that_nothing_was_observed(kind: crd.Kind) -> None:
    status = schema(kind)["properties"]["status"]
    assert status.pop("default", None) == ({"observedGeneration": -1} if kind.subresource else None)
    assert [at for at, field, _ in walk(status) if "default" in field] == []


@KINDS
def test_each_list_says_how_it_is_merged(kind: crd.Kind) -> None:
    lists = {
        at: field.get("x-kubernetes-list-map-keys") for at, field, _ in fields(kind) if field.get("type") == "array"
    }
    keyed = {at: keys for at, keys in lists.items() if keys}
    assert all("x-kubernetes-list-type" in field for _, field, _ in fields(kind) if field.get("type") == "array")
    assert (
        keyed
        == {
            "GpuPartitionDriver": {
                "spec.publish.inventory.gpus[].profiles": ["name"],
                "status.inFlight": ["node"],
                "status.conditions": ["type"],
            },
            "GpuPartitionPolicy": {
                "spec.layouts": ["name"],
                "spec.layouts[].profiles": ["name"],
                "status.conditions": ["type"],
            },
            "GpuPartitionNodeState": {},
        }[kind.kind]
    )


@KINDS
def test_each_rule_says_what_is_wrong(kind: crd.Kind) -> None:
    for at, field, _ in fields(kind):
        for rule in field.get("x-kubernetes-validations", []):
            assert rule.get("message") or rule.get("messageExpression"), at


def test_the_records_of_nodes_are_written_whole() -> None:
    versions = {kind.kind: crd.crd(kind)["spec"]["versions"][0] for kind in crd.KINDS}
    assert {name for name, version in versions.items() if "status" in version.get("subresources", {})} == {
        "GpuPartitionDriver",
        "GpuPartitionPolicy",
    }


def test_the_yaml_says_what_the_models_say() -> None:
    assert [yaml.safe_load(text) for text in crd.files().values()] == [crd.crd(kind) for kind in crd.KINDS]


def test_what_has_no_structural_schema_is_an_error_and_not_left_out() -> None:
    class Pair(BaseModel):
        pair: tuple[int, str]

    class Either(BaseModel):
        either: bool | str

    for model in (Pair, Either):
        with pytest.raises(ValueError, match="no structural schema says this"):
            crd.structural(model.model_json_schema(), {}, defaults=True)


def test_a_text_that_is_too_long_is_cut_and_not_lost() -> None:
    condition = Condition.model_validate(
        {
            "type": "Ready",
            "status": "False",
            "reason": "Long",
            "message": "m" * 5000,
            "lastTransitionTime": "2026-11-29T18:00:00Z",
        }
    )
    assert len(condition.message) == 4096
    assert condition.message.endswith("m…")


def test_the_models_fill_in_what_the_crd_leaves_out_of_lists() -> None:
    spec = PolicySpec.model_validate(
        {
            "driver": "example",
            "nodeSelector": {"matchLabels": {"pool": "inference"}},
            "layouts": [{"name": "halves", "match": {"all": True}, "type": "Equal", "equal": {"parts": 2}}],
        }
    )
    assert spec.layouts[0].equal is not None
    assert spec.layouts[0].equal.offer_whole
    assert spec.layouts[0].sharing.mode == "Exclusive"
