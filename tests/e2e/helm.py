"""Helm on a control plane, with which the tests of charts/ install, and what it prints read as objects."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml
from testbed.build import HELM, Builder
from testbed.controlplane import OPERATOR_ACCOUNT, ROOT
from testbed.programs import TestbedError, leashed
from testbed.progress import Progress

from gpupartition.names import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.controlplane import ControlPlane

    from gpupartition.kube import Object

CHART: Final = ROOT / "charts" / "gpupartition"
POLICIES_CHART: Final = ROOT / "charts" / "gpupartition-policies"
RELEASE: Final = "gpupartition"
STATUSES: Final = {"gpupartitiondrivers/status", "gpupartitionpolicies/status"}
"""All that a read-only operator writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Helm:
    """The real program, as administrator of one control plane."""

    program: Path
    controlplane: ControlPlane
    home: Path

    async def __call__(self, *arguments: str | Path, values: Object | None = None, folder: Path = ROOT) -> str:
        """Run it in a folder, and return what it prints. Raises TestbedError with its complaint."""
        homes = {f"HELM_{each}_HOME": str(self.home / each.lower()) for each in ("CACHE", "CONFIG", "DATA")}
        more = ["--values", "-"] if values is not None else []
        process = await asyncio.create_subprocess_exec(
            *leashed([self.program, *arguments, *more]),
            cwd=folder,
            env={**os.environ, **homes, "KUBECONFIG": str(self.controlplane.kubeconfig)},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        out, complaint = await process.communicate(yaml.safe_dump(values or {}).encode())
        if process.returncode != 0:
            raise TestbedError(f"helm {' '.join(map(str, arguments))}: {complaint.decode(errors='replace').strip()}")
        return out.decode()

    async def rendered(self, *arguments: str) -> list[Object]:
        """Return the objects of the operator's chart."""
        printed = await self("template", RELEASE, CHART, "--namespace", OPERATOR_NAMESPACE, *arguments)
        return documents(printed)

    async def installed(self, *arguments: str, chart: Path = CHART) -> None:
        """Install or upgrade the operator's chart."""
        where = ("--namespace", OPERATOR_NAMESPACE, "--create-namespace")
        await self("upgrade", "--install", RELEASE, chart, *where, *arguments)
        await self.becomes_operator()

    async def becomes_operator(self) -> None:
        """Let operators of this machine be the account that was installed."""
        token = await self.controlplane.token(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)
        self.controlplane.parts.write_kubeconfig("operator", token)


async def real_helm(controlplane: ControlPlane, home: Path) -> Helm:
    """Build the program, unless it is there."""
    built = await Builder.here(Progress(sys.stderr)).tools([HELM])
    return Helm(program=built[HELM.name], controlplane=controlplane, home=home)


def documents(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


def by_name(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    named = {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in objects}
    assert len(named) == len(objects)
    return named
