"""How much longer the operator takes for a roll-out over 50 nodes than a script (script.py) that makes the same writes, and what it writes.

All on one real control plane, one roll-out after another: operator, script, script, operator, so that neither always has the warmer one.
Both have ten nodes on their way at once, and wait on purpose as long as the operator does by itself: the shorter the waits, the larger is what
the operator takes longer beside them. Measured is from applying the policy until its status says that all is done. Takes nine minutes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.controlplane import ControlPlane, Shape
from testbed.progress import Progress
from tests.bench.figures import Figure
from tests.bench.script import Script, Waits
from tests.bench.watching import MUTATING, cpu_of, until
from tests.e2e import harness, rollout
from tests.e2e.harness import DRIVERS
from tests.e2e.stage import HALVES, OPERATOR, stage

from gpupartition.api.v1alpha1 import DriverSpec, PolicySpec
from gpupartition.backends import BACKENDS
from gpupartition.domain.backend import Cluster as Installed
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.offered import offered_by
from gpupartition.domain.world import Limits
from gpupartition.kube import DAEMON_SETS, NODES, RESOURCE_SLICES, Client
from gpupartition.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.harness import Cluster
    from tests.e2e.stage import Stage

    from gpupartition.kube import Object

COUNT: Final = 50
FEWER: Final = 10
SHARE: Final = 5  # a fifth of the nodes at once
ORDER: Final = ("operator", "script", "script", "operator")
LIMITS: Final = Limits()
WAITS: Final = Waits(  # what the operator waits by itself
    settle=LIMITS.settle.total_seconds(),
    idle_gap=LIMITS.idle_gap.total_seconds(),
    min_ready=LIMITS.min_ready.total_seconds(),
    summary=Settings().summary.total_seconds(),
)
BRIEFLY: Final = Waits(settle=1, idle_gap=1, min_ready=1, summary=5)  # where only writes are counted
BOUND: Final = 1.15
AGENT: Final = "script"

GROWTH: Final = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One roll-out: how long it took, with how much CPU, and what was written, of each kind and for a typical node in order."""

    who: str
    nodes: int
    seconds: float
    cpu: float
    writes: dict[str, int]
    way: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)

    @property
    def events(self) -> float:
        """Events a node."""
        return self.writes["create events"] / self.nodes

    @property
    def each(self) -> float:
        """Writes a node, events left out."""
        return sum(self.writes.values()) / self.nodes - self.events


def measure() -> list[Figure]:
    """The ratio of wall times, and the operator's writes a node in a small and in a larger cluster."""
    runs = asyncio.run(_all_runs())
    compared = [run for run in runs if run.nodes == COUNT]
    _same_work(compared)
    fewer, many = (next(r for r in runs if r.who == "operator" and r.nodes == count) for count in (FEWER, COUNT))
    script = next(r for r in runs if r.who == "script")
    seconds = {who: [r.seconds for r in compared if r.who == who] for who in ("operator", "script")}
    ratio = sum(seconds["operator"]) / sum(seconds["script"])
    told = ", ".join(f"{name.replace('_', ' ')} {value:g} s" for name, value in asdict(WAITS).items())
    in_words = {who: " and ".join(f"{each:.1f}" for each in taken) for who, taken in seconds.items()}
    longer = (sum(seconds["operator"]) - sum(seconds["script"])) / len(seconds["operator"]) / SHARE
    return [
        Figure(
            name="roll-out, operator to bare script",
            value=round(ratio, 3),
            bound=BOUND,
            how=f"{COUNT} nodes, {COUNT // SHARE} at once ({told}): operator {in_words['operator']} s, "
            f"script {in_words['script']} s: {longer:.1f} s longer for each {COUNT // SHARE}",
            rounds=[run.json() for run in runs],
        ),
        Figure(
            name="API writes a node, without events",
            value=round(many.each, 1),
            bound=round(fewer.each * GROWTH, 1),
            how=f"{COUNT} nodes, at most as many as with {FEWER} nodes ({fewer.each:.1f}); {len(many.way)} to its own objects; "
            f"{many.events:.1f} events come on top",
        ),
        Figure(
            name="operator's CPU a node",
            value=round(many.cpu / many.nodes * 1000),
            unit="ms CPU",
            how=f"{COUNT} nodes; the script's: {script.cpu / script.nodes * 1000:.0f}",
        ),
    ]


