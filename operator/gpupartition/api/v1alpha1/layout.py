"""The layouts of a policy: which GPUs, and how they are cut."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from gpupartition.api import rules
from gpupartition.api.rules import checks, keyed, member
from gpupartition.api.v1alpha1.shared import CapacityName, Model, Name, Product, ProfileName, Quantity


class Match(Model, json_schema_extra=checks(*rules.MATCH)):
    """Which GPUs of a node a layout is for: all, or those that satisfy both lists (an empty list restricts nothing)."""

    all: bool = False
    """Every GPU that no earlier layout matches; on the last layout only."""
    products: Annotated[list[Product], Field(max_length=32, json_schema_extra=checks(rules.UNIQUE))] = []
    """GPUs of one of these products."""
    indexes: Annotated[
        list[Annotated[int, Field(ge=0, le=63)]], Field(max_length=64, json_schema_extra=checks(rules.UNIQUE))
    ] = []
    """GPUs with one of these numbers on their node, counted from 0."""


class Equal(Model):
    """The GPU in equal parts and, guarded by a shared counter, also as a whole."""

    parts: Annotated[int, Field(ge=2, le=63)]
    """How many parts; for the GPU in one piece write type: Whole."""
    offer_whole: bool = True
    """Whether the whole GPU is offered too, as long as none of its parts is in use. The default is true."""


class Choices(Model):
    """Every placement of these profiles is offered; counters let the scheduler choose."""

    profiles: Annotated[list[ProfileName], Field(min_length=1, max_length=32, json_schema_extra=checks(rules.UNIQUE))]
    """Names of profiles, as the driver's inventory has them for the GPU. Where it spells out none: MIG profiles of the product, such as
    1g.10gb, or modes of AMD's, such as CPX/NPS1, of which a GPU is in one at a time; `gpupartition profiles` lists them."""
    offer_whole: bool = True
    """Whether the whole GPU is offered too, as long as no part of it is in use. The default is true."""


class ProfileCount(Model):
    """So many partitions of one profile."""

    name: ProfileName
    """The profile, such as 1g.10gb, as the GPU's driver or the inventory writes it; or, as the only entry, a preset of mig-parted, such as
    all-balanced."""
    count: Annotated[int, Field(ge=1, le=16)] = 1
    """How many of them on each GPU; the default is 1."""


class GpuMode(Model):
    """Modes of AMD's GPUs. Which pairs a product can have is in the operator's table; a pair that it does not know is refused."""

    compute: Literal["SPX", "DPX", "QPX", "CPX"]
    """The compute mode, which is that of a GPU: in one piece (SPX), in two (DPX), in four (QPX), or a partition for each of its dies (CPX)."""
    memory: Literal["NPS1", "NPS2", "NPS4"]
    """The memory mode: into how many domains the memory of a GPU is cut. It is that of all GPUs of a node, so all layouts of a policy have the
    same, and to change it the kernel's driver is loaded anew: then the whole node is drained."""


class SharingCapacity(Model, json_schema_extra=checks(*rules.SHARING_CAPACITY)):
    """How one capacity of a shared device may be asked for (ResourceSlice `requestPolicy`)."""

    default: Quantity | None = None
    """What a claim gets that does not ask; always needed."""
    min: Quantity | None = None
    """The least that a claim gets."""
    max: Quantity | None = None
    """The most that a claim can ask for."""
    step: Quantity | None = None
    """A claim gets min and a multiple of step, rounded up."""


class SharingMode(StrEnum):
    """Whether a device serves one claim or several."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"


class Sharing(Model, json_schema_extra=checks(rules.SHARING)):
    """Whether a partition may serve several claims (consumable capacity)."""

    mode: SharingMode = SharingMode.EXCLUSIVE
    """Exclusive (the default): one claim per partition. Shared: several, as far as its capacity lasts."""
    capacity: Annotated[
        dict[CapacityName, SharingCapacity], Field(max_length=16, json_schema_extra=checks(rules.CAPACITY_NAMES))
    ] = {}
    """For mode Shared: how each capacity may be asked for, such as memory: {default: 1Gi, min: 1Gi, step: 1Gi}."""


class LayoutType(StrEnum):
    """How a GPU is cut."""

    WHOLE = "Whole"
    EQUAL = "Equal"
    CHOICES = "Choices"
    PROFILES = "Profiles"
    MODE = "Mode"
    KEEP = "Keep"


class Layout(
    Model,
    json_schema_extra=checks(
        member("Equal", "equal", "{parts: 2}"),
        member("Choices", "choices", "{profiles: [...]}"),
        member("Profiles", "profiles", "[{name: 1g.10gb, count: 7}]"),
        member("Mode", "mode", "{compute: CPX, memory: NPS4}"),
    ),
):
    """One way to cut GPUs, and which GPUs it is for."""

    name: Name
    """What the layout is called in status and messages; unique in the policy."""
    match: Match
    """Which GPUs it is for. The first layout that matches a GPU wins."""
    type: LayoutType
    """How the GPUs are cut. Whole: not at all. Equal: in equal parts. Choices: as the scheduler likes, among profiles. Profiles: into exactly
    these partitions. Mode: as AMD's modes say. Keep: they are left as they are; not for Publish, whose slices are nobody else's. All but
    Whole and Keep have a member of that name."""
    equal: Equal | None = None
    """For type Equal: in how many parts."""
    choices: Choices | None = None
    """For type Choices: among which profiles."""
    profiles: Annotated[
        list[ProfileCount] | None,
        Field(min_length=1, max_length=16, json_schema_extra=keyed("name") | checks(rules.PRESET_ALONE)),
    ] = None
    """For type Profiles: which partitions, and how many."""
    mode: GpuMode | None = None
    """For type Mode: which."""
    sharing: Sharing = Sharing()
    """Whether a partition may serve several claims; without it, each serves one."""
