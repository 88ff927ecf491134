"""What it takes to publish slices of our own: to compile eight H100 with all choices, and to write 1,000 nodes' slices to a real API server.

The same slices, nine for each node of sixteen H100, are written in turn by the operator's client as its backend decides, after each write anew;
by a bare client that has the texts ready and reads no answer; and by Kubernetes' own library for DRA drivers. Each has as many writes under
way at once. Only etcd and the API server run; what an operator reads between its writes is not in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from testbed.admin import Admin
from testbed.build import PUBLISHER, Builder
from testbed.controlplane import ControlPlane, Shape
from testbed.progress import Progress
from tests.bench import fleet
from tests.bench.figures import Figure

from gpupartition.api.v1alpha1 import DriverSpec, DriverType, PolicySpec
from gpupartition.backends import BACKENDS, publish
from gpupartition.domain import fingerprint
from gpupartition.domain.backend import Cluster, NodeFacts
from gpupartition.domain.effects import CreateSlice
from gpupartition.kube import RESOURCE_SLICES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gpupartition.domain.backend import Config

Object = dict[str, Any]

BACKEND: Final = BACKENDS[DriverType.PUBLISH]

COMPILES: Final = 20
COMPILE_BOUND: Final = 20.0  # ms: what one kind of node takes of the first look after a start

NODES: Final = 250  # of a round: so many slices that the server's own speed does not change from one writer to the next
ORDER: Final = ("bare", "ours", "theirs", "theirs", "ours", "bare")
ROUNDS: Final = 2  # of this order: 1,000 nodes for each
LANES: Final = 16  # nodes at once, each with one write under way
SLICES: Final = 9
BARE_BOUND: Final = round(1 / 0.85, 3)
THEIRS_BOUND: Final = 1.0
WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def measure() -> list[Figure]:
    """Milliseconds of CPU to compile; times as long as the bare client and as Kubernetes' library; writes for each slice."""
    return [_compiling(), *asyncio.run(_publishing())]


def _compiling() -> Figure:
    publish._compiled(*_texts(1))  # the tables are read once
    rounds = []
    for _ in range(COMPILES):
        publish._compiled.cache_clear()
        fingerprint.of_pool.cache_clear()
        begun = time.process_time()
        config = _config(8)
        rounds.append(round((time.process_time() - begun) * 1000, 2))
    how = f"{len(config.pool.devices)} devices, with fingerprint and record; best of {COMPILES}, nothing remembered"
    return Figure(
        name="compile 8 x H100 Choices", value=min(rounds), unit="ms CPU", bound=COMPILE_BOUND, how=how, rounds=rounds
    )


def _driver(gpus: int) -> DriverSpec:
    return DriverSpec.model_validate(fleet.driver(gpus)["spec"])


def _policy() -> PolicySpec:
    return PolicySpec.model_validate(fleet.policy("any", fleet.CHOICES)["spec"])


def _config(gpus: int) -> Config:
    return BACKEND.compile(_driver(gpus), _policy(), NodeFacts(node=_node(0)), Cluster())


def _texts(gpus: int) -> tuple[str, str]:
    spec = _driver(gpus).publish
    assert spec is not None
    return publish._text(publish._GROUPS, spec.inventory.gpus), publish._text(publish._LAYOUTS, _policy().layouts)


def _node(number: int) -> Object:
    return {"metadata": {"name": f"node-{number}", "uid": f"uid-{number}"}}


# --------------------------------------------------------------------------------------------------------------------- publishing


