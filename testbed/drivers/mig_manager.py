"""The simulated nvidia-mig-manager v0.15: does what its node's label nvidia.com/mig.config says, in the order of the real one.

It neither cordons nor drains, looks at no pod but those of NVIDIA's own DaemonSets, restarts no DRA plugin, tries nothing twice and takes
nothing back. It does not notice that the file behind a label has changed. Three of its mistakes need no fault switch:

* An error while it waits for pods to go ends the work in pending, with all labels paused.
* Once it has succeeded, a later failure leaves the labels paused, until its process ends: a flag that says they were restored stays set.
* A label that is taken away and set again while it works is not noticed; one taken away alone is looked for in the file, and fails.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from gpupartition.kube.errors import ApiError, NotFound
from gpupartition.kube.kinds import NODES
from testbed import faults
from testbed.drivers import mig_parted
from testbed.drivers.container import Daemon
from testbed.drivers.example import BOOLEANS, BadEnvironmentError
from testbed.drivers.gpus import NvmlError
from testbed.drivers.mig_parted import BadConfigError, Config, Node
from testbed.drivers.nvidia_clients import Clients, WedgedError
from testbed.drivers.static_plugin import seconds
from testbed.faults import Behaviour, Running, crash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from testbed.drivers.machine import Machine
    from testbed.drivers.pods import DriverPod

log = logging.getLogger(__name__)

IMAGE: Final = "k8s-mig-manager"
LABEL: Final = "app=nvidia-mig-manager"

CONFIG: Final = "nvidia.com/mig.config"
STATE: Final = "nvidia.com/mig.config.state"
FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the pod's environment says. An empty `config_file` means: make one from the GPUs. The rest are the simulation's own, in seconds."""

    config_file: str
    clients_namespace: str
    with_reboot: bool
    mount_age: float
    step: float
    poll: float
    pod_wait: float
    reboot: float

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read the container's environment. Raises BadEnvironmentError."""
        if not env.get("NODE_NAME"):
            raise BadEnvironmentError("invalid -n <node-name> flag: must not be empty string")
        return cls(
            config_file=env.get("CONFIG_FILE", ""),
            clients_namespace=env.get("DEFAULT_GPU_CLIENTS_NAMESPACE") or "default",
            with_reboot=bool(BOOLEANS.get(env.get("WITH_REBOOT", ""))),
            mount_age=seconds(env, "TESTBED_MOUNT_SECONDS", 60),
            step=seconds(env, "TESTBED_STEP_SECONDS", 1),
            poll=seconds(env, "TESTBED_POLL_SECONDS", 1),
            pod_wait=seconds(env, "TESTBED_POD_WAIT_SECONDS", 300),
            reboot=seconds(env, "TESTBED_REBOOT_SECONDS", 60),
        )


class Label:
    """The value of the label as the real one keeps it: told at each change, and asked for the next one to work on."""

    def __init__(self) -> None:
        self._current = self._last_read = ""
        self._waiting = self._rung = False

    def tell(self, value: str) -> None:
        """It has another value. Only who waits hears it ring, and an empty value does not."""
        if value != self._current:
            self._current = value
            self._rung |= self._waiting and value != ""

    def ask(self) -> str | None:
        """The value to work on; None: wait."""
        if not self._rung and (self._waiting or self._last_read == self._current):
            self._waiting = True
            return None
        self._waiting = self._rung = False
        self._last_read = self._current
        return self._current


