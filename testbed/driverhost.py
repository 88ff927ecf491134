"""Runs the GPU drivers of all simulated nodes: `python -m testbed.driverhost --kubeconfig FILE --state FOLDER`.

For each driver pod that the DaemonSet controller has bound to a node, one simulated driver runs in here as a task, with the habits of the
real one; and for each node the little of a kubelet that drivers feel. Three watches tell everything; what it needs to know after a crash
is in the API. While nothing happens it asks for nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import re
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpupartition.kube.kinds import NODES, PODS, RESOURCE_SLICES
from gpupartition.kube.reflector import Reflector
from testbed import faults
from testbed.admin import Admin
from testbed.drivers import amd_plugin, dcm, kubelet, machine, mig_manager, nvidia_plugin, pods
from testbed.drivers.amd_plugin import AmdPlugin
from testbed.drivers.dcm import ConfigManager
from testbed.drivers.kubelet import Kubelet
from testbed.drivers.machine import Machine
from testbed.drivers.mig_manager import MigManager
from testbed.drivers.mounts import Mounts
from testbed.drivers.nvidia_plugin import NvidiaPlugin
from testbed.drivers.plugin import ExamplePlugin
from testbed.drivers.pods import DriverPod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from testbed.drivers.container import Container
    from testbed.faults import Fault

log = logging.getLogger(__name__)

USER_AGENT: Final = "testbed-driverhost"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Simulation:
    """A program that is simulated: its pods have this label and, in one container, an image with this in its name."""

    label: str
    image: str
    start: Callable[[Machine, DriverPod], Container]


SIMULATIONS: Final = (
    Simulation(pods.LABEL, pods.IMAGE, ExamplePlugin),
    Simulation(mig_manager.LABEL, mig_manager.IMAGE, MigManager),
    Simulation(nvidia_plugin.LABEL, nvidia_plugin.IMAGE, NvidiaPlugin),
    Simulation(dcm.LABEL, dcm.IMAGE, ConfigManager),
    Simulation(amd_plugin.LABEL, amd_plugin.IMAGE, AmdPlugin),
)


@dataclass(frozen=True, slots=True)
class NodeView:
    """What this program reads of a node."""

    uid: str
    boot: str
    fault: str
    kubelet_stopped: bool
    kubelet_start: str
    kubelet_started: str
    mig_config: str
    amd_profile: str
    gpus: str
    gpu_state: str

    @classmethod
    def of(cls, body: Object) -> NodeView:  # noqa: D102
        notes, labels = (body["metadata"].get(kind) or {} for kind in ("annotations", "labels"))
        return cls(
            body["metadata"]["uid"],
            body.get("status", {}).get("nodeInfo", {}).get("bootID", ""),
            notes.get(faults.ANNOTATION, ""),
            notes.get(kubelet.STOP) == kubelet.STOPPED,
            notes.get(kubelet.START, ""),
            notes.get(kubelet.STARTED, ""),
            labels.get(mig_manager.CONFIG, ""),
            labels.get(dcm.PROFILE, ""),
            notes.get(machine.SPEC, ""),
            notes.get(machine.STATE, ""),
        )


@dataclass(frozen=True, slots=True)
class SliceView:
    """What this program reads of a slice; `version` makes every write a change."""

    driver: str
    node: str
    pool: str
    version: str
    by_plugin: bool

    @classmethod
    def of(cls, body: Object) -> SliceView | None:
        """Slices without a node are nobody's business here."""
        meta, spec = body["metadata"], body["spec"]
        if not (node := spec.get("nodeName")):
            return None
        named = re.match(rf"[0-9a-f]{{5}}-{re.escape(spec['driver'])}-{re.escape(node)}-", meta["name"])
        return cls(spec["driver"], node, spec["pool"]["name"], meta["resourceVersion"], bool(named))


@dataclass(slots=True)
class SimulatedNode:
    """One node's machine, the boot in which it was last seen alive, and what runs on it (by pod UID)."""

    machine: Machine
    boot: str = ""
    containers: dict[str, tuple[Container, asyncio.Task[None]]] = field(default_factory=dict)

    @property
    def kubelet(self) -> Kubelet:  # noqa: D102
        return self.machine.kubelet

    def wake(self) -> None:
        """Let all programs look again."""
        for container, _ in self.containers.values():
            container.wake()

    def reboot(self) -> None:
        """Start all containers anew."""
        for container, _ in self.containers.values():
            container.reboot()


