"""The program's commands as somebody at a shell runs them, and accounts that have one of its roles and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import yaml
from testbed.controlplane import python_env

from gpupartition.kube import CLUSTER_ROLE_BINDINGS, SERVICE_ACCOUNTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

PLANNER: Final = "planner"
VIEWER: Final = "viewer"
ON_DUTY: Final = "on-duty"
ROLES: Final = {PLANNER: "gpupartition-plan", VIEWER: "gpupartition-view", ON_DUTY: "gpupartition-operate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command came to."""

    code: int
    out: str
    errors: str

    @property
    def data(self) -> Any:
        """What it told a program."""
        assert self.code == 0, self.errors
        return json.loads(self.out)

    @property
    def policy(self) -> Any:
        """The one policy of a plan."""
        (found,) = json.loads(self.out)["policies"]
        return found

    @property
    def nodes(self) -> dict[str, Any]:
        """Its nodes, in their order."""
        return {each["node"]: each for each in self.policy["nodes"]}


async def gpupartition(
    cluster: Cluster,
    command: str,
    *arguments: str,
    stdin: Object | None = None,
    kubeconfig: Path | None = None,
    stdout: int | IO[bytes] = PIPE,
) -> Answer:
    """Run `python -m gpupartition COMMAND` until it ends."""
    way_in = str(kubeconfig or cluster.controlplane.kubeconfig)
    line = [sys.executable, "-m", "gpupartition", command, "--kubeconfig", way_in, *arguments]
    return await answer(line, stdin=stdin, stdout=stdout)


async def answer(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: Object | None = None,
    stdout: int | IO[bytes] = PIPE,
) -> Answer:
    """Run a command until it ends; what it is told comes as YAML."""
    process = await asyncio.create_subprocess_exec(
        *command, env=env or python_env(), stdin=PIPE, stdout=stdout, stderr=PIPE
    )
    out, errors = await process.communicate(yaml.safe_dump(stdin).encode() if stdin else None)
    assert process.returncode is not None
    return Answer(code=process.returncode, out=(out or b"").decode(), errors=errors.decode())


async def account_of(cluster: Cluster, name: str) -> Path:
    """A kubeconfig of an account of this name that has its ClusterRole, and nothing else."""
    namespace = await cluster.namespace(name)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
    await cluster.create(SERVICE_ACCOUNTS, account)
    binding = {
        "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLES[name]},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    await cluster.create(CLUSTER_ROLE_BINDINGS, binding)
    token = await cluster.controlplane.token(namespace, name)
    return await asyncio.to_thread(cluster.controlplane.parts.write_kubeconfig, namespace, token)


def only_read(cluster: Cluster, name: str) -> bool:
    """Whether an account of `account_of` has asked for something, for nothing but to read, and was never refused.

    404: taint rules are looked for in each version, and Kubernetes 1.36 serves none.
    """
    asked = cluster.audit(user=f"system:serviceaccount:{cluster.name}-{name}:{name}")
    answers = {(each["verb"], each["responseStatus"]["code"]) for each in asked}
    return bool(answers) and answers <= {(verb, code) for verb in ("get", "list") for code in (200, 404)}


def command(cluster: Cluster, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
    """The command as it is typed behind kubectl's own name."""
    kubectl = cluster.controlplane.parts.binaries["kubectl"]
    return [str(kubectl), "gpp", *arguments, "--kubeconfig", str(kubeconfig or cluster.controlplane.kubeconfig)]


def environment() -> dict[str, str]:
    """The plugin is where this Python's programs are."""
    scripts = str(Path(sys.executable).parent)
    return {**python_env(), "PATH": os.pathsep.join([scripts, os.environ["PATH"]])}


async def gpp(cluster: Cluster, *arguments: str, kubeconfig: Path | None = None) -> Answer:
    """Run a command of the plugin."""
    return await answer(command(cluster, *arguments, kubeconfig=kubeconfig), env=environment())


async def plan(
    cluster: Cluster,
    *arguments: str,
    stdin: Object | None = None,
    kubeconfig: Path | None = None,
    stdout: int | IO[bytes] = PIPE,
) -> Answer:
    """Run `gpupartition plan`."""
    return await gpupartition(cluster, "plan", *arguments, stdin=stdin, kubeconfig=kubeconfig, stdout=stdout)