async def _all_runs() -> list[Run]:
    todo = [("operator", FEWER, BRIEFLY), *((who, COUNT, WAITS) for who in ORDER)]
    progress = Progress(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with ControlPlane(Path(folder), shape=Shape(nodes=0), progress=progress) as controlplane:
            runs = []
            for number, (who, nodes, waits) in enumerate(todo, 1):
                async with (
                    progress.step(f"roll-out {number} of {len(todo)}: {who}, {nodes} nodes"),
                    harness.cluster(controlplane, f"b{number}") as cluster,
                ):
                    runs.append(await _run(cluster, who, nodes, waits))
            return runs


async def _run(cluster: Cluster, who: str, nodes: int, waits: Waits) -> Run:
    scene = await stage(cluster, nodes)
    seconds, cpu = await RUNNERS[who](scene, nodes // SHARE, waits)
    await scene.publishes(HALVES)
    made = _writes(cluster.audit(user=OPERATOR) if who == "operator" else cluster.audit(user_agent=AGENT))
    return Run(
        who=who,
        nodes=nodes,
        seconds=round(seconds, 2),
        cpu=round(cpu, 2),
        writes=dict(Counter(what for what, _ in made)),
        way=_typical_way(made, scene.nodes),
    )


async def _operator(scene: Stage, at_once: int, waits: Waits) -> tuple[float, float]:
    program = await rollout.operator(scene.cluster, **asdict(waits))
    try:
        begun, cpu = time.monotonic(), cpu_of(program.pid)
        policy = await _apply(scene, at_once)
        await _complete(scene.cluster.client, policy)
        return time.monotonic() - begun, cpu_of(program.pid) - cpu
    finally:
        await program.stop()


async def _script(scene: Stage, at_once: int, waits: Waits) -> tuple[float, float]:
    client = scene.cluster.client
    async with Client.connect(scene.cluster.controlplane.kubeconfig, user_agent=AGENT) as own:
        driver = await client.get(DRIVERS, scene.driver)
        nodes = [await client.get(NODES, name) for name in scene.nodes]
        base = await client.get(DAEMON_SETS, scene.base.daemon_set, namespace=scene.base.namespace)
        slices = (await client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={scene.nodes[0]}")).items
        wanted, spec = (
            PolicySpec.model_validate(_policy(scene, at_once)["spec"]),
            DriverSpec.model_validate(driver["spec"]),
        )
        script = Script(
            own,
            driver=driver,
            nodes=nodes,
            config=BACKENDS[spec.type].compile(spec, wanted, NodeFacts(node=nodes[0]), Installed(daemon_sets=[base])),
            before=offered_by(slices),
            namespace=scene.base.namespace,
            driver_name=scene.base.driver,
            at_once=at_once,
            waits=waits,
        )
        async with script.ready():
            begun, cpu = time.monotonic(), time.process_time()
            await script.run(await _apply(scene, at_once))
            return time.monotonic() - begun, time.process_time() - cpu


RUNNERS: Final = {"operator": _operator, "script": _script}


def _policy(scene: Stage, at_once: int) -> Object:
    name = scene.cluster.name
    return rollout.policy(name, scene.driver, rollout.equal(2), rollout={"maxUnavailable": at_once})


async def _apply(scene: Stage, at_once: int) -> Object:
    return await rollout.apply(scene.cluster, _policy(scene, at_once))


async def _complete(client: Client, policy: Object) -> None:
    """Return as soon as the policy's status says that all is done."""
    await until(client, policy, lambda body: rollout.says(body, "Ready") == ("True", "RolloutComplete"))


def _writes(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What was written, in order, and the name of what it was written to; what was refused is no write."""
    made = []
    for each in sorted(entries, key=lambda entry: str(entry["requestReceivedTimestamp"])):
        about = each.get("objectRef", {})
        if each["verb"] in MUTATING and each["responseStatus"]["code"] < 300 and "dryRun" not in each["requestURI"]:
            path = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
            made.append((f"{each['verb']} {path}", str(about.get("name", ""))))
    return made


def _typical_way(made: Sequence[tuple[str, str]], nodes: Sequence[str]) -> tuple[str, ...]:
    """What is written to the objects of most nodes, in order: node, record and rule."""
    ways = Counter(
        tuple(what for what, name in made if name == node or name.startswith(f"gpp-{node}-")) for node in nodes
    )
    ((way, _),) = ways.most_common(1)
    return way


def _same_work(runs: Sequence[Run]) -> None:
    """A comparison with a script that writes something else would be none."""
    ways = {run.who: run.way for run in runs}
    if ways["operator"] != ways["script"]:
        raise AssertionError(
            f"the operator writes {list(ways['operator'])} to each node's objects and the script {list(ways['script'])}: "
            "have tests/bench/script.py write what the operator writes by now"
        )
