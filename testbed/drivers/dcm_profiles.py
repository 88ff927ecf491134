"""What AMD's Device Config Manager v1.3 makes of its file config.json: reads a profile, validates it for a node, and applies it to its GPUs.

It goes through all GPUs whatever some of them refuse: the memory mode first, then the compute mode, even where the memory mode was refused.
What could be done stays, and nothing is put back. A refusal that trying again cannot mend ends the walk where it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from testbed.drivers import amd_gpus
from testbed.drivers.amd_gpus import UNAVAILABLE, UNKNOWN, AmdSmiError, Gpus, Users

COMPUTE: Final = ("SPX", "CPX", "DPX", "QPX")
MEMORY: Final = ("NPS1", "NPS2", "NPS4")
PROFILES: Final = "gpu-config-profiles"

Object = dict[str, Any]


class RefusedError(Exception):
    """It will not, and trying again would not help: the reason of its event, and what it says."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class PanicError(Exception):
    """Its process ends; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """So many GPUs (None: all that are left) are to be in these modes."""

    compute: str
    memory: str
    count: int | None

    def __str__(self) -> str:
        """Write it as in its events: CPX-NPS4."""
        return f"{self.compute}-{self.memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One profile: entries take the GPUs that are not skipped, in the order of their numbers."""

    entries: tuple[Entry, ...]
    skipped: tuple[int, ...] = ()


# ---------------------------------------------------------------------------------------------------------------------- config file


def read(text: str | None, name: str) -> Profile:
    """The profile of this name in the file; None: there is no file. Raises RefusedError."""
    if text is None:
        raise RefusedError("ConfigMapNotPresent", "Configmap does not exist")
    profiles, _, twice = _parse(text)
    if twice:
        raise RefusedError("DuplicateProfileExists", "Duplicate Profile names exist in the configmap")
    if name not in profiles:
        raise RefusedError("NonExistentProfile", "Profile does not exist in the configmap")
    return profiles[name]


def services(text: str | None) -> tuple[str, ...]:
    """The systemd units that are stopped while it works. Raises RefusedError."""
    return _parse(text)[1] if text is not None else ()


def _parse(text: str) -> tuple[dict[str, Profile], tuple[str, ...], bool]:
    """The profiles, the systemd units, and whether a profile is there twice. Raises RefusedError: one wrong field spoils the file."""
    twice = False

    def once(pairs: list[tuple[str, Any]]) -> Object:
        nonlocal twice
        names = [
            name for name, value in pairs if isinstance(value, dict) and value.keys() & {"profiles", "skippedGPUs"}
        ]
        twice = twice or len(names) > len(set(names))
        return dict(pairs)

    try:
        document = json.loads(text, object_pairs_hook=once)
        profiles = {str(name): _profile(told or {}) for name, told in (document.get(PROFILES) or {}).items()}
        listed = (document.get("gpuClientSystemdServices") or {}).get("names") or []
    except (ValueError, TypeError, AttributeError) as problem:
        raise RefusedError("InvalidJSONInConfigMap", "Invalid JSON inside configmap") from problem
    return profiles, tuple(map(str, listed)), twice


def _profile(told: Object) -> Profile:
    skipped = (told.get("skippedGPUs") or {}).get("ids") or ()
    return Profile(
        entries=tuple(_entry(each) for each in told.get("profiles") or ()), skipped=tuple(map(_number, skipped))
    )


def _entry(told: Object) -> Entry:
    count = told.get("numGPUsAssigned")
    modes = [str(told.get(name) or "") for name in ("computePartition", "memoryPartition")]
    return Entry(compute=modes[0], memory=modes[1], count=None if count is None else _number(count))


def _number(told: object) -> int:
    if not isinstance(told, int) or isinstance(told, bool) or told < 0:
        raise TypeError(f"{told!r} is not an unsigned integer")
    return told


# ----------------------------------------------------------------------------------------------------------------------- validation


