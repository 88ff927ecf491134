"""AMD's Device Config Manager v1.3, simulated: brings the GPUs of its node into the modes of the profile that the node's label names.

It begins when its process starts, when the label gets another value, and whenever its file config.json has changed, whatever changed in it. It
looks at no pod and restarts no plugin: a GPU that somebody has open is "Device busy." and tried again every minute for half an hour. What it
says in the state label needs no fault switch to mislead:

* The state of the last work stays until the next work ends: a stale success beside a new profile.
* A failure is written as soon as one GPU refuses, while the others are still worked on; a later try may turn it into a success.
* What is asked of it while it works is worked on afterwards; of what is asked while something waits already, nothing is ever heard again.
* A profile without entries ends its process, and that of each successor until the label or the file is another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.kube.errors import ApiError
from gpupartition.kube.kinds import EVENTS
from testbed import faults
from testbed.drivers import dcm_profiles
from testbed.drivers.container import Daemon
from testbed.drivers.dcm_profiles import Attempt, PanicError, RefusedError
from testbed.drivers.example import BadEnvironmentError
from testbed.drivers.static_plugin import seconds
from testbed.faults import Behaviour, Running, crash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.drivers.machine import Machine
    from testbed.drivers.mounts import Files
    from testbed.drivers.pods import DriverPod

log = logging.getLogger(__name__)

IMAGE: Final = "device-config-manager"
LABEL: Final = "app.kubernetes.io/name=device-config-manager"

PROFILE: Final = "dcm.amd.com/gpu-config-profile"
STATE: Final = "dcm.amd.com/gpu-config-profile-state"
WATCHERS: Final = "app.kubernetes.io/name=metrics-exporter"
"""Pods that have the driver open all the time."""
FOLDER: Final = "/etc/config-manager/"
FILE: Final = "config.json"
FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long things take, in seconds: all of them the simulation's own."""

    mount_age: float
    step: float
    load: float
    retry: float
    give_up: float

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read the container's environment. Raises BadEnvironmentError."""
        if not env.get("DS_NODE_NAME"):
            raise BadEnvironmentError("DS_NODE_NAME is missing: set it from the field spec.nodeName")
        return cls(
            mount_age=seconds(env, "TESTBED_MOUNT_SECONDS", 60),
            step=seconds(env, "TESTBED_STEP_SECONDS", 2),
            load=seconds(env, "TESTBED_LOAD_SECONDS", 20),
            retry=seconds(env, "TESTBED_RETRY_SECONDS", 60),
            give_up=seconds(env, "TESTBED_GIVE_UP_SECONDS", 1800),
        )


