"""The table of AMD's GPUs and their modes: amd.json beside this module, and entries of the same form that an administrator adds.

`partitions` says how many partitions a GPU has in a compute mode. Of the pairs of modes that Linux's driver does not refuse, those that AMD's
own matrix lists are validated; a pair that is not there is not known to work, whatever other models do.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from gpupartition.domain.amd_modes import AmdModel, KnownMode, Mode, Trust
from gpupartition.tables.rows import Forms, Row, Text, read

_WORD: Final = r"^[A-Z0-9]+$"
_COMPUTE: Final = r"^[SDTQC]PX$"
_MODE: Final = r"^[SDTQC]PX/NPS[1248]$"
_FORMS: Final[Forms] = {
    _WORD: ("a word of a product's name", "write one of capitals and digits, such as MI300X"),
    _COMPUTE: ("a compute mode", "write SPX, DPX, TPX, QPX or CPX"),
    _MODE: ("a mode", "write the compute mode and the memory mode, such as CPX/NPS1"),
}

Compute = Annotated[str, Field(pattern=_COMPUTE)]
ModeName = Annotated[str, Field(pattern=_MODE)]


class GpuRow(Row):
    """GPUs that have the same modes."""

    name: Annotated[str, Field(pattern=_WORD, max_length=16)]
    """The word in the product's name."""
    partitions: Annotated[dict[Compute, Annotated[int, Field(ge=1, le=16)]], Field(min_length=1)]
    """How many partitions a GPU has in which compute mode."""
    validated: Annotated[list[ModeName], Field(min_length=1)]
    """Modes that AMD's matrix lists."""
    allowed: Annotated[list[ModeName], Field()] = []
    """Modes that the driver does not refuse, or that AMD's own programs offer."""
    sources: Annotated[list[Text], Field(max_length=16)] = []
    """Where the modes are from: keys of the table's sources."""
    note: Annotated[str, Field(max_length=512)] = ""
    """What is not known, or not sure."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = Counter([*self.validated, *self.allowed])
        for name, times in names.items():
            if times > 1:
                raise ValueError(f"{self.name} has {name} {times} times; name each mode once")
            if name.partition("/")[0] not in self.partitions:
                raise ValueError(
                    f"{self.name} has {name}, and partitions do not say into how many that is; add it there"
                )
        return self

    def model(self) -> AmdModel:
        """As the domain knows it."""
        trusted = [(n, Trust.VALIDATED) for n in self.validated] + [(n, Trust.ALLOWED) for n in self.allowed]
        modes = [(Mode(*name.split("/")), trust) for name, trust in trusted]
        return AmdModel(
            name=self.name,
            modes=tuple(KnownMode(mode=m, partitions=self.partitions[m.compute], trust=t) for m, t in modes),
        )


class Table(Row):
    """The document."""

    sources: dict[str, Text] = {}
    """What was read, by a short key."""
    gpus: Annotated[list[GpuRow], Field(max_length=64)]
    """One entry for all GPUs that have the same modes."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, times in Counter(row.name for row in self.gpus).items():
            if times > 1:
                raise ValueError(f"{name} is there {times} times; name each model once")
        unknown = sorted({s for row in self.gpus for s in row.sources} - self.sources.keys())
        if unknown:
            raise ValueError(f"there is no source {unknown[0]}; add it to sources")
        return self


@cache
def builtin() -> tuple[AmdModel, ...]:
    """The GPUs that this release knows."""
    text = files(__package__).joinpath("amd.json").read_text(encoding="utf-8")
    return parse(json.loads(text), at="amd.json")


def parse(document: Any, at: str) -> tuple[AmdModel, ...]:
    """The GPUs of a table, which is given as read from JSON or YAML. `at` says where it stands. Raises Refused with all that is wrong."""
    return tuple(row.model() for row in read(Table, document, at, _FORMS).gpus)
