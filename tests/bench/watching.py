"""A server to measure on, and what measurements see of an operator that runs beside them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.controlplane import ControlPlane, Shape, python_env
from testbed.programs import Program, leashed
from tests.e2e.harness import POLICIES, follow

from gpupartition.kube import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from testbed.progress import Progress

    from gpupartition.kube import Object

MUTATING: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
"""The verbs of the audit log that write."""
WITHIN: Final = 2400  # seconds for anything


@asynccontextmanager
async def bare_server(progress: Progress) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """Only etcd and the API server, with the operator's kinds and rights, and a client of the administrator."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with ControlPlane(Path(folder), shape=Shape(nodes=0), progress=progress) as controlplane:
            await controlplane.install_operator()
            for name in controlplane.programs.keys() - {"etcd", "kube-apiserver"}:
                await controlplane.programs[name].stop()  # the garbage collector knows no nodes that nobody runs
            async with Client.connect(controlplane.kubeconfig, patience=60) as client:
                yield controlplane, client


def operator(controlplane: ControlPlane) -> Program:
    """With its own rights and its defaults."""
    settings = {"GPUPARTITION_HOST": "127.0.0.1", "GPUPARTITION_PORT": "0"}
    kubeconfig, log = controlplane.files.kubeconfig("operator"), controlplane.files.log("operator")
    command: list[str | Path] = [sys.executable, "-m", "gpupartition", "run", "--kubeconfig", kubeconfig]
    return Program("operator", command, log=log, env=python_env() | settings)


async def measuring(module: str, *arguments: str | Path, stderr: int | None = None) -> asyncio.subprocess.Process:
    """Start a program of this folder, which ends with this process; what it prints is to be read."""
    command: list[str | Path] = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    return await asyncio.create_subprocess_exec(
        *leashed(command), env=python_env(), stdout=asyncio.subprocess.PIPE, stderr=stderr
    )


def audited(controlplane: ControlPlane, user: str, *, since: int = 0) -> list[dict[str, Any]]:
    """What a user has asked for, by the audit log beyond so many bytes."""
    with controlplane.files.audit_log.open() as log:
        log.seek(since)
        return [each for each in map(json.loads, log) if each["user"]["username"] == user]


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far (proc(5): utime and stime, counted after the command's closing bracket)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def highest(pid: int) -> int:
    """MB of memory that a process had at most so far (proc(5): VmHWM)."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


async def until(client: Client, policy: Object, is_so: Callable[[Object], bool]) -> None:
    """Return as soon as the policy, of which this is an earlier version, is so."""
    meta = policy["metadata"]
    of_this_name = f"metadata.name={meta['name']}"
    async with asyncio.timeout(WITHIN):
        async for what, body in follow(client, POLICIES, meta["resourceVersion"], field_selector=of_this_name):
            if what == "MODIFIED" and is_so(body):
                return
