"""AMD's Instinct GPUs as the driver amdgpu shows them to programs on the node: their modes, what may be done to them, and what it refuses.

A GPU has a compute mode of its own: into how many partitions it is cut. The memory mode belongs to the node: it is changed for all GPUs at
once, by loading the driver anew, after which each GPU is in the compute mode that goes with its memory. Partitions are known by the numbers
that the kernel gives to their device files: the first keeps that of its GPU, the others take the lowest that are free. So the same name can
mean a GPU today and a part of it tomorrow.

Nothing is known in here of Kubernetes, files or time. An operation takes the GPUs of a node and gives those that come of it, or raises what
the library amd-smi would say.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from testbed.drivers.gpus import SPEC, BadGpusError

VENDOR: Final = "AMD"
"""The products of GPUs that are meant here begin so."""
ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    # compute mode: memory modes that the kernel allows with it
    "SPX": ("NPS1",),
    "DPX": ("NPS1", "NPS2"),
    "TPX": ("NPS1", "NPS4"),
    "QPX": ("NPS1", "NPS4"),
    "CPX": ("NPS1", "NPS4"),
}
BY_DIES: Final[Mapping[int, tuple[str, ...]]] = {8: ("SPX", "DPX", "QPX", "CPX"), 6: ("SPX", "TPX", "CPX"), 0: ()}
"""Compute modes by number of compute dies (XCC)."""
PARTS: Final[Mapping[str, int]] = {"": 1, "SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
AFTER_LOADING: Final[Mapping[str, str]] = {"": "", "NPS1": "SPX", "NPS2": "DPX", "NPS4": "CPX"}
"""The compute mode in which a GPU is when the driver was loaded or the machine booted, by memory mode."""
SIMDS: Final = 4  # in each compute unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a GPU has: compute dies, compute units, memory in MiB. `memory_modes`: those of its firmware; none if it cannot be cut."""

    pci_id: str
    dies: int
    units: int
    memory: int
    memory_modes: tuple[str, ...]

    def parts(self, compute: str) -> int:
        """Into how many partitions a compute mode cuts it."""
        return self.dies if compute == "CPX" else PARTS[compute]


MODELS: Final[Mapping[str, Model]] = {
    # by the word of the product name that says it
    "MI210": Model(pci_id="0x740f", dies=0, units=104, memory=65520, memory_modes=()),
    "MI300A": Model(pci_id="0x74a0", dies=6, units=228, memory=131072, memory_modes=("NPS1",)),
    "MI300X": Model(pci_id="0x74a1", dies=8, units=304, memory=196592, memory_modes=("NPS1", "NPS2", "NPS4")),
    "MI325X": Model(pci_id="0x74a5", dies=8, units=304, memory=262128, memory_modes=("NPS1",)),
    "MI350X": Model(pci_id="0x75a0", dies=8, units=256, memory=294896, memory_modes=("NPS1", "NPS2")),
    "MI355X": Model(pci_id="0x75a3", dies=8, units=256, memory=294896, memory_modes=("NPS1", "NPS2")),
}


