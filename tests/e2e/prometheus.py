"""The kinds of the Prometheus operator on a control plane, made from its types as its own release makes them."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import yaml
from testbed.build import CONTROLLER_GEN, MODULES, Builder
from testbed.programs import leashed
from testbed.progress import Progress
from tests.e2e.harness import eventually

from gpupartition.kube import CRDS, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

GROUP: Final = "monitoring.coreos.com"
POD_MONITORS: Final = Kind(f"{GROUP}/v1", "podmonitors", namespaced=True)
RULES: Final = Kind(f"{GROUP}/v1", "prometheusrules", namespaced=True)
TYPES: Final = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"


@asynccontextmanager
async def prometheus(cluster: Cluster) -> AsyncIterator[None]:
    """Have the API server know `POD_MONITORS` and `RULES`, of which nobody makes anything."""
    crds = await made()
    try:
        await cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(crds))
        await eventually(lambda: served(cluster))
        yield
    finally:
        for each in crds:
            await cluster.client.delete(CRDS, each["metadata"]["name"])
            await cluster.gone(CRDS, each["metadata"]["name"])


async def served(cluster: Cluster) -> bool:
    """Whether whoever asks is told of both kinds."""
    group = await cluster.client.raw("GET", f"/apis/{GROUP}/v1")
    return {POD_MONITORS.plural, RULES.plural} <= {each["name"] for each in group["resources"]}


async def made() -> list[Object]:
    """The CRDs of both kinds. Raises BuildError where what makes them cannot be built."""
    builder = Builder.here(Progress(sys.stderr))
    generator = (await builder.tools([CONTROLLER_GEN]))[CONTROLLER_GEN.name]
    go = await builder.go()  # with which it reads the types
    process = await asyncio.create_subprocess_exec(
        *leashed([generator, "crd:maxDescLen=0", f"paths={TYPES}", "output:stdout"]),
        cwd=MODULES / CONTROLLER_GEN.module,
        env={**os.environ, "PATH": f"{go.parent}:{os.environ['PATH']}", "GOTOOLCHAIN": "local", "GOWORK": "off"},
        stdout=PIPE,
    )
    out, _ = await process.communicate()
    crds = {each["metadata"]["name"]: each for each in yaml.load_all(out, yaml.CSafeLoader) if each}
    return [crds[f"{kind.plural}.{GROUP}"] for kind in (POD_MONITORS, RULES)]
