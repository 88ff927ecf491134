"""What manifests/argocd says agrees with itself and with the operator. What Argo CD makes of it: tests/e2e/test_argocd*.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from gpupartition import names
from gpupartition.domain.suspension import PAUSE

ROOT = Path(__file__).parents[2] / "manifests" / "argocd"
ACTIONS = (ROOT / "customizations/policy-actions").read_text(encoding="utf-8")


def shown(name: str) -> Any:
    return yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text(encoding="utf-8"))


def test_actions_write_the_annotations_of_the_commands_and_no_others() -> None:
    assert set(re.findall(r'"(gpupartition\.dev/[\w-]+)"', ACTIONS)) == {names.PAUSED, *PAUSE.values(), names.RETRY}
    (removed,) = re.findall(r"ipairs\(\{(.*)\}\)", ACTIONS)
    assert {f"{names.GROUP}/{name}" for name in re.findall(r'"([\w-]+)"', removed)} == {names.PAUSED, *PAUSE.values()}


def test_each_action_that_is_offered_is_there() -> None:
    said = yaml.safe_load(ACTIONS)
    offered = re.findall(r"^  (\w+) = \{disabled", said["discovery.lua"], re.MULTILINE)
    assert offered == [each["name"] for each in said["definitions"]]


def test_the_scripts_use_nothing_that_argo_cd_does_not_give_them() -> None:
    scripts = [*(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.lua")), ACTIONS]
    assert [found for each in scripts for found in re.findall(r"\b(?:string|math|io)\.\w+", each)] == []


def test_the_project_allows_what_its_application_brings() -> None:
    project, application = shown("project"), shown("gpus")
    assert application["spec"]["project"] == project["metadata"]["name"]
    assert application["spec"]["source"]["repoURL"] in project["spec"]["sourceRepos"]
    assert application["spec"]["destination"]["server"] in {each["server"] for each in project["spec"]["destinations"]}
    for rule in (rule for role in project["spec"]["roles"] for rule in role["policies"]):
        assert re.fullmatch(
            rf"p, proj:{project['metadata']['name']}:on-duty, applications, (get|action/{names.GROUP}/GpuPartitionPolicy/\*), gpus/\*, allow",
            rule,
        )