class DriverHost:
    """Starts and stops programs as their pods come and go, and passes on what they must hear of."""

    def __init__(self, client: Admin, tasks: asyncio.TaskGroup, *, wipe_seconds: float) -> None:
        self._client = client
        self._wipe_seconds = wipe_seconds
        self._tasks = tasks
        self._mounts = Mounts(client, tasks)
        self._nodes: dict[str, SimulatedNode] = {}
        self.nodes = Reflector(client, NODES, NodeView.of, self._see_node)
        self.pods = [
            Reflector(
                client, PODS, partial(DriverPod.of, image=it.image), partial(self._see_pod, it), label_selector=it.label
            )
            for it in SIMULATIONS
        ]
        self.slices = Reflector(client, RESOURCE_SLICES, SliceView.of, self._see_slice)

    async def run(self) -> None:
        """Run until cancelled."""
        reflectors: list[Reflector[Any]] = [self.nodes, *self.pods, self.slices]
        watches = [self._tasks.create_task(it.run()) for it in reflectors]
        try:
            for reflector in reflectors:
                await reflector.synced.wait()
            self._wipe_orphans()
            running = sum(len(it.values()) for it in self.pods)
            log.info("running %d drivers on %d nodes", running, len(self.nodes.values()))
            await asyncio.gather(*watches)
        finally:
            await self._stop(watches)

    async def _stop(self, watches: list[asyncio.Task[None]]) -> None:
        self._mounts.close()
        running = watches + [task for node in self._nodes.values() for _, task in node.containers.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(node.kubelet.close() for node in self._nodes.values()))

    def _wipe_orphans(self) -> None:
        """Take up the wipes that were waiting when a former driver host died; a plugin that connects calls its own off."""
        for view in self.slices.values():
            if view.by_plugin:
                self._node(view.node).kubelet.expect(view.driver, self._wipe_seconds)

    def _node(self, name: str) -> SimulatedNode:
        if name not in self._nodes:  # a pod may be seen before its node is
            kubelet = Kubelet(self._client, name)
            self._nodes[name] = SimulatedNode(Machine(self._client, name, kubelet, self._mounts, self._tasks))
        return self._nodes[name]

    def _see_node(self, name: str, old: NodeView | None, new: NodeView | None) -> None:
        node = self._node(name)
        if new is None:
            return
        if old is None or old.fault != new.fault:
            node.machine.faults = self._faults(name, new.fault)
        node.machine.config, node.machine.profile = new.mig_config, new.amd_profile
        node.machine.see_gpus(new.boot, new.gpus, new.gpu_state)
        self._live(node, new)
        node.wake()

    def _live(self, node: SimulatedNode, seen: NodeView) -> None:
        if seen.kubelet_stopped:
            node.kubelet.stop()
            return
        rebooted = node.boot not in ("", seen.boot)
        node.boot = seen.boot
        if rebooted or seen.kubelet_start != seen.kubelet_started:
            node.kubelet.start(seen.uid, seen.boot, seen.kubelet_start, then=node.reboot if rebooted else node.wake)

    @staticmethod
    def _faults(node: str, annotation: str) -> list[Fault]:
        try:
            return faults.parse(annotation)
        except faults.BadFaultError as problem:
            log.error("node %s, annotation %s, ignored: %s", node, faults.ANNOTATION, problem)  # noqa: TRY400
            return []

    def _see_pod(self, simulation: Simulation, _key: str, old: DriverPod | None, new: DriverPod | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            _, task = self._node(old.node).containers.pop(old.uid)
            task.cancel()
            log.info("%s: %s ends", old.node, old.name)
        if new is None:
            return
        node = self._node(new.node)
        if new.uid in node.containers:
            node.containers[new.uid][0].wake(new)
        else:
            container = simulation.start(node.machine, new)
            log.info("%s: %s starts with %s", new.node, new.name, container)
            task = self._tasks.create_task(container.run(), name=f"{new.node}/{new.name}")
            node.containers[new.uid] = container, task

    def _see_slice(self, _key: str, old: SliceView | None, new: SliceView | None) -> None:
        view = new or old
        if view is None or view.node not in self._nodes:
            return
        for container, _ in self._nodes[view.node].containers.values():
            if container.driver == view.driver:
                container.written(view.pool)


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Hold the testbed's lock; raises SystemExit when another driver host does: two would undo each other's writes."""
    with (state / "driver-host.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(
                f"another driver host holds {lock.name}: end that one, or give this one a --state folder of its own"
            )
        yield


async def serve(kubeconfig: Path, *, wipe_seconds: float) -> None:
    """Run the drivers until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with Admin.connect(kubeconfig, user_agent=USER_AGENT) as client, asyncio.TaskGroup() as tasks:
        host = tasks.create_task(DriverHost(client, tasks, wipe_seconds=wipe_seconds).run())
        await ended.wait()
        host.cancel()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.driverhost", description="Simulated GPU drivers of all nodes."
    )
    parser.add_argument("--kubeconfig", type=Path, required=True, help="an administrator's credentials")
    parser.add_argument("--state", type=Path, required=True, help="folder of the testbed: holds its lock")
    parser.add_argument(
        "--wipe-seconds",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="until the slices of a driver are wiped whose last pod went while no driver host ran (default: %(default)g)",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with alone(arguments.state):
        asyncio.run(serve(arguments.kubeconfig, wipe_seconds=arguments.wipe_seconds))


if __name__ == "__main__":
    main()
