"""The GPUs of a node under NVIDIA's DRA driver: read from what it publishes, what it was known to publish, and labels of the node.

A GPU whose MIG mode is on without a partition is published by nobody, and a driver that starts publishes nothing for a while: so what a node's
record names stays known, and labels tell the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from gpupartition.backends.installed import no_table, tables_in, with_tables
from gpupartition.domain.backend import Cluster
from gpupartition.domain.gpus import MAX_GPUS
from gpupartition.domain.mig import GpuModel, find
from gpupartition.domain.mig_layouts import place
from gpupartition.domain.objects import Object
from gpupartition.domain.pool import Device, Pool
from gpupartition.domain.problem import Problem
from gpupartition.domain.products import Product
from gpupartition.tables import mig

PRODUCT: Final = "nvidia.com/gpu.product"  # written by GPU feature discovery
COUNT: Final = "nvidia.com/gpu.count"
WHOLE: Final = "whole"

_NAME: Final = re.compile(r"^gpu-(?P<minor>\d+)(?P<mig>-mig-.+)?$")
_BUS: Final = "resource.kubernetes.io/pciBusID"


@dataclass(frozen=True, slots=True, order=True)
class MigGpu:
    """One GPU: the number in its devices' names, its product, and where it is plugged in ("" where that is not known)."""

    minor: int
    product: str
    bus: str = ""

    @property
    def name(self) -> str:
        """What its devices' names begin with."""
        return f"gpu-{self.minor}"


Gpus = tuple[MigGpu, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """How one GPU is cut: whether its MIG mode is on, and how many partitions of which profile there are, sorted by name."""

    enabled: bool = False
    counts: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, counts: Mapping[str, int], *, enabled: bool = True) -> Cut:
        """The same from counts by profile."""
        return cls(enabled=enabled, counts=tuple(sorted((name, n) for name, n in counts.items() if n)))


Cuts = tuple[Cut | None, ...]
"""One for each GPU; None: it is left as it is."""


@dataclass(frozen=True, eq=False)
class Table:
    """What is known of products, remembered by name: nodes by the thousand have few."""

    models: tuple[GpuModel, ...]
    problems: tuple[Problem, ...] = ()
    _models: dict[str, GpuModel | None] = field(default_factory=dict)
    _products: dict[str, Product] = field(default_factory=dict)
    _kinds: dict[tuple[str, str], str] = field(default_factory=dict)

    def model(self, product: str) -> GpuModel | None:
        """The model that is sold under this name, or called so; None if none is known."""
        if product not in self._models:
            self._models[product] = find(product, self.models)
        return self._models[product]

    def product(self, name: str) -> Product:
        """The product of this name, with its model."""
        if name not in self._products:
            self._products[name] = Product.of(name, self.model(name))
        return self._products[name]

    def kind(self, product: str, profile: str) -> str:
        """The profile's name in the table: drivers spell a few differently. One that the table does not have is what it says."""
        key = product, profile
        if key not in self._kinds:
            model = self.model(product)
            known = model.profile(profile) if model is not None else None
            self._kinds[key] = known.name if known is not None else profile
        return self._kinds[key]


def table_of(cluster: Cluster, namespace: str, name: str) -> Table:
    """The built-in table, and what a ConfigMap adds to it ("": none)."""
    if not name:
        return _table("", "")
    where = f"ConfigMap {namespace}/{name}"
    found = cluster.config_map(namespace, name)
    if found is None:
        return _no_table(where)
    return _table(tables_in(found), where)


@lru_cache(maxsize=16)
def _no_table(where: str) -> Table:
    return Table(mig.builtin(), (no_table(where, "spec.nvidiaMig.tables"),))


@lru_cache(maxsize=16)
def _table(text: str, at: str) -> Table:
    return Table(*with_tables(text, at, mig.parse, mig.builtin()))


# ------------------------------------------------------------------------------------------------------------- what is published


def published(pool: Pool, table: Table) -> Pool:
    """The pool as this driver is compared: devices of GPUs, by kind. Sizes are left out, because they change with the driver's release."""
    return Pool(
        devices=tuple(_device(d, table) for d in pool.devices), generation=pool.generation, problem=pool.problem
    )


def _device(device: Device, table: Table) -> Device:
    product, profile = _text(device, "productName"), _text(device, "profile")
    kind = table.kind(product, profile) if profile else WHOLE
    found = _NAME.match(device.name)
    gpu = f"gpu-{found['minor']}" if found is not None else device.name
    told = {"productName": product, "profile": profile, _BUS: _text(device, _BUS)}
    return Device(
        name=device.name,
        shared=device.shared,
        attributes={name: {"string": text} for name, text in told.items() if text},
        gpu=gpu,
        kind=kind if found is not None else "other",
    )


def _text(device: Device, name: str) -> str:
    return device.text(name, f"gpu.nvidia.com/{name}")


