"""What the operator's image is made of, and with how little its pod makes do: as docs/security.md says it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import yaml
from testbed.controlplane import ROOT
from tests.unit import sbom

LOCK: Final = (ROOT / "requirements.lock").read_text(encoding="utf-8")
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
BOM: Final = sbom.bom(LOCK)
REFS: Final = {each["bom-ref"] for each in (BOM["metadata"]["component"], *BOM["components"])}


def lines(word: str) -> list[str]:
    """What the Dockerfile says with this instruction."""
    return [line.removeprefix(word).strip() for line in DOCKERFILE if line.startswith(f"{word} ")]


def test_every_package_is_pinned_to_a_version_and_to_hashes() -> None:
    found = sbom.pinned(LOCK)
    assert found
    for name, each in found.items():
        assert each.hashes, name
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in each.hashes), name


def test_the_bill_lists_what_the_operator_needs_and_no_tool_of_its_developers() -> None:
    listed = {each["name"] for each in BOM["components"]}
    assert {"kopf", "kubernetes", "pydantic", "pydantic-core", "aiohttp", "multidict"} <= listed
    assert not listed & {"pytest", "hypothesis", "mypy", "ruff", "rich"}
    versions = sbom.pinned(LOCK)
    for each in BOM["components"]:
        assert each["version"] == versions[each["name"]].version
        (files,) = each["externalReferences"]
        assert tuple(digest["content"] for digest in files["hashes"]) == versions[each["name"]].hashes


def test_everything_on_the_bill_is_there_because_something_on_it_needs_it() -> None:
    needs = {each["ref"]: each["dependsOn"] for each in BOM["dependencies"]}
    assert needs.keys() == REFS
    assert {ref for each in needs.values() for ref in each} == REFS - {BOM["metadata"]["component"]["bom-ref"]}


def test_the_same_lock_makes_the_same_bill() -> None:
    assert json.dumps(sbom.bom(LOCK)) == json.dumps(BOM)
    other = sbom.bom(LOCK.replace("--hash=sha256:0", "--hash=sha256:1"))
    assert other["serialNumber"] != BOM["serialNumber"]


def test_the_image_takes_nothing_that_is_not_held_against_its_hash() -> None:
    fetching = [run for run in lines("RUN") if "pip download" in run]
    assert len(fetching) == 1
    assert "--require-hashes" in fetching[0]
    assert "requirements.lock" in fetching[0]
    for run in lines("RUN"):
        assert "pip install" not in run or "--no-index" in run, run
        assert not re.search(r"curl|wget|apt|git", run), run


def test_the_image_starts_without_a_shell_and_not_as_root() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", lines("USER")[-1])
    for said in (*lines("ENTRYPOINT"), *lines("CMD")):
        assert isinstance(json.loads(said), list), said
    assert set(lines("FROM")) == {"${PYTHON} AS build", "${PYTHON}"}


def test_the_pod_makes_do_with_no_right_on_its_node() -> None:
    spec: dict[str, Any] = yaml.safe_load((ROOT / "manifests/base/deployment.yaml").read_text(encoding="utf-8"))["spec"]
    pod = spec["template"]["spec"]
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "volumes", "initContainers"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == lines("USER")[-1]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["command"][0] == "python"
        assert "exec" not in json.dumps(
            [container.get(probe) for probe in ("livenessProbe", "readinessProbe", "lifecycle")]
        )
        assert not container.keys() & {"volumeMounts", "volumeDevices"}
