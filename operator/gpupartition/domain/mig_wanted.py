"""What a layout of type Profiles wants of a MIG GPU: how many partitions of which profile, or a preset's name for that; or why it cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpupartition.api.v1alpha1 import ProfileCount
from gpupartition.domain.mig import GpuModel, Preset, preset
from gpupartition.domain.mig_layouts import nearest, told, why_not
from gpupartition.domain.problem import Problem, Refused

PRESET: Final = "all-"


def wanted(model: GpuModel, profiles: Sequence[ProfileCount], whom: str, at: str) -> Preset:
    """What these profiles mean on a GPU of this model. `whom` is the GPU for people, `at` the path of the layout.

    Raises Refused: UnknownProfile, NothingPublished, or LayoutDoesNotFit with what fits instead.
    """
    first = profiles[0].name
    if first.startswith(PRESET):
        return _published(preset(model, first, f"{at}.profiles[0] on {whom}"), first, f"{at}.profiles[0]")
    counts = {p.name: p.count for p in profiles}
    if why := why_not(model, counts):
        instead = " or ".join(told(fit) for fit in nearest(model, counts))
        raise Refused(
            Problem(
                reason="LayoutDoesNotFit",
                at=f"{at}.profiles",
                why=f"on {whom} {why}",
                fix=f"what fits instead: {instead}",
            )
        )
    return Preset(mig_enabled=True, counts=counts)


def _published(meant: Preset, name: str, at: str) -> Preset:
    if meant.mig_enabled and not meant.counts:
        raise Refused(
            Problem(
                reason="NothingPublished",
                at=at,
                why=f"{name} switches MIG on without a partition, and then nobody publishes the GPU",
                fix="name the partitions, or write all-disabled",
            )
        )
    return meant
