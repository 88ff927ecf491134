"""The operator's rights are compared with what it does: too few are found, and too many."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.e2e.rights import ACCOUNT, FOLDER, all_ran, audit_logs, differences, given, used

if TYPE_CHECKING:
    from pathlib import Path

ROLES = """
kind: ClusterRole
metadata: {name: gpupartition}
rules:
- {apiGroups: [""], resources: [nodes, pods], verbs: [get]}
---
kind: Role
metadata: {name: gpupartition-driver, namespace: gpu-driver}
rules:
- {apiGroups: [apps], resources: [daemonsets], verbs: [create]}
---
kind: Role
metadata: {name: gpupartition, namespace: gpupartition-system}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [update]}
---
kind: ClusterRole
metadata: {name: gpupartition-view}
rules:
- {apiGroups: ["*"], resources: ["*"], verbs: ["*"]}
"""


def line(verb: str, resource: str, *, user: str = ACCOUNT, agent: str = "gpupartition/1", **about: str) -> str:
    entry: dict[str, Any] = {"verb": verb, "user": {"username": user}, "userAgent": agent}
    return json.dumps(entry | {"objectRef": {"resource": resource, **about}}) + "\n"


ALL = (
    line("get", "nodes", name="n1"),
    line("get", "pods", namespace="team"),
    line("create", "daemonsets", apiGroup="apps", namespace="t1-driver"),
    line("update", "leases", apiGroup="coordination.k8s.io", namespace="gpupartition-system"),
    line("create", "selfsubjectaccessreviews", apiGroup="authorization.k8s.io"),
)


def told(folder: Path, *lines: str) -> list[str]:
    (folder / "roles.yaml").write_text(ROLES)
    for testbed, part in (("testbed0", lines[::2]), ("popen-gw1/testbed0", lines[1::2])):
        (folder / testbed).mkdir(parents=True, exist_ok=True)
        (folder / testbed / "audit.jsonl").write_text("".join(part))
    return differences(given(folder), {each for log in audit_logs(folder) for each in used(log)})


def test_rights_that_are_used_and_suffice_are_fine(tmp_path: Path) -> None:
    assert told(tmp_path, *ALL, "half a line") == []


def test_a_right_that_nobody_uses_is_named(tmp_path: Path) -> None:
    (found,) = told(tmp_path, *ALL[1:])
    assert found.startswith("the operator may get /nodes everywhere, and never does")


def test_a_request_that_no_role_speaks_of_is_named(tmp_path: Path) -> None:
    outside = [
        line("delete", "nodes", name="n1"),
        line("create", "daemonsets", apiGroup="apps", namespace="gpupartition-system"),
        line("create", "pods", subresource="eviction", namespace="team"),
    ]
    assert sorted(found.split(",")[0] for found in told(tmp_path, *ALL, *outside)) == [
        "no role of manifests/ lets the operator create /pods/eviction in team",
        "no role of manifests/ lets the operator create apps/daemonsets in gpupartition-system",
        "no role of manifests/ lets the operator delete /nodes",
    ]


def test_what_others_ask_for_says_nothing_of_the_operator(tmp_path: Path) -> None:
    others = [line("delete", "nodes", user="admin"), line("delete", "nodes", agent="intruder")]
    assert told(tmp_path, *ALL, *others) == []


@pytest.mark.parametrize(
    ("asked", "args", "whole"),
    [
        ({}, [], True),
        ({"markexpr": "e2e"}, [], True),
        ({"markexpr": "e2e and not newest"}, [], False),
        ({"deselect": ["tests/e2e/test_kube.py::test_a"]}, [], False),
        ({"keyword": "evict"}, [], False),
        ({}, ["tests/e2e/test_kube.py::test_a"], False),
    ],
    ids=["all", "by their mark", "by another mark", "all but one", "by name", "one"],
)
def test_rights_are_held_against_a_whole_suite_alone(asked: dict[str, Any], args: list[str], whole: bool) -> None:
    options = {"keyword": "", "deselect": None, "markexpr": "", **asked}
    config = cast("pytest.Config", SimpleNamespace(getoption=options.__getitem__, args=args))
    files = {path.name for path in FOLDER.glob("test_*.py")}
    assert all_ran(config, files) == whole
    assert not all_ran(config, files - {"test_kube.py"})
