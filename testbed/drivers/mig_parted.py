"""The simulated nvidia-mig-parted v0.15: reads its config file, compares a node's GPUs with an entry of it, and applies one.

It walks the GPUs in their order and stops at the first that refuses: those before it have the new layout, that one has lost its old one, and
those behind it are as they were. Nothing is put back. What it cannot see beforehand is whether the hardware has room: it tries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from gpupartition.domain.mig import preset
from testbed.drivers import gpus
from testbed.drivers.gpus import WHOLE, Gpu, NvmlError, spelled

PCI_IDS: Final[Mapping[str, str]] = {
    # by the name of the model in the table of MIG profiles: one of the PCI ids that mig-parted's default file names for it
    "A100-40GB": "0x20B010DE",
    "A100-80GB": "0x20B210DE",
    "A30-24GB": "0x20B710DE",
    "H100-80GB": "0x233010DE",
    "H100-94GB-NVL": "0x232110DE",
    "GH200-96GB": "0x234210DE",
    "H20-96GB": "0x232910DE",
    "H200-141GB": "0x233510DE",
    "GH200-144GB": "0x234810DE",
    "B200-180GB": "0x290110DE",
    "GB200-186GB": "0x294110DE",
    "B300": "0x318210DE",
    "GB300": "0x31C210DE",
    "RTX-PRO-6000-96GB": "0x2BB510DE",
}
NO_MIG: Final = "0x26B910DE"  # an L40S
FIELDS: Final = frozenset({"device-filter", "devices", "mig-enabled", "mig-devices"})


class BadConfigError(ValueError):
    """The file cannot be read, or has no such entry; nothing has been touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What some of the GPUs are to become: those with one of these PCI ids (all if there are none) and one of these indices (None: all)."""

    mig_enabled: bool
    counts: Mapping[str, int]
    only: tuple[str, ...] = ()
    devices: frozenset[int] | None = None

    def means(self, index: int, gpu: Gpu) -> bool:  # noqa: D102
        return (self.devices is None or index in self.devices) and (not self.only or pci_id(gpu) in self.only)


Config = tuple[Entry, ...]


@dataclass(slots=True, kw_only=True)
class Node:
    """The GPUs that it works on, in the order of their numbers, and who uses them (by GPU). `other_names`: of the driver's release.

    `places`: where they are in the machine, of which one that has fallen off the bus is not counted. `can_reset`: not so on virtual machines
    of some clouds, where only a reboot brings a pending mode.
    """

    gpus: list[Gpu]
    places: tuple[int, ...] = ()
    users: Mapping[int, Collection[str]] = field(default_factory=dict)
    other_names: bool = False
    can_reset: bool = True

    def counts(self, index: int) -> dict[str, int]:
        """Instances by profile, in this driver's spelling."""
        return {spelled(name, other=self.other_names): n for name, n in self.gpus[index].counts.items()}

    def numbered(self, users: Mapping[int, Collection[str]]) -> dict[int, Collection[str]]:
        """Users by number, of users by place."""
        return {number: users[place] for number, place in enumerate(self.places) if place in users}

    def using(self, index: int) -> Collection[str]:  # noqa: D102
        return self.users.get(index, ())


def pci_id(gpu: Gpu) -> str:
    """Device and vendor, as a device-filter names them."""
    return PCI_IDS.get(gpu.model.name, NO_MIG) if gpu.model else NO_MIG


# ---------------------------------------------------------------------------------------------------------------------- config file


def read(text: str, key: str) -> Config:
    """The entry of this name. Raises BadConfigError: one wrong entry makes the whole file unreadable."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise BadConfigError(f"unmarshal error: {problem}") from problem
    if not isinstance(document, dict) or document.keys() - {"version", "mig-configs"}:
        raise BadConfigError("unmarshal error: expected the fields version and mig-configs")
    if document.get("version") != "v1":
        raise BadConfigError(f"unknown version: {document.get('version')}")
    configs = {str(name): tuple(map(_entry, entries)) for name, entries in (document.get("mig-configs") or {}).items()}
    if key not in configs:
        raise BadConfigError(f"selected mig-config not present: {key!r}")
    return configs[key]


def generated(node: Node) -> str:
    """The file that is made from the node's own GPUs where none is given: the usual names, for what is there."""
    models = {gpu.model.name: gpu.model for gpu in node.gpus if gpu.model}
    configs: dict[str, list[dict[str, Any]]] = {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "all-enabled": [{"devices": "all", "mig-enabled": True, "mig-devices": {}}],
    }
    for model in models.values():
        names = [f"all-{p.name.replace('+', '.')}" for p in model.profiles] + ["all-balanced"] * bool(model.balanced)
        for name in names:
            counts = {spelled(p, other=node.other_names): n for p, n in preset(model, name, "").counts.items()}
            entry = {"devices": "all", "mig-enabled": True, "mig-devices": counts, "device-filter": PCI_IDS[model.name]}
            configs.setdefault(name, []).append(entry)
    return yaml.safe_dump({"version": "v1", "mig-configs": configs})


