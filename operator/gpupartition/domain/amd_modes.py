"""Modes of AMD's Instinct GPUs: the compute mode cuts a GPU into partitions, the memory mode its memory into domains.

The compute mode is that of a GPU; the memory mode is that of all GPUs of a node, and to change it the kernel's driver is loaded anew. Not every
pair of them is possible. Which are, and how far each is trusted, is told in a table, not here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn

from gpupartition.domain.problem import Problem, Refused

COMPUTE: Final = ("SPX", "DPX", "QPX", "CPX")
MEMORY: Final = ("NPS1", "NPS2", "NPS4")
_NAME: Final = re.compile(r"^(?P<compute>[a-z]px)_(?P<memory>nps\d)$", re.IGNORECASE)
_WORDS: Final = re.compile(r"[^A-Za-z0-9]+")


class Trust(StrEnum):
    """How far a mode is trusted on a model: AMD has validated it, or only its driver does not refuse it."""

    VALIDATED = "validated"
    ALLOWED = "driver-allowed"


@dataclass(frozen=True, slots=True, order=True)
class Mode:
    """A compute mode and a memory mode, as AMD writes them: CPX and NPS4."""

    compute: str
    memory: str

    @property
    def name(self) -> str:
        """As the driver publishes it: cpx_nps4."""
        return f"{self.compute}_{self.memory}".lower()

    @classmethod
    def read(cls, name: str) -> Mode | None:
        """The mode of this name; None for what is no name of one."""
        found = _NAME.match(name)
        return cls(found["compute"].upper(), found["memory"].upper()) if found is not None else None

    @property
    def told(self) -> str:
        """For people: CPX/NPS4."""
        return f"{self.compute}/{self.memory}"

    @property
    def settable(self) -> bool:
        """Whether Device Config Manager knows both names; TPX and NPS8 it does not."""
        return self.compute in COMPUTE and self.memory in MEMORY


WHOLE: Final = Mode("SPX", "NPS1")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMode:
    """A mode on a model: how many partitions a GPU has in it, and how far it is trusted."""

    mode: Mode
    partitions: int
    trust: Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdModel:
    """GPUs that have the same modes; the name is the word by which a product is recognized, such as MI300X."""

    name: str
    modes: tuple[KnownMode, ...]

    def known(self, mode: Mode) -> KnownMode | None:
        """What is known of the mode on this model; None: nothing."""
        return next((known for known in self.modes if known.mode == mode), None)


def model_of(product: str, models: Sequence[AmdModel]) -> AmdModel | None:
    """The model that this product is: AMD_Instinct_MI300X_OAM is a MI300X; None if none is known."""
    words = {word.upper() for word in _WORDS.split(product)}
    return next((model for model in models if model.name in words), None)


def known_mode(product: str, mode: Mode, models: Sequence[AmdModel], at: str) -> KnownMode:
    """What is known of a mode on a product. Raises Refused (UnknownProduct, UnknownMode) rather than letting hardware find out."""
    model = model_of(product, models)
    if model is None:
        _refuse(
            "UnknownProduct",
            at,
            f"it is not known which modes the product {product!r} has",
            f"use nodes with one of {', '.join(m.name for m in models)}, or another layout for this product, such as Keep; "
            "or add its modes to a table of the driver's (spec.amdDcm.tables)",
        )
    known = model.known(mode)
    if known is None:
        _refuse("UnknownMode", at, f"it is not known that {model.name} can be {mode.told}", _instead(model))
    return known


def _refuse(reason: str, at: str, why: str, fix: str) -> NoReturn:
    raise Refused(Problem(reason=reason, at=at, why=why, fix=fix))


def _instead(model: AmdModel) -> str:
    """The modes that are known, those that AMD has validated first."""
    usable = [known for known in model.modes if known.mode.settable]
    validated = [known.mode.told for known in usable if known.trust is Trust.VALIDATED]
    allowed = [known.mode.told for known in usable if known.trust is Trust.ALLOWED]
    more = f", or, not validated by AMD, one of {', '.join(allowed)}" if allowed else ""
    return f"use one of {', '.join(validated)}{more}"
