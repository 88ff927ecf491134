"""`make kind-demo`, as far as it goes without docker: what it says where something is missing, what it would run, and what that is given."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml
from testbed.nodes import MANIFEST

from gpupartition.api.v1alpha1 import DriverSpec
from gpupartition.backends import BACKENDS
from gpupartition.domain.backend import Cluster

ROOT: Final = Path(__file__).parents[2]
KIND: Final = ROOT / "testbed" / "kind"
TOOLS: Final = ("docker", "kind", "helm", "kubectl")
OF_EVERY_MACHINE: Final = ("cat", "dirname", "grep", "mkdir", "rm", "sleep")
CLUSTER_FIELDS: Final = {"kind", "apiVersion", "nodes"}  # of kind.x-k8s.io/v1alpha4, as far as they are used
NODE_FIELDS: Final = {"role", "image", "labels"}

STUB: Final = """#!/bin/sh
echo "{tool} $*" >> "{log}"
case "{tool} $*" in *--watch*) exec sleep 60;; esac
{does}
"""


class Machine:
    """A machine whose PATH has these tools, which write down how they are called and do nothing."""

    def __init__(self, folder: Path, *tools: str) -> None:
        self._folder = folder
        self._log = folder / "log"
        self.home = folder / "home"
        self._path = folder / "bin"
        self._path.mkdir()
        for name in OF_EVERY_MACHINE:
            (self._path / name).symlink_to(shutil.which(name) or "")
        for tool in tools:
            self.does(tool, ":")

    def does(self, tool: str, script: str) -> None:
        stub = self._path / tool
        stub.write_text(STUB.format(tool=tool, log=self._log, does=script))
        stub.chmod(0o755)

    def demo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self._path), "HOME": str(self.home)}
        command = [shutil.which("sh") or "", str(KIND / "demo.sh"), *arguments]
        return subprocess.run(command, env=env, cwd=self._folder, capture_output=True, text=True, check=False)

    @property
    def ran(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


@pytest.mark.parametrize("lacking", TOOLS)
def test_a_tool_that_is_missing_is_named_with_what_works_without_it(tmp_path: Path, lacking: str) -> None:
    machine = Machine(tmp_path, *(tool for tool in TOOLS if tool != lacking))
    ended = machine.demo()
    assert ended.returncode == 127
    assert ended.stderr.startswith(f"kind-demo: not found: {lacking}. Install that")
    assert "`make demo`, which needs no docker" in ended.stderr
    assert machine.ran == []


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    assert f"not found: {' '.join(TOOLS)}." in Machine(tmp_path).demo().stderr


def test_a_docker_that_does_not_answer_is_told_from_one_that_is_missing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, *TOOLS)
    machine.does("docker", "exit 1")
    ended = machine.demo()
    assert (ended.returncode, machine.ran) == (1, ["docker info"])
    assert "docker does not answer" in ended.stderr


def test_it_makes_a_cluster_installs_everything_and_ends_when_the_policy_is_ready(tmp_path: Path) -> None:
    machine = Machine(tmp_path, *TOOLS)
    ended = machine.demo()
    assert ended.returncode == 0, ended.stderr
    steps = [" ".join(line.split()[:3]) for line in machine.ran if "--watch" not in line]
    assert steps == [
        "docker info",
        "kind get clusters",
        "kind create cluster",
        "kind export kubeconfig",
        "docker build --tag",
        "kind load docker-image",
        "helm upgrade --install",
        "kubectl apply -k",
        "kubectl -n gpupartition-system",
        "kubectl apply -f",
        "kubectl wait --for=condition=Ready",
        "kubectl get gpn",
    ]
    named = {word for line in machine.ran for word in line.split() if re.match(r"(manifests|testbed)(/|$)", word)}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    assert f"export KUBECONFIG={machine.home}/.cache/gpupartition/kind.kubeconfig" in ended.stdout


def test_what_goes_wrong_on_the_way_ends_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, *TOOLS)
    machine.does("helm", "exit 3")
    assert machine.demo().returncode == 3
    assert machine.ran[-1].startswith("helm upgrade")


def test_a_cluster_that_is_there_is_used_and_down_takes_it_away(tmp_path: Path) -> None:
    machine = Machine(tmp_path, *TOOLS)
    machine.does("kind", "echo gpupartition")
    assert machine.demo().returncode == 0
    assert not [line for line in machine.ran if line.startswith("kind create")]
    assert machine.demo("down").returncode == 0
    assert machine.ran[-1] == "kind delete cluster --name gpupartition"
    assert machine.demo("dwon").returncode == 2


def test_the_image_that_is_loaded_is_the_one_that_the_manifests_name() -> None:
    (image,) = yaml.safe_load((ROOT / "manifests/base/kustomization.yaml").read_text())["images"]
    assert f"image={image['name']}:{image['newTag']} " in (KIND / "demo.sh").read_text()


def test_the_cluster_is_of_the_kubernetes_that_is_tested_and_has_nodes_that_the_policy_selects() -> None:
    config = yaml.safe_load((KIND / "cluster.yaml").read_text())
    assert set(config) <= CLUSTER_FIELDS
    assert (config["kind"], config["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert {field for node in config["nodes"] for field in node} <= NODE_FIELDS
    for node in config["nodes"]:
        assert re.fullmatch(r"kindest/node:v1\.37\.\d+@sha256:[0-9a-f]{64}", node["image"])
    policy = yaml.safe_load((ROOT / "manifests/examples/halves.yaml").read_text())
    selector = policy["spec"]["nodeSelector"]["matchLabels"].items()
    selected = [node["role"] for node in config["nodes"] if selector <= node.get("labels", {}).items()]
    assert selected == ["worker"] * 3
    assert [node["role"] for node in config["nodes"]].count("control-plane") == 1


def test_with_these_values_the_driver_is_as_the_operator_needs_it() -> None:
    values = yaml.safe_load((KIND / "driver.yaml").read_text())["kubeletPlugin"]
    assert values.keys() <= {"numDevices", "updateStrategy", "affinity"}
    assert values["updateStrategy"] == {"type": "OnDelete", "rollingUpdate": None}  # None: the chart's own is taken out
    (base,) = (each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "DaemonSet")
    base["spec"]["updateStrategy"] = {"type": values["updateStrategy"]["type"]}
    base["spec"]["template"]["spec"]["affinity"] = values["affinity"]
    driver = DriverSpec.model_validate(
        yaml.safe_load((ROOT / "manifests/examples/driver-example.yaml").read_text())["spec"]
    )
    assert driver.example_driver is not None
    assert values["numDevices"] == driver.example_driver.gpus_per_node
    backend = BACKENDS[driver.type]
    assert list(backend.preflight(driver, Cluster(daemon_sets=[base]))) == []
    del base["spec"]["updateStrategy"], base["spec"]["template"]["spec"]["affinity"]
    without = {problem.reason for problem in backend.preflight(driver, Cluster(daemon_sets=[base]))}
    assert without == {"BaseRollsItself", "BaseNotExclusive"}