def _entry(told: Any) -> Entry:
    if not isinstance(told, dict) or told.keys() - FIELDS:
        raise BadConfigError(f"unexpected field in {told!r}: the fields are {', '.join(sorted(FIELDS))}")
    missing = {"devices", "mig-enabled"} - told.keys()
    if told.get("mig-enabled") and "mig-devices" not in told:
        missing.add("mig-devices")
    if missing:
        raise BadConfigError(f"missing required field: {', '.join(sorted(missing))}")
    only, devices, counts = told.get("device-filter") or (), told["devices"], told.get("mig-devices") or {}
    if devices != "all" and not (isinstance(devices, list) and all(isinstance(each, int) for each in devices)):
        raise BadConfigError(f"devices is {devices!r}: write all, or a list of numbers")
    for profile, count in counts.items():
        if gpus.PROFILE.match(str(profile)) is None or not isinstance(count, int) or count < 0:
            raise BadConfigError(f"invalid format for {profile}: {count}")
    return Entry(
        mig_enabled=bool(told["mig-enabled"]),
        counts=counts,
        only=(only,) if isinstance(only, str) else tuple(only),
        devices=None if devices == "all" else frozenset(devices),
    )


# ----------------------------------------------------------------------------------------------------------------------------- assert


def mode_holds(config: Config, node: Node) -> bool:
    """`assert --mode-only`: whether every GPU that is meant has its mode. GPUs that nothing is said of are not looked at."""
    return all(
        not entry.mig_enabled if gpu.model is None else gpu.mig == entry.mig_enabled and not gpu.lost
        for entry, _, gpu in _walk(config, node)
    )


def holds(config: Config, node: Node) -> bool:
    """`assert`: whether the node is as the entry says. Never so for an entry that leaves a GPU out."""
    matched = set()
    for entry, index, gpu in _walk(config, node):
        if (gpu.model is None and not entry.mig_enabled) or (gpu.model and _is_as_told(entry, node, index)):
            matched.add(index)
        else:
            matched.discard(index)
    return mode_holds(config, node) and len(matched) == len(node.gpus)


def _is_as_told(entry: Entry, node: Node, index: int) -> bool:
    return (not entry.mig_enabled and not node.gpus[index].mig) or node.counts(index) == entry.counts


def _walk(config: Config, node: Node) -> Iterator[tuple[Entry, int, Gpu]]:
    for entry in config:
        for index in range(len(node.gpus)):
            if entry.means(index, node.gpus[index]):
                yield entry, index, node.gpus[index]


# ------------------------------------------------------------------------------------------------------------------------------ apply


def apply_mode(config: Config, node: Node) -> Iterator[None]:
    """`apply --mode-only`, a pause after each GPU. Raises NvmlError.

    When one mode is wrong, the instances of all that are meant go; when one change waits for it, all GPUs of the node are reset.
    """
    if mode_holds(config, node):
        return
    for entry, index, gpu in _walk(config, node):
        if gpu.model is None:
            if entry.mig_enabled and entry.devices is not None:
                raise NvmlError("cannot set MIG mode on non MIG-capable GPU")
            continue
        if gpu.mig:
            _clear(node, index)
        node.gpus[index] = gpus.set_mode(node.gpus[index], entry.mig_enabled, node.using(index))
        yield
    if any(gpu.mig != gpu.pending for gpu in node.gpus):
        if not node.can_reset:
            raise NvmlError("error resetting all GPUs: Not Supported")
        users = [node.using(index) for index in range(len(node.gpus))]
        if any(users):
            raise NvmlError(f"error resetting all GPUs: {NvmlError.in_use()}")
        node.gpus[:] = [gpus.reset(gpu, ()) for gpu in node.gpus]
        yield


def apply(config: Config, node: Node, faults: Mapping[str, str]) -> Iterator[None]:
    """`apply`: the modes if need be, then the instances; a pause after each GPU. Raises NvmlError. `faults` are those of the node."""
    yield from apply_mode(config, node)
    changed = 0
    for entry, index, gpu in _walk(config, node):
        if gpu.model is None:
            if entry.mig_enabled and entry.devices is not None:
                raise NvmlError("cannot set MIG config on non MIG-capable GPU")
            continue
        if faults.get("gpu-dies") == str(index):
            node.gpus[index] = replace(gpu, lost=True)
        if node.gpus[index].lost:
            raise NvmlError.lost()
        if gpu.mig != entry.mig_enabled:
            raise NvmlError(f"MIG mode of GPU {index} is {'enabled' if gpu.mig else 'disabled'}")
        if not entry.mig_enabled or node.counts(index) == entry.counts:
            continue
        if faults.get("apply-fails") == "partly" and changed:
            raise NvmlError("Unknown Error")
        _clear(node, index)
        if faults.get("apply-fails") == "cleared":
            raise NvmlError("Unknown Error")
        yield
        node.gpus[index] = gpus.create(node.gpus[index], _known(entry.counts, node, index))
        changed += 1
        yield
    if "apply-fails" in faults and changed:
        raise NvmlError("Unknown Error")


def _clear(node: Node, index: int) -> None:
    node.gpus[index], refusal = gpus.clear(node.gpus[index], node.using(index))
    if refusal:
        raise refusal


def _known(counts: Mapping[str, int], node: Node, index: int) -> dict[str, int]:
    """Counts in the table's spelling. Raises NvmlError for a name that this GPU's driver does not use."""
    model = node.gpus[index].model
    names = {spelled(p.name, other=node.other_names): p.name for p in model.profiles} if model else {}
    for name, count in counts.items():
        if count and name not in names:
            raise NvmlError(f"MIG profile {name!r} not found on this GPU")
    return {names[name]: count for name, count in counts.items() if count}


def leaked(users: Mapping[int, Collection[str]], faults: Mapping[str, str]) -> dict[int, Collection[str]]:
    """The users, and the process outside of Kubernetes that the switch in-use puts on a GPU."""
    one: Sequence[str] = [faults["in-use"]] if "in-use" in faults else []
    return {**users, **{int(index): {*users.get(int(index), ()), WHOLE} for index in one}}