def gpus_on(node: Object, *pools: Pool) -> Gpus:
    """The GPUs of a node: those of these pools, the first that names one being right about it, and as many more as its labels say."""
    found: dict[int, MigGpu] = {}
    for pool in pools:
        for gpu in _gpus_in(pool):
            known = found.setdefault(gpu.minor, gpu)
            if not known.bus and gpu.bus:
                found[gpu.minor] = MigGpu(known.minor, known.product, gpu.bus)
    labels = node["metadata"].get("labels", {})
    product, count = str(labels.get(PRODUCT, "")), str(labels.get(COUNT, ""))
    # While partitions are advertised in place of GPUs, both labels speak of partitions.
    if product and "-MIG-" not in product and count.isascii() and count.isdigit() and int(count) <= MAX_GPUS:
        for minor in range(int(count)):
            if len(found) < int(count):
                found.setdefault(minor, MigGpu(minor, product))
    return tuple(sorted(found.values()))


def _gpus_in(pool: Pool) -> Iterator[MigGpu]:
    seen: set[str] = set()
    for device in pool.devices:
        match = _NAME.match(device.name)
        if match is not None and match["minor"] not in seen:
            seen.add(match["minor"])
            yield MigGpu(int(match["minor"]), _text(device, "productName"), _text(device, _BUS))
    for name, attributes in pool.kept.items():
        match = _NAME.match(name)
        if match is not None and match["minor"] not in seen:
            kept = Device(name=name, attributes=attributes)
            yield MigGpu(int(match["minor"]), _text(kept, "productName"), _text(kept, _BUS))


def numbers(gpus: Sequence[MigGpu]) -> dict[int, MigGpu]:
    """GPUs by the number that NVML gives them: it counts in the order in which they are plugged in."""
    known = all(gpu.bus for gpu in gpus)
    return dict(enumerate(sorted(gpus, key=lambda gpu: gpu.bus if known else gpu.minor))) if gpus else {}


# ------------------------------------------------------------------------------------------------------------- what is expected


@lru_cache(maxsize=1024)
def expected(table: Table, gpus: Gpus, cuts: Cuts) -> Pool:
    """What will be published once these GPUs are cut so; places are a guess, and do not count."""
    devices: list[Device] = []
    kept: dict[str, Any] = {}
    for gpu, cut in zip(gpus, cuts, strict=True):
        if cut is None:
            kept[gpu.name] = _attributes(gpu)
        elif not cut.enabled:
            devices.append(_expected(gpu, gpu.name, "", WHOLE))
        else:
            devices += _partitions(table, gpu, cut)
    return Pool(devices=tuple(devices), kept=kept)


def _partitions(table: Table, gpu: MigGpu, cut: Cut) -> Iterator[Device]:
    model = table.model(gpu.product)
    placed = place(model, dict(cut.counts)) if model is not None else None
    if model is None or placed is None:
        number = 0
        for profile, count in cut.counts:
            for _ in range(count):
                yield _expected(
                    gpu, f"{gpu.name}-mig-{_plain(profile)}-x-{number}", profile, table.kind(gpu.product, profile)
                )
                number += 1
        return
    for placement in placed:
        profile_id = next(p.gi_profile_id for p in model.profiles if p.name == placement.profile)
        name = f"{gpu.name}-mig-{_plain(placement.profile)}-{profile_id}-{placement.start}"
        yield _expected(gpu, name, placement.profile, placement.profile)


def _plain(profile: str) -> str:
    return profile.replace(".", "").replace("+", "-")


def _expected(gpu: MigGpu, name: str, profile: str, kind: str) -> Device:
    return Device(name=name, attributes=_attributes(gpu, profile), gpu=gpu.name, kind=kind)


def _attributes(gpu: MigGpu, profile: str = "") -> dict[str, Any]:
    told = {"productName": gpu.product, "profile": profile, _BUS: gpu.bus}
    return {key: {"string": text} for key, text in told.items() if text}


def cuts_now(gpus: Gpus, pool: Pool) -> Cuts:
    """How these GPUs are cut by what is published, in the driver's own spelling; a GPU that publishes nothing tells nothing."""
    by_gpu: dict[str, list[Device]] = {}
    for device in pool.devices:
        by_gpu.setdefault(device.gpu, []).append(device)
    return tuple(_cut_now(by_gpu.get(gpu.name, ())) for gpu in gpus)


def _cut_now(devices: Sequence[Device]) -> Cut | None:
    if not devices:
        return None
    profiles = [_text(d, "profile") for d in devices if d.kind != WHOLE]
    if not profiles:
        return Cut()
    return Cut.of({profile: profiles.count(profile) for profile in profiles})


def disturbed(now: Pool, then: Pool) -> frozenset[str]:
    """Present devices that a change takes away: those of the GPUs that are cut otherwise, or all, where a GPU's MIG mode changes with it.

    mig-parted clears and resets all GPUs that it is told of as soon as the mode of one of them changes.
    """
    before, after, changed = now.kinds, then.kinds, now.recut(then)
    if any(_mode(before.get(g)) is not _mode(after.get(g)) for g in changed):
        return frozenset(d.name for d in now.devices)
    return frozenset(d.name for d in now.devices if d.gpu in changed)


def _mode(kinds: Sequence[str] | None) -> bool | None:
    """Whether the MIG mode of a GPU is on; None where nothing of it is published."""
    return None if kinds is None else WHOLE not in kinds
