"""What mig-parted is told: entries of its config file, what each is called, and what one that is there means for a node's GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeGuard

from gpupartition.backends.by_label import PREFIX
from gpupartition.backends.nvidia_gpus import Cut, Cuts, Gpus, MigGpu, Table, numbers
from gpupartition.domain import fingerprint
from gpupartition.domain.entries import Document

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


def text(entry: Any) -> str:
    """The fingerprint of an entry as it is written."""
    return fingerprint.short(whole_fingerprint(entry))


def key_of(entry: Entry) -> str:
    """What the entry of a layout is called."""
    return PREFIX + text(entry)


def meaning(content: Any, gpus: Gpus, table: Table) -> str:
    """The fingerprint of the layout that an entry makes of these GPUs, however it says so; of its text where that is not understood."""
    cuts = cuts_of(content, gpus, table)
    return text(content if cuts is None else entry(gpus, cuts))


def cuts_of(entry: Any, gpus: Gpus, table: Table) -> Cuts | None:
    """What an entry makes of these GPUs; None where it does not say in a way that can be understood here."""
    found: dict[str, Cut] = {}
    if not isinstance(entry, list):
        return None
    by_number = numbers(gpus)
    for item in entry:
        chosen = _chosen(item, by_number, table) if isinstance(item, dict) else None
        counts = item.get("mig-devices") or {} if chosen is not None else None
        if chosen is None or not _are_counts(counts):
            return None
        found |= {gpu.name: Cut.of(counts, enabled=bool(item.get("mig-enabled"))) for gpu in chosen}
    return tuple(found.get(gpu.name) for gpu in gpus)


def _are_counts(counts: Any) -> TypeGuard[Mapping[str, int]]:
    """Whether these are profiles with as many of each as any GPU could have: people write such files by hand."""
    if not isinstance(counts, dict):
        return False
    return all(isinstance(n, str) and type(count) is int and 0 <= count <= MOST for n, count in counts.items())


def _chosen(item: Mapping[str, Any], by_number: Mapping[int, MigGpu], table: Table) -> Sequence[MigGpu] | None:
    """The GPUs that an item is about; None where that cannot be told."""
    devices = item.get("devices")
    if devices == "all":
        devices = list(by_number)
    if not isinstance(devices, list) or not all(type(d) is int for d in devices):
        return None
    ids = item.get("device-filter") or []
    named = [ids] if isinstance(ids, str) else ids
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        return None
    there = [by_number[number] for number in devices if number in by_number]
    passes = {gpu: _passes(gpu, {each.upper() for each in named}, table) for gpu in there}
    return None if None in passes.values() else [gpu for gpu in there if passes[gpu]]


def _passes(gpu: MigGpu, ids: Collection[str], table: Table) -> bool | None:
    """Whether a filter by PCI IDs lets the GPU through. None: it lets only some of its model through, or the model's are not known."""
    if not ids:
        return True
    model = table.model(gpu.product)
    of_model = model.pci_ids if model is not None else frozenset()
    passing = of_model.intersection(ids)
    return None if not of_model or (passing and passing != of_model) else bool(passing)
