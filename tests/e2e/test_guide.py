"""The guide, typed from top to bottom: once as somebody with new nodes, once as somebody whose cluster is in use, and has to be made safe."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from testbed.controlplane import OPERATOR_ACCOUNT, ROOT, ControlPlane, Shape, python_env
from testbed.progress import Progress
from tests.e2e.harness import eventually
from tests.e2e.pages import Direction, Reader, Shown, Typed, Written, steps
from tests.e2e.rollout import fault, operator

from gpupartition.kube import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, ApiError, Client
from gpupartition.names import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from tests.e2e.harness import Cluster
    from tests.e2e.pages import Step

GUIDE: Final = ROOT / "docs" / "guide.md"
SECURITY: Final = GUIDE.with_name("security.md")
NOT_HERE: Final = frozenset({"pipx install ."})  # it is installed, and the network is not asked again
JOBS: Final = "jobs"
UNAUTHORIZED: Final = 401
OTHERS, SAME = "a cluster of its own", "the first cluster"


@pytest.fixture
async def controlplane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """Start a control plane for one reader: the guide's names are those of a whole cluster."""
    shape = Shape(nodes=4, gpus=8)
    async with ControlPlane(tmp_path / "testbed", shape=shape, progress=Progress(sys.stderr)) as running:
        yield running


@pytest.fixture
def reader(controlplane: ControlPlane, tmp_path: Path) -> Reader:
    folder = tmp_path / "checkout"
    for part in ("manifests", "crds"):
        shutil.copytree(ROOT / part, folder / part)
    scripts, tools = Path(sys.executable).parent, controlplane.parts.binaries["kubectl"].parent
    path = os.pathsep.join([str(scripts), str(tools), os.environ["PATH"]])
    return Reader(folder, {**python_env(), "PATH": path, "KUBECONFIG": str(controlplane.kubeconfig)})


def told(of: str) -> Iterator[Step]:
    """The steps of one of the guide's two stories."""
    now = SAME
    for step in steps(GUIDE.read_text(encoding="utf-8"), but=NOT_HERE):
        if step in {Direction(OTHERS), Direction(SAME)}:
            assert isinstance(step, Direction)
            now = step.words
        elif now == of:
            yield step


async def begins(cluster: Cluster, job: str, node: str) -> None:
    await cluster.holder(job, namespace=JOBS, node=node)
    await cluster.running(job, namespace=JOBS)


async def ends(cluster: Cluster, job: str) -> None:
    await cluster.client.kill(PODS, job, namespace=JOBS)
    await cluster.gone(PODS, job, namespace=JOBS)


MEANWHILE: Final[Mapping[str, Callable[[Cluster], Awaitable[object]]]] = {
    "meanwhile: a job runs on node-4": lambda cluster: begins(cluster, "train", "node-4"),
    "meanwhile: the job on node-4 ends": lambda cluster: ends(cluster, "train"),
    "meanwhile: a job runs on node-2": lambda cluster: begins(cluster, "llm", "node-2"),
    "meanwhile: the job on node-2 ends": lambda cluster: ends(cluster, "llm"),
    "meanwhile: the driver of node-3 cannot do sevenths": lambda cluster: fault(
        cluster, "node-3", "wrong-layout@partitions=7"
    ),
    "meanwhile: the driver of node-3 is mended": lambda cluster: fault(cluster, "node-3", None),
}


async def follow(story: Iterator[Step], reader: Reader, cluster: Cluster) -> None:
    """Do what the page says; the operator that it installs runs as a process of this machine, and waits less long."""
    await cluster.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": JOBS}})
    await eventually(lambda: cluster.client.get(SERVICE_ACCOUNTS, "default", namespace=JOBS))
    for step in story:
        match step:
            case Direction(words):
                await MEANWHILE[words](cluster)
            case Typed() | Shown() | Written():
                await reader.does(step)
        if isinstance(step, Typed) and "apply -k manifests" in step.script and not cluster.operators:
            await employ(cluster)


async def employ(cluster: Cluster) -> None:
    token = await cluster.controlplane.token(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)
    await asyncio.to_thread(cluster.controlplane.parts.write_kubeconfig, "operator", token)
    await operator(cluster, verifying=3)


@pytest.mark.newest
async def test_the_guide_can_be_typed_as_it_stands_there_from_the_first_policy_to_the_last_day(
    cluster: Cluster, reader: Reader
) -> None:
    await follow(told(SAME), reader, cluster)


async def test_the_guide_can_be_typed_as_it_stands_there_in_a_cluster_that_is_in_use(
    cluster: Cluster, reader: Reader
) -> None:
    install = Typed("kubectl apply -k manifests")
    await follow(iter([install, *told(OTHERS)]), reader, cluster)

    async with Client.connect(cluster.controlplane.files.kubeconfig("operator"), user_agent="thief") as thief:
        await thief.list(NODES)
        for step in steps(SECURITY.read_text(encoding="utf-8")):
            assert isinstance(step, Typed)
            await reader.does(step)
        await eventually(lambda: is_nobody(thief))


async def is_nobody(client: Client) -> bool:
    try:
        await client.list(NODES)
    except ApiError as refused:
        return refused.status == UNAUTHORIZED
    return False