@dataclass(frozen=True, kw_only=True)
class Site:
    """An API server, and what is to be on it."""

    controlplane: ControlPlane
    client: Admin
    publisher: Path
    driver: DriverSpec
    config: Config

    def bodies(self, number: int) -> list[Object]:
        """A node's slices, as our backend writes them."""
        meta = _node(number)["metadata"]
        return fleet.published(self.config, meta["name"], meta["uid"])

    async def bare(self) -> float:
        """Seconds for texts that were ready before."""
        texts = [[json.dumps(body) for body in self.bodies(number)] for number in range(NODES)]
        url, json_ = self.client.server + RESOURCE_SLICES.path(), {"Content-Type": "application/json"}
        async with self.client.session() as session:

            async def write(number: int) -> None:
                for text in texts[number]:
                    async with session.post(url, data=text, headers=json_) as response:
                        await response.read()
                        assert response.status == 201, await response.text()

            return await _timed(write)

    async def ours(self) -> float:
        """Seconds for what the backend decides after each write."""

        async def write(number: int) -> None:
            there: list[Object] = []
            to = self.config.assigned()
            while effect := BACKEND.assign(self.driver, NodeFacts(node=_node(number), slices=there), to, "step", 1):
                assert isinstance(effect, CreateSlice), effect
                answer = await self.client.create(RESOURCE_SLICES, dict(effect.body), metadata_only=True)
                there.append({**effect.body, "metadata": answer["metadata"]})
            assert len(there) == SLICES

        return await _timed(write)

    async def theirs(self) -> float:
        """Seconds of Kubernetes' library."""
        nodes = [{**_node(n)["metadata"], "slices": [body["spec"] for body in self.bodies(n)]} for n in range(NODES)]
        command = [
            self.publisher,
            "--kubeconfig",
            self.controlplane.kubeconfig,
            "--driver",
            fleet.DRIVER_NAME,
            f"--lanes={LANES}",
        ]
        program = await asyncio.create_subprocess_exec(
            *map(str, command), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await program.communicate(json.dumps(nodes).encode())
        assert program.returncode == 0
        said = json.loads(out)
        assert said["creates"] == NODES * SLICES, said
        return float(said["seconds"])

    async def writes(self) -> int:
        """How many writes of slices the API server has answered well so far."""
        lines = (await self.client.raw("GET", "/metrics")).splitlines()
        ours = [line for line in lines if line.startswith("apiserver_request_total{") and _is_write(line)]
        return sum(int(float(line.rpartition(" ")[2])) for line in ours)

    async def wiped(self) -> int:
        """Delete all slices; returns how many there were."""
        first = (await self.client.raw("GET", RESOURCE_SLICES.path(), query={"limit": "1"}))["metadata"]
        await self.client.delete_all(RESOURCE_SLICES)
        return int(first["remainingItemCount"]) + 1


def _is_write(line: str) -> bool:
    return (
        'resource="resourceslices"' in line
        and 'code="2' in line
        and any(f'verb="{verb}"' in line for verb in WRITES)
        and 'dry_run="All"' not in line
    )


async def _timed(write: Callable[[int], Awaitable[None]]) -> float:
    """Seconds until all nodes are written, so many at once."""
    todo = iter(range(NODES))

    async def lane() -> None:
        for number in todo:
            await write(number)

    begun = time.monotonic()
    async with asyncio.TaskGroup() as lanes:
        for _ in range(LANES):
            lanes.create_task(lane())
    return time.monotonic() - begun


async def _publishing() -> Sequence[Figure]:
    progress = Progress(sys.stderr)
    tools = await Builder.here(progress).tools([PUBLISHER])
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with ControlPlane(Path(folder), shape=Shape(nodes=0), progress=progress) as controlplane:
            for name in controlplane.programs.keys() - {"etcd", "kube-apiserver"}:
                await controlplane.programs[name].stop()  # the garbage collector knows none of these nodes
            # One write may wait long behind fifteen others where the machine is busy: that is no error here.
            async with Admin.connect(controlplane.kubeconfig, patience=60) as client:
                site = Site(
                    controlplane=controlplane,
                    client=client,
                    publisher=tools[PUBLISHER.name],
                    driver=_driver(16),
                    config=_config(16),
                )
                return await _compared(site, progress)


async def _compared(site: Site, progress: Progress) -> Sequence[Figure]:
    ways = {"bare": site.bare, "ours": site.ours, "theirs": site.theirs}
    took: dict[str, list[float]] = {who: [] for who in ways}
    written: list[int] = []
    for number, who in enumerate(ORDER * ROUNDS, 1):
        async with progress.step(f"publishing {number} of {len(ORDER) * ROUNDS}: {who}, {NODES} nodes"):
            before = await site.writes()
            took[who].append(round(await ways[who](), 2))
            if who == "ours":
                written.append(await site.writes() - before)
            assert (there := await site.wiped()) == NODES * SLICES, f"{who}: {there}"
    # A round into which somebody else's work fell says nothing.
    typical = {who: median(each) for who, each in took.items()}
    slices = NODES * SLICES * len(took["ours"])
    rates = {who: f"{NODES * SLICES / seconds:.0f}" for who, seconds in typical.items()}
    told = f"ours {rates['ours']}/s, bare {rates['bare']}/s, Kubernetes' {rates['theirs']}/s"
    how = f"{slices // SLICES} nodes x {SLICES} slices, {LANES} at once, median of {len(took['ours'])} rounds: {told}"
    return [
        Figure(
            name="publish, beside a bare client",
            value=round(typical["ours"] / typical["bare"], 3),
            unit="times",
            bound=BARE_BOUND,
            how=how,
            rounds=[took],
        ),
        Figure(
            name="publish, beside Kubernetes' library",
            value=round(typical["ours"] / typical["theirs"], 3),
            unit="times",
            bound=THEIRS_BOUND,
            how=how,
        ),
        Figure(
            name="API writes a slice",
            value=round(sum(written) / slices, 3),
            bound=1,
            how="as the API server counts them",
            rounds=written,
        ),
    ]