class MigManager(Daemon):
    """One node's mig-manager."""

    def __init__(self, machine: Machine, pod: DriverPod) -> None:
        super().__init__(machine, pod)
        self._broken = ""
        try:
            self.settings = Settings.from_env(pod.env())
        except BadEnvironmentError as problem:
            self._broken = str(problem)
            self.settings = Settings.from_env({"NODE_NAME": pod.node})
        folder = str(PurePosixPath(self.settings.config_file).parent)
        source = pod.config_map(folder) if self.settings.config_file else ""
        if self.settings.config_file and not source:
            self._broken = self._broken or f"no ConfigMap is mounted at {folder}: failed to read custom config"
        self._clients = Clients(
            machine,
            self.settings.clients_namespace,
            poll=self.settings.poll,
            pod_wait=self.settings.pod_wait,
        )
        self._mount = machine.mounts.mount(pod.namespace, source, pod.uid, self.wake) if source else None
        self._begin()

    def __str__(self) -> str:
        """Say what it was told, for the log."""
        return self._broken or f"mig-manager with {self.settings.config_file or 'a file of its own'}"

    def _begin(self) -> None:
        self._label = Label()
        self._restored_once = False

    def wake(self, pod: DriverPod | None = None) -> None:  # noqa: D102
        super().wake(pod)
        self._label.tell(self._machine.config)

    async def _turn(self) -> float | None:
        if self._broken:
            return await self._show(crash(self.age, self._broken))
        if not self._machine.known or (self._mount and self._mount.read(FOREVER) is None):
            return await self._show(Behaviour(running=Running.CREATING))
        pause = await self._show(Behaviour(running=Running.READY))
        self._label.tell(self._machine.config)
        while (key := self._label.ask()) is not None:
            try:
                await self._reconfigure(key)
            except WedgedError as problem:
                log.error("%s: %s: Error: %s", self.pod.node, key, problem)  # noqa: TRY400
        return pause

    # ------------------------------------------------------------------------------------------------------------ one reconfiguration

    async def _reconfigure(self, key: str) -> None:
        on = faults.active(self._machine.faults, config=key)
        labels = await self._labels()
        try:
            config = self._read(key, on)
        except BadConfigError as problem:
            await self._finish("failed", labels, on, str(problem))
            return
        node = await self._node(on)
        if mig_parted.holds(config, node):
            await self._finish("success", labels, on, "already applied")
            return
        if labels.get(STATE) == "rebooting" and not mig_parted.mode_holds(config, node):
            await self._finish("failed", labels, on, "MIG mode change did not take effect after rebooting")
            return
        await self._machine.label({STATE: "pending"})
        await self._clients.pause(labels)
        await self._clients.gone()
        if on.get("wedged") == "before":
            raise WedgedError("failed to wait for pods to be deleted")
        await asyncio.sleep(float(on.get("slow-apply", 0)))
        if on.get("wrong-state") != "success":
            try:
                await self._change(config, on)
            except NvmlError as problem:
                await self._finish("failed", labels, on, f"failed to apply MIG configuration: {problem}")
                return
        if on.get("wedged") == "after":
            raise WedgedError("failed to restart validator pod")
        await self._clients.validate()
        if "leaves-paused" not in on:
            await self._clients.restore(labels)
            self._restored_once = True
        await self._finish(on.get("wrong-state", "success"), labels, on, "applied")

    def _read(self, key: str, on: Mapping[str, str]) -> Config:
        if self._mount is None:
            return mig_parted.read(mig_parted.generated(self._bare(on)), key)
        files = self._mount.read(FOREVER if "stale-mount" in on else self.settings.mount_age) or {}
        name = PurePosixPath(self.settings.config_file).name
        if name not in files:
            raise BadConfigError(f"read error: open {self.settings.config_file}: no such file or directory")
        return mig_parted.read(files[name], key)

    def _bare(self, on: Mapping[str, str]) -> Node:
        places = self._machine.on_bus(self._machine.gpus)
        return Node(
            gpus=[self._machine.gpus[place] for place in places],
            places=places,
            other_names="other-names" in on,
            can_reset="no-reset" not in on,
        )

    async def _node(self, on: Mapping[str, str]) -> Node:
        node = self._bare(on)
        await self._look_for_users(node, on)
        return node

    async def _look_for_users(self, node: Node, on: Mapping[str, str]) -> None:
        node.users = mig_parted.leaked(node.numbered(await self._machine.gpu_users()), on)

    async def _change(self, config: Config, on: Mapping[str, str]) -> None:
        """The mode, then everything. Does not return when the machine goes down for the mode. Raises NvmlError."""
        node = await self._node(on)
        try:
            await self._work(mig_parted.apply_mode(config, node), node, on)
            refused = not mig_parted.mode_holds(config, node)
        except NvmlError as problem:
            log.warning("%s: failed to apply MIG mode change: %s", self.pod.node, problem)
            refused = True
        if refused and self.settings.with_reboot:
            await self._machine.label({STATE: "rebooting"})
            self._machine.reboot(self.settings.reboot)
            await asyncio.Event().wait()  # until the machine is down
        node = await self._node(on)
        await self._work(mig_parted.apply(config, node, on), node, on)

    async def _work(self, steps: Iterator[None], node: Node, on: Mapping[str, str]) -> None:
        """Take the steps one by one: each takes its time, is there for all to see, and finds who uses the GPUs then."""
        try:
            for _ in steps:
                await self._machine.change_gpus(node.gpus, node.places)
                await asyncio.sleep(self.settings.step)
                node.gpus[:] = [self._machine.gpus[place] for place in node.places]
                await self._look_for_users(node, on)
        except NvmlError:
            await self._machine.change_gpus(node.gpus, node.places)
            raise

    async def _finish(self, state: str, labels: Mapping[str, str], on: Mapping[str, str], why: str) -> None:
        """Say how it went; the labels are restored before, unless they were once."""
        log.info("%s: %s: %s", self.pod.node, state, why)
        await asyncio.sleep(float(on.get("late-state", 0)))
        if not self._restored_once and "leaves-paused" not in on:
            await self._clients.restore(labels)
        await self._machine.label({STATE: state})

    # ------------------------------------------------------------------------------------------------------------------ what it asks

    async def _labels(self) -> dict[str, str]:
        while True:
            try:
                node = await self._machine.client.get(NODES, self._machine.name)
            except NotFound:
                return {}
            except ApiError as refusal:
                log.warning("%s: %s", self.pod.node, refusal)
                await asyncio.sleep(self.settings.poll)
            else:
                return dict(node["metadata"].get("labels") or {})
