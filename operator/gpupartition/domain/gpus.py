"""The GPUs of a node: which they are, what the partitions of each share, and into what it can be cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpupartition.domain.amd_modes import AmdModel
    from gpupartition.domain.mig import GpuModel
    from gpupartition.domain.pool import Amounts

MAX_GPUS: Final = 64  # the API counts GPUs from 0 to 63
MIB: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A profile of a GPU: what a device of it offers, and what it takes from the GPU's counters at each of its numbered placements.

    `label` is what its devices' names have for the profile ("": its name as far as a device's name can have that); `attributes` are more than
    all devices have.
    """

    name: str
    capacity: Amounts
    placements: Mapping[int, Amounts]
    label: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `index` counts over all groups of the node; those of a `group` are equal but for it. `memory` is in bytes.

    `counters` are what its partitions share, and all that the `whole` GPU takes. `model` is what a table knows it as; None: the inventory says
    everything itself.
    """

    index: int = 0
    group: int = 0
    product: str
    memory: int
    counters: Amounts
    whole: Partition
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    model: GpuModel | AmdModel | None = None

    @property
    def divided(self) -> Amounts:
        """What equal parts divide among them: all counters that a person wrote; of a table's the memory, for engines cannot be halved."""
        return self.counters if self.model is None else {"memory": self.memory}