class AmdSmiError(Exception):
    """An answer of the library amd-smi: its number, and its words."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(STATUS[status])


NOT_SUPPORTED: Final = 2
BUSY: Final = 30
UNAVAILABLE: Final = 55
UNKNOWN: Final = 0xFFFFFFFF
STATUS: Final[Mapping[int, str]] = {
    NOT_SUPPORTED: "Command not supported.",
    BUSY: "Device busy.",
    UNAVAILABLE: "Setting is not available.",
    UNKNOWN: "An unknown error occurred.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpu:
    """One GPU of a product; the modes of one that cannot be cut are empty. `minors`: the numbers of its device files, one a partition."""

    product: str
    compute: str
    memory: str
    minors: tuple[int, ...] = ()

    @property
    def model(self) -> Model:
        """What it has."""
        return _model(self.product)

    @property
    def parts(self) -> int:
        """How many partitions it is."""
        return self.model.parts(self.compute)

    @property
    def compute_modes(self) -> tuple[str, ...]:
        """Those of its kind, whatever memory mode they need."""
        return BY_DIES[self.model.dies]


Gpus = tuple[AmdGpu, ...]
Users = Mapping[int, Collection[str]]
"""Who has which GPU open, by its index."""


# ------------------------------------------------------------------------------------------------------------------------ operations


def set_compute(gpus: Gpus, index: int, mode: str, users: Users) -> Gpus:
    """Cut one GPU anew; the others stay as they are. Raises AmdSmiError."""
    gpu = gpus[index]
    if not gpu.compute_modes:
        raise AmdSmiError(NOT_SUPPORTED)
    if mode not in gpu.compute_modes or gpu.memory not in ALLOWED[mode]:
        raise AmdSmiError(UNAVAILABLE)
    if users.get(index):
        raise AmdSmiError(BUSY)
    taken = {minor for other in gpus if other is not gpu for minor in other.minors}
    return _with(gpus, index, _numbered(replace(gpu, compute=mode), gpu.minors[:1], taken))


def set_memory(gpus: Gpus, mode: str, users: Iterable[Collection[str]]) -> Gpus:
    """Change the memory mode of all GPUs, which loads the driver anew: nobody may use any. Raises AmdSmiError."""
    if any(mode not in gpu.model.memory_modes for gpu in gpus):
        raise AmdSmiError(NOT_SUPPORTED)
    if any(users):
        raise AmdSmiError(BUSY)
    return load(tuple(replace(gpu, memory=mode) for gpu in gpus))


def load(gpus: Sequence[AmdGpu]) -> Gpus:
    """What a loaded driver shows, after a reboot too: the memory modes are kept, the compute modes follow, the numbers are given anew."""
    loaded: Gpus = ()
    firsts = range(len(gpus))  # whole GPUs come before all partitions
    for index, gpu in enumerate(gpus):
        taken = {*firsts, *(minor for each in loaded for minor in each.minors)}
        loaded += (_numbered(replace(gpu, compute=AFTER_LOADING[gpu.memory]), (index,), taken - {index}),)
    return loaded


def _numbered(gpu: AmdGpu, first: tuple[int, ...], taken: Collection[int]) -> AmdGpu:
    """Give its partitions their numbers: the first one, if it has one already, and the lowest that nobody has."""
    used = {*taken, *first}
    free = (number for number in range(len(used) + gpu.parts) if number not in used)
    return replace(gpu, minors=(*first, *(next(free) for _ in range(gpu.parts - len(first)))))


def _with(gpus: Gpus, index: int, gpu: AmdGpu) -> Gpus:
    return (*gpus[:index], gpu, *gpus[index + 1 :])


# -------------------------------------------------------------------------------------------------------------------- as it is told


def is_meant(spec: str) -> bool:
    """Whether the GPUs that a node is said to have are AMD's."""
    found = SPEC.match(spec.strip())
    return bool(found and found["product"].startswith(VENDOR))


def read_spec(text: str) -> Gpus:
    """The GPUs of a fresh node: "8x AMD_Instinct_MI300X_OAM", several kinds separated by commas. Raises BadGpusError."""
    gpus: list[AmdGpu] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = SPEC.fullmatch(part)
        if not found:
            raise BadGpusError(f"{part!r} are no GPUs: write COUNTx PRODUCT, such as 8x AMD_Instinct_MI300X_OAM")
        product = found["product"].strip()
        memory = "NPS1" if _model(product).memory_modes else ""
        gpus += [AmdGpu(product=product, compute="", memory=memory)] * int(found["count"])
    return load(gpus)


def write_state(gpus: Iterable[AmdGpu], boot: str, spec: str) -> str:
    """Tell the state of all GPUs in one line."""
    told = [{"compute": gpu.compute, "memory": gpu.memory, "minors": gpu.minors} for gpu in gpus]
    return json.dumps({"spec": spec, "boot": boot, "gpus": told})


def read_state(text: str, boot: str, spec: str) -> Gpus:
    """The GPUs of a node of which a state was told: fresh ones when others were put in, loaded anew after a reboot. Raises BadGpusError."""
    fresh = read_spec(spec)
    try:
        state: Any = json.loads(text) if text else {}
        if state.get("spec") != spec:
            return fresh
        gpus = tuple(_read(gpu, told) for gpu, told in zip(fresh, state["gpus"], strict=True))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BadGpusError(f"{text!r} is no state of {spec!r}: {problem}") from problem
    return gpus if state["boot"] == boot else load(gpus)


def _read(gpu: AmdGpu, told: Mapping[str, Any]) -> AmdGpu:
    read = replace(gpu, compute=told["compute"], memory=told["memory"], minors=tuple(told["minors"]))
    if read.compute not in (read.compute_modes or ("",)) or len(read.minors) != read.parts:
        raise BadGpusError(f"{gpu.product} has no compute mode {read.compute!r} with the device files {read.minors}")
    return read


def _model(product: str) -> Model:
    for name, model in MODELS.items():
        if name in product:
            return model
    raise BadGpusError(f"{product!r} is not known: its name must have one of {', '.join(MODELS)} in it")
