"""What is written for Flux fits together, and leads to what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
FLUX: Final = MANIFESTS / "flux"


def kustomizations(*names: str) -> dict[str, dict[str, Any]]:
    bodies = [each for name in names for each in yaml.safe_load_all((FLUX / name).read_text(encoding="utf-8"))]
    return {each["metadata"]["name"]: each["spec"] for each in bodies if each["kind"] == "Kustomization"}


def test_each_waits_for_what_it_needs_and_only_crds_outlive_what_has_brought_them() -> None:
    both = (kustomizations("operator.yaml", name) for name in ("policies.yaml", "policies-accepted.yaml"))
    for found in both:
        needs = {name: [each["name"] for each in spec.get("dependsOn", ())] for name, spec in found.items()}
        assert needs == {"gpupartition-crds": [], "gpupartition": ["gpupartition-crds"], "gpus": ["gpupartition"]}
        assert [name for name, spec in found.items() if not spec["prune"]] == ["gpupartition-crds"]
        assert all(spec["wait"] and spec["timeout"] for spec in found.values())


def test_paths_lead_to_what_is_there() -> None:
    folders = {name: MANIFESTS.parent / spec["path"] for name, spec in kustomizations("operator.yaml").items()}
    names = {"kustomization.yaml", "Kustomization"}
    assert [name for name, folder in folders.items() if not names & {each.name for each in folder.iterdir()}] == []


def test_the_two_ways_to_wait_differ_in_nothing_but_that() -> None:
    (whole,), (accepted,) = (kustomizations(f"policies{how}.yaml").values() for how in ("", "-accepted"))
    del accepted["healthCheckExprs"]
    assert {**whole, "timeout": ""} == {**accepted, "timeout": ""}
