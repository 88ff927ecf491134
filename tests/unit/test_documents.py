"""Files with drivers and policies: what is in them, and every mistake in them, with its place and what to write instead."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from tests.unit.fleet import driver, policy

from gpupartition.cli.documents import Unusable, read
from gpupartition.kube import Object


def written(folder: Path, *bodies: object) -> str:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump_all(bodies))
    return str(path)


def mistakes(folder: Path, *bodies: object) -> list[str]:
    with pytest.raises(Unusable, match=r"\w") as unusable:
        read([written(folder, *bodies)])
    return [line.replace(f"{folder}/", "") for line in unusable.value.lines]


def changed(**spec: object) -> Object:
    body = policy()
    return {**body, "spec": {**body["spec"], **spec}}


def test_several_documents_in_one_file_are_all_read(tmp_path: Path) -> None:
    found = read([written(tmp_path, driver(), None, policy("one"), policy("two"))])
    assert [(d.kind, d.name) for d in found] == [
        ("GpuPartitionDriver", "example"),
        ("GpuPartitionPolicy", "one"),
        ("GpuPartitionPolicy", "two"),
    ]


def test_what_kubectl_prints_can_be_piped_in() -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [policy("one")]})
    assert [d.name for d in read(["-"], io.StringIO(text))] == ["one"]


def test_every_mistake_is_told_not_only_the_first(tmp_path: Path) -> None:
    assert mistakes(tmp_path, changed(mode="Look", rollout={"limit": "0%"}), {"kind": "Pod"}) == [
        "policy.yaml, document 1: GpuPartitionPolicy inference: spec.mode: Input should be 'Enforce' or 'Observe' (it is 'Look')",
        "policy.yaml, document 2: kind Pod is none of GpuPartitionDriver, GpuPartitionPolicy; leave it out",
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (changed(nodeSelector={}), "spec.nodeSelector: would select every node"),
        (changed(rollout={"limit": "0%"}), 'spec.rollout.limit: write a number of nodes, at least 1, or a percentage'),
        (changed(rollout={"maxUnavailable": 0}), "spec.rollout.maxUnavailable: write a number of nodes"),
        (changed(layouts=[{"name": "a", "match": {"all": True}, "type": "Equal"}]), "spec.layouts[0].equal: type Equal says how"),
        (changed(layouts=[{"name": "a", "match": {"all": True}, "type": "Profiles"}]), "spec.layouts[0].profiles: type Profiles says how"),
        (changed(layouts=[{"name": "a", "match": {"all": True}, "type": "Mode"}]), "spec.layouts[0].mode: type Mode says how"),
        (changed(layouts=[{"name": "a", "match": {}, "type": "Whole"}]), "spec.layouts[0].match: matches no GPU"),
        (changed(rollout={"drain": {"force": True}}), "spec.rollout.drain.force: is about evictions, and only mode: Evict evicts"),
        (changed(rollout={"drain": {"mode": "Evict", "waitForCompletion": {}}}), "selects no pod in particular"),
        (changed(layout=[]), "spec.layout: Extra inputs are not permitted"),
        ("text", "no Kubernetes object: it has no kind"),
        ({**policy(), "apiVersion": "gpupartition.dev/v9"}, "write gpupartition.dev/v1alpha1"),
        ({**policy(), "metadata": {}}, "metadata.name: is missing"),
        ({**driver(), "spec": {"type": "Publish"}}, "spec.publish: type Publish says how"),
        ({**driver(), "spec": {"type": "NvidiaMig"}}, "spec.nvidiaMig: type NvidiaMig says how"),
        ({**driver(), "spec": {"type": "AmdDcm"}}, "spec.amdDcm: type AmdDcm says how"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place_and_what_to_write(tmp_path: Path, body: object, says: str) -> None:
    (line,) = mistakes(tmp_path, body)
    assert line.startswith("policy.yaml: ")
    assert says in line


def test_the_same_object_twice_is_a_mistake(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, policy("one"), policy("one"))
    assert line == (
        "policy.yaml, document 2: GpuPartitionPolicy one is in policy.yaml, document 1 already; keep one of them"
    )


@pytest.mark.parametrize(("text", "says"), [("a: [", "not YAML"), ("", "no GpuPartitionPolicy")])
def test_a_file_without_usable_text_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(Unusable, match=says):
        read([str(path)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"nowhere\.yaml: No such file"):
        read([str(tmp_path / "nowhere.yaml")])
