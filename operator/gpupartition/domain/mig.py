"""Multi-Instance GPUs (MIG): the models of GPUs that can be cut, their profiles, and the names by which drivers and people call both.

A partition occupies memory slices side by side, from one of a few starts, and takes a share of what the GPU has only so many of: compute slices
and engines. Where the numbers of a model come from is told in its table, not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.products import comparable

COMPUTE: Final = "compute slices"  # the g of a profile's name; the driver publishes no counter for them
PROFILE_NAME: Final = r"^(?P<slices>[1-9]\d?)g\.(?P<gb>[1-9]\d{0,3})gb(?P<extras>([+-][a-z]+(\.[a-z]+)*)*)$"
PCI_ID: Final = r"^0[xX][0-9a-fA-F]{8}$"
_NAME: Final = re.compile(PROFILE_NAME)
_NEAR: Final = 3  # as many products as a person compares at a glance


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of partition, as `nvidia-smi mig -lgip` and `-lgipp` print it.

    `slices` are compute slices; it occupies `size` memory slices from one of `starts`. At most `most` are there at once. `engines` are (name,
    number) under the names of the driver's counters; `memory` is in MiB and changes a little with the driver (None: not known).
    """

    name: str
    gi_profile_id: int
    slices: int
    size: int
    starts: tuple[int, ...]
    most: int
    memory: int | None = None
    engines: tuple[tuple[str, int], ...] = ()

    @property
    def takes(self) -> Mapping[str, int]:
        """What it takes of the GPU wherever it lies."""
        return {COMPUTE: self.slices, **dict(self.engines)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """GPUs that are cut alike: the products that they are sold as, and the profiles, smallest first.

    `balanced` is what mig-parted's preset all-balanced means for it; empty where mig-parted has none. `pci_ids` are in capitals, device and
    vendor in one; none where they are not known.
    """

    name: str
    products: tuple[str, ...]
    architecture: str
    memory_slices: int
    profiles: tuple[Profile, ...]
    balanced: tuple[tuple[str, int], ...] = ()
    pci_ids: frozenset[str] = frozenset()

    @property
    def has(self) -> Mapping[str, int]:
        """What all its partitions share: of each the most that a profile takes, as the driver counts. What no profile names limits nothing."""
        return _has(self)

    def profile(self, name: str) -> Profile | None:
        """The profile of this name, or of the name that another driver gives it."""
        exact = (p for p in self.profiles if p.name == name)
        return next(exact, None) or next((p for p in self.profiles if same_shape(p.name, name)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named layout of mig-parted on one GPU: whether MIG mode is on, and how many partitions of which profile there are."""

    mig_enabled: bool
    counts: Mapping[str, int]


@lru_cache(maxsize=256)
def _has(model: GpuModel) -> Mapping[str, int]:
    names = {name: None for profile in model.profiles for name in profile.takes}
    return MappingProxyType({name: max(p.takes.get(name, 0) for p in model.profiles) for name in names})


# ------------------------------------------------------------------------------------------------------------------------ profiles


def same_shape(one: str, other: str) -> bool:
    """Whether two names can mean the same profile: the size in the name is rounded from the memory that the driver happens to report.

    7g.79gb is 7g.80gb, 1g.23gb is 1g.24gb: 4 % apart. The next profile with as many compute slices has twice the memory, and the same GPU with
    more memory at least a tenth more.
    """
    a, b = _NAME.match(one), _NAME.match(other)
    if a is None or b is None:
        return one == other
    sizes = int(a["gb"]), int(b["gb"])
    return _kind(a) == _kind(b) and max(sizes) <= 1.05 * min(sizes)


def stand_in(model: GpuModel, name: str) -> Profile | None:
    """The model's own profile that is most like one of another GPU: as many compute slices and the same extras; None without one."""
    if known := model.profile(name):
        return known
    alike = (p for p in model.profiles if _kind(_NAME.match(p.name)) == _kind(_NAME.match(name)) is not None)
    return next(alike, None)


def _kind(name: re.Match[str] | None) -> tuple[str, str] | None:
    return (name["slices"], name["extras"]) if name else None


def unknown_profile(model: GpuModel, name: str, at: str) -> Problem:
    """The refusal of a profile that the model does not have."""
    return Problem(
        reason="UnknownProfile",
        at=at,
        why=f"{model.name} has no profile {name}",
        fix=f"use one of {', '.join(p.name for p in model.profiles)}",
    )


def preset(model: GpuModel, name: str, at: str) -> Preset:
    """What a preset of mig-parted's default file means on this GPU. Raises Refused (UnknownProfile) where it means nothing there.

    all-<profile> is as many as there can be; it writes + as a dot: all-1g.5gb.me.
    """
    word = name.removeprefix("all-")
    if name in ("all-disabled", "all-enabled"):
        return Preset(mig_enabled=word == "enabled", counts={})
    if name == "all-balanced" and model.balanced:
        return Preset(mig_enabled=True, counts=dict(model.balanced))
    if word in (name, "balanced"):
        raise Refused(
            Problem(
                reason="UnknownProfile",
                at=at,
                why=f"mig-parted has no preset {name} for {model.name}",
                fix=f"use all-disabled, all-enabled, {'all-balanced, ' if model.balanced else ''}or all-<profile> "
                f"with one of {', '.join(p.name for p in model.profiles)}",
            )
        )
    word = word.replace("gb.", "gb+", 1)
    profile = model.profile(word)
    if profile is None:
        raise Refused(unknown_profile(model, word, at))
    return Preset(mig_enabled=True, counts={profile.name: profile.most})


# ------------------------------------------------------------------------------------------------------------------------ products


def find(product: str, models: Sequence[GpuModel]) -> GpuModel | None:
    """The first model that is sold as this product, spelled as the driver or as a node label spells it, else the one that is called so."""
    wanted = comparable(product)
    sold = (model for model in models if wanted in map(comparable, model.products))
    return next(sold, None) or next((model for model in models if comparable(model.name) == wanted), None)


def model_of(product: str, models: Sequence[GpuModel], at: str) -> GpuModel:
    """The same. Raises Refused (UnknownProduct) where there is none, with those that are spelled like it."""
    if (found := find(product, models)) is not None:
        return found
    spelled = {comparable(p): p for model in reversed(models) for p in model.products}
    near = ", ".join(spelled[key] for key in get_close_matches(comparable(product), sorted(spelled), n=_NEAR))
    raise Refused(
        Problem(
            reason="UnknownProduct",
            at=at,
            why=f"it is not known into what the product {product!r} can be cut",
            fix=(f"if it is one of {near}, correct its label; else " if near else "") + "add its profiles, "
            "as `nvidia-smi mig -lgip` and `-lgipp` print them, to the table of MIG profiles",
        )
    )
