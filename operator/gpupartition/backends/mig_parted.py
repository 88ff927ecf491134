"""What mig-parted is told: entries of its config file, what each is called, and what one that is there means for a node's GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from gpupartition.backends.nvidia_gpus import Cut, Cuts, Gpus, numbers
from gpupartition.domain import fingerprint
from gpupartition.domain.entries import Document

PREFIX: Final = "gpp-"
DISABLED: Final = "all-disabled"
ENABLED: Final = "all-enabled"

MOST: Final = 16  # partitions of one profile on a GPU: more than any product has

Entry = list[dict[str, Any]]


def document(namespace: str, name: str) -> Document:
    """The config file in its ConfigMap. The two names that mig-manager itself may be given as a default are always there."""
    frame = {
        "version": "v1",
        "mig-configs": {
            DISABLED: [{"devices": "all", "mig-enabled": False}],
            ENABLED: [{"devices": "all", "mig-enabled": True, "mig-devices": {}}],
        },
    }
    return Document(namespace=namespace, name=name, file="config.yaml", under="mig-configs", frame=frame)


def entry(gpus: Gpus, cuts: Cuts) -> Entry:
    """The entry that cuts the GPUs so. GPUs that are left as they are stand in none of its items, so mig-parted does not look at them."""
    by_name = {gpu.name: cut for gpu, cut in zip(gpus, cuts, strict=True)}
    groups: dict[Cut, list[int]] = {}
    for number, gpu in numbers(gpus).items():
        cut = by_name[gpu.name]
        if cut is not None:
            groups.setdefault(cut, []).append(number)
    everywhere = len(groups) == 1 and None not in cuts
    return [_item("all" if everywhere else devices, cut) for cut, devices in groups.items()]


def _item(devices: str | list[int], cut: Cut) -> dict[str, Any]:
    item: dict[str, Any] = {"devices": devices, "mig-enabled": cut.enabled}
    return item | {"mig-devices": dict(cut.counts)} if cut.enabled else item


def whole_fingerprint(entry: Any) -> str:
    """The whole hash of an entry, whoever wrote it."""
    items = entry if isinstance(entry, list) else []
    return fingerprint.digest(
        {"mig-parted": [fingerprint.as_json(_canonical(item)) for item in items if isinstance(item, dict)]}
    )


def _canonical(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if value != {}}


def key_of(entry: Entry) -> str:
    """What the entry of a layout is called."""
    return PREFIX + fingerprint.short(whole_fingerprint(entry))


def cuts_of(entry: Any, gpus: Gpus) -> Cuts | None:
    """What an entry makes of these GPUs; None where it does not say in a way that can be understood here."""
    found: dict[str, Cut] = {}
    if not isinstance(entry, list):
        return None
    by_number = numbers(gpus)
    for item in entry:
        known = isinstance(item, dict) and not item.get("device-filter")
        devices = _devices(item.get("devices"), by_number.keys()) if known else None
        counts = item.get("mig-devices") or {} if known else None
        if devices is None or not _are_counts(counts):
            return None
        for number in devices:
            if number in by_number:
                found[by_number[number].name] = Cut.of(counts, enabled=bool(item.get("mig-enabled")))
    return tuple(found.get(gpu.name) for gpu in gpus)


def _are_counts(counts: Any) -> TypeGuard[Mapping[str, int]]:
    """Whether these are profiles with as many of each as any GPU could have: people write such files by hand."""
    if not isinstance(counts, dict):
        return False
    return all(isinstance(n, str) and type(count) is int and 0 <= count <= MOST for n, count in counts.items())


def _devices(devices: Any, known: Any) -> Sequence[int] | None:
    if devices == "all":
        return list(known)
    return devices if isinstance(devices, list) and all(type(d) is int for d in devices) else None