def assign(profile: Profile, gpus: int, *, rest: bool = False) -> list[tuple[int, Entry]]:
    """Which GPU gets what, by their numbers. `rest`: an entry without a number takes those that are left, as in later releases.

    Raises RefusedError, and PanicError for a profile without entries.
    """
    if not gpus:
        raise RefusedError("AMDSMIAPIFailure", "Partition failed with reason: 0 sockets found")
    if any(index >= gpus for index in profile.skipped):
        raise _invalid("invalid gpu id")
    counts = [entry.count or 0 for entry in profile.entries]
    usable = [index for index in range(gpus) if index not in profile.skipped]
    if rest:
        counts = [
            len(usable) - sum(counts) if entry.count is None else n
            for entry, n in zip(profile.entries, counts, strict=True)
        ]
    if min(counts, default=0) < 0 or sum(counts) + len(profile.skipped) != gpus:
        raise _invalid(
            "the total of all numGPUsAssigned values across profiles, combined with the count of IDs in the "
            "skippedGPUs list, does not equal the total number of GPUs available on this node"
        )
    if not profile.entries:
        raise PanicError("panic: runtime error: index out of range [0] with length 0")
    for entry in profile.entries:
        if entry.compute not in COMPUTE:
            raise _invalid("not a valid profile. Invalid compute type")
        if entry.memory not in MEMORY:
            raise _invalid("not a valid profile. Invalid memory type")
        if entry.memory != profile.entries[0].memory:
            raise _invalid("profile cannot have combination of NPS1, NPS2 and NPS4 memory types")
    wanted = [entry for entry, count in zip(profile.entries, counts, strict=True) for _ in range(count)]
    if len(wanted) > len(usable):  # a number is skipped twice
        raise PanicError(f"panic: runtime error: index out of range [{len(usable)}] with length {len(usable)}")
    return list(zip(usable, wanted, strict=False))


def _invalid(why: str) -> RefusedError:
    return RefusedError("InvalidProfileInfo", f"Partition failed with reason: {why}")


# ------------------------------------------------------------------------------------------------------------------------------ apply


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The GPUs that it works on and who uses them, how it went for each GPU, and whether it had to do anything and could not.

    `places`: where the GPUs are in the machine, of which one that has fallen off the bus is not counted. `watchers` have the driver open
    without using a GPU: they are in the way of a memory mode alone.
    """

    gpus: Gpus
    places: tuple[int, ...] = ()
    users: Users = field(default_factory=dict)
    watchers: Collection[str] = ()
    told: list[Object] = field(default_factory=list)
    needed: bool = False
    failed: bool = False


def apply(wanted: list[tuple[int, Entry]], attempt: Attempt, faults: Mapping[str, str]) -> Iterator[None]:
    """Try it, with a pause after each thing that was done or refused. Raises RefusedError. `faults` are those of the node."""
    why = ""
    for index, entry in wanted:
        gpu = attempt.gpus[index]
        if (gpu.compute, gpu.memory) == (entry.compute, entry.memory):
            _tell(attempt, index, entry, "Success", "Partition not required")
            continue
        attempt.needed = True
        for kind in ("memory", "compute"):
            if getattr(attempt.gpus[index], kind) == getattr(entry, kind):
                continue
            try:
                attempt.gpus = _set(kind, entry, attempt, index, broken=faults.get("gpu-fails") == str(index))
            except AmdSmiError as problem:
                attempt.failed, why = True, str(problem)
            yield
        if attempt.failed:  # from here on it says so of all GPUs
            _tell(attempt, index, entry, "Failure", f"Partition failed with reason: {why}")
        else:
            _tell(attempt, index, entry, "Success", "Successfully partitioned")


def _set(kind: str, entry: Entry, attempt: Attempt, index: int, *, broken: bool) -> Gpus:
    """Set one mode, unless the GPU is broken. Raises AmdSmiError where trying again may help, RefusedError where not."""
    if broken:
        raise AmdSmiError(UNKNOWN)
    if kind == "memory":
        supported = attempt.gpus[index].model.memory_modes
        if entry.memory not in supported:
            raise _refused(
                attempt,
                index,
                entry,
                f"Unsupported memory partition type {entry.memory} given in profile. "
                f"List of supported memory partition types are [{' '.join(supported)}]",
            )
        return amd_gpus.set_memory(attempt.gpus, entry.memory, [*attempt.users.values(), attempt.watchers])
    try:
        return amd_gpus.set_compute(attempt.gpus, index, entry.compute, attempt.users)
    except AmdSmiError as problem:
        if problem.status != UNAVAILABLE:
            raise
        raise _refused(
            attempt,
            index,
            entry,
            f"Unsupported compute partition combination {entry} given in profile. "
            f"The memory partition {entry.memory} does not support compute partition {entry.compute}",
        ) from problem


def _refused(attempt: Attempt, index: int, entry: Entry, message: str) -> RefusedError:
    _tell(attempt, index, entry, "Failure", message)
    return _invalid(message)


def _tell(attempt: Attempt, index: int, entry: Entry, status: str, message: str) -> None:
    attempt.told.append({"GpuID": index, "PartitionType": str(entry), "Status": status, "Message": message})