class ConfigManager(Daemon):
    """One node's Device Config Manager."""

    def __init__(self, machine: Machine, pod: DriverPod) -> None:
        super().__init__(machine, pod)
        self._broken = ""
        try:
            self.settings = Settings.from_env(pod.env())
        except BadEnvironmentError as problem:
            self._broken = str(problem)
            self.settings = Settings.from_env({"DS_NODE_NAME": pod.node})
        source = pod.config_map(FOLDER)
        self._mount = machine.mounts.mount(pod.namespace, source, pod.uid, self.wake) if source else None
        self._panic = ""
        self._panicked_at: tuple[str, Files] = ("", {})  # the label, and the file
        self._begin()

    def __str__(self) -> str:
        """Say what it was told, for the log."""
        return self._broken or f"Device Config Manager with {FOLDER}{FILE}"

    def _begin(self) -> None:
        self._asked: asyncio.Queue[str] = asyncio.Queue(maxsize=1)
        self._called_off = asyncio.Event()
        self._failed = False  # as it went last, and as it says still when it fails before it has begun
        self._label: str | None = None  # as it was heard last; None: its process has not started yet
        self._files: Files | None = None

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            works = tasks.create_task(self._works())
            try:
                await super()._live()
            finally:
                works.cancel()

    def wake(self, pod: DriverPod | None = None) -> None:
        """Hear every value of the label, however short it lasts."""
        super().wake(pod)
        if self._label is not None:
            self._hear()

    async def _turn(self) -> float | None:
        if self._broken:
            return await self._show(crash(self.age, self._broken))
        if not self._machine.known or (self._mount and self._mount.read(FOREVER) is None):
            return await self._show(Behaviour(running=Running.CREATING))
        told = (self._machine.profile, self._read())
        if self._panic and told == self._panicked_at:
            pause = await self._show(crash(self.age, self._panic))
        else:
            self._panic = ""
            pause = await self._show(Behaviour(running=Running.READY))
            self._hear()
        due = self._mount.due(self._mount_age()) if self._mount else None
        return min((each for each in (pause, due) if each is not None), default=None)

    # -------------------------------------------------------------------------------------------------------------- what it listens to

    def _hear(self) -> None:
        """Take the label and the file as they are now, and ask for work when either is another."""
        files, label = self._read(), self._machine.profile
        # The file is watched only if it is there when the process starts.
        changed = self._files is not None and FILE in self._files and files != self._files
        if label and (changed or label != self._label):
            self._ask(label)
        self._label = label
        self._files = files if self._files is None or FILE in self._files else self._files

    def _ask(self, profile: str) -> None:
        try:
            self._asked.put_nowait(profile)
        except asyncio.QueueFull:
            log.warning("%s: something waits already, %s is not heard", self.pod.node, profile)

    def _mount_age(self) -> float:
        on = faults.active(self._machine.faults, config=self._machine.profile)
        return FOREVER if "stale-mount" in on else self.settings.mount_age

    def _read(self) -> Files:
        return (self._mount.read(self._mount_age()) if self._mount else None) or {}

    # ---------------------------------------------------------------------------------------------------------------- what it works on

    async def _works(self) -> None:
        """Take what is asked for, one after another: what is worked on is called off, and ends when its try does."""
        work: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                profile = await self._asked.get()
                self._called_off.set()
                if work:
                    await work
                self._called_off = asyncio.Event()
                work = tasks.create_task(self._work(profile, self._called_off))

    async def _work(self, profile: str, called_off: asyncio.Event) -> None:
        """Try until there is nothing to be tried again, nobody wants it any more, or it has lasted too long."""
        clock = asyncio.get_running_loop()
        ends, retrying = clock.time() + self.settings.give_up, False
        if "newer-dcm" in self._faults(profile):
            await self._machine.label({STATE: "in-progress"})
        try:
            if stopped := dcm_profiles.services(self._read().get(FILE)):
                log.info("%s: stops %s", self.pod.node, ", ".join(stopped))
        except RefusedError as refusal:
            await self._refuse(profile, refusal, [])
            return
        while not called_off.is_set():
            if clock.time() > ends:
                await self._event("PartitionFailure", profile, "Failure", "Retry loop expired", [])
                return
            try:
                if not await self._try(profile):
                    return
            except PanicError as panic:
                self._end_in(str(panic))
                return
            if not retrying:
                retrying = True
                told = "Partition failed, retrying."
                await self._event("PartitionRetrying", profile, told, f"Partition retrying for profile: {profile}", [])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.retry):
                    await called_off.wait()

    async def _try(self, profile: str) -> bool:
        """Try once; returns whether to try again. Raises PanicError."""
        on = self._faults(profile)
        if on.get("wedged") == "before":
            return False
        await asyncio.sleep(float(on.get("slow-apply", 0)))
        if on.get("wrong-state") == "success":
            await self._say("success", on)
            return False
        places = self._machine.on_bus(self._machine.amd.gpus)
        attempt = Attempt(gpus=tuple(self._machine.amd.gpus[place] for place in places), places=places)
        try:
            found = dcm_profiles.read(self._read().get(FILE), profile)
        except RefusedError as refusal:
            await self._refuse(profile, refusal, attempt.told)
            return False
        try:
            wanted = dcm_profiles.assign(found, len(attempt.gpus), rest="newer-dcm" in on)
            self._failed = False
            await self._apply(wanted, attempt, on)
        except RefusedError as refusal:
            await self._refuse(profile, refusal, attempt.told)
            self._failed |= attempt.failed
            return self._failed
        self._failed = attempt.failed
        if attempt.failed:
            return True
        reason, why = (
            ("SuccessfullyPartitioned", "All GPUs were successfully partitioned")
            if attempt.needed
            else (
                "RequestedPartitionConfigAlreadyExists",
                "Existing GPU's partition configuration same as profile's partition config",
            )
        )
        await self._event(reason, profile, "Success", why, attempt.told)
        await self._say("failure" if on.get("wrong-state") == "failed" else "success", on)
        return False

    async def _apply(
        self, wanted: list[tuple[int, dcm_profiles.Entry]], attempt: Attempt, on: Mapping[str, str]
    ) -> None:
        """Take the steps one by one: each takes its time, is there for all to see, and finds who uses the GPUs then. Raises RefusedError."""
        await self._look_for_users(attempt, on)
        told = False
        for _ in dcm_profiles.apply(wanted, attempt, on):
            before = self._machine.amd.gpus
            await self._machine.change_amd_gpus(attempt.gpus, attempt.places)
            loaded = [gpu.memory for gpu in before] != [gpu.memory for gpu in self._machine.amd.gpus]
            await asyncio.sleep(self.settings.load if loaded else self.settings.step)
            if attempt.failed and not told:
                told = True
                await self._say("failure", on)
            attempt.gpus = tuple(self._machine.amd.gpus[place] for place in attempt.places)
            await self._look_for_users(attempt, on)

    def _end_in(self, panic: str) -> None:
        log.error("%s: %s", self.pod.node, panic)
        self._panic, self._panicked_at = panic, (self._machine.profile, self._read())
        if self._process:
            self._process.cancel()

    async def _look_for_users(self, attempt: Attempt, on: Mapping[str, str]) -> None:
        found = await self._machine.amd_gpu_users()
        users = {number: found[place] for number, place in enumerate(attempt.places) if place in found}
        if "in-use" in on:
            users.setdefault(int(on["in-use"]), set()).add("a process that is no pod")
        attempt.users, attempt.watchers = users, await self._machine.running(WATCHERS)

    def _faults(self, profile: str) -> dict[str, str]:
        return faults.active(self._machine.faults, config=profile)

    # -------------------------------------------------------------------------------------------------------------------- what it says

    async def _refuse(self, profile: str, refusal: RefusedError, told: list[dict[str, Any]]) -> None:
        log.info("%s: %s: %s", self.pod.node, profile, refusal)
        await self._event(refusal.reason, profile, "Failure", str(refusal), told)
        await self._say("failure", self._faults(profile))

    async def _say(self, state: str, on: Mapping[str, str]) -> None:
        if on.get("wedged") == "after":
            return
        await asyncio.sleep(float(on.get("late-state", 0)))
        await self._machine.label({STATE: state})

    async def _event(self, reason: str, profile: str, final: str, why: str, told: list[dict[str, Any]]) -> None:
        """Tell it in an Event of its pod; one that cannot be written is lost."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        message = {"SelectedProfile": profile, "FinalStatus": final, "Reason": why, "GPUStatus": told}
        about = {"kind": "Pod", "namespace": self.pod.namespace, "name": self.pod.name}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{reason.lower()}-", "namespace": self.pod.namespace},
            "type": "Normal" if reason == "SuccessfullyPartitioned" else "Warning",
            "reason": reason,
            "message": json.dumps(message),
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "involvedObject": about,
            "source": {"host": self.pod.node, "component": "amd-device-config-manager"},
        }
        try:
            await self._machine.client.create(EVENTS, body)
        except ApiError as refusal:
            log.warning("%s: event %s: %s", self.pod.node, reason, refusal)
