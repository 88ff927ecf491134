"""Laws of MIG layouts: the search finds what trying everything finds, on the GPUs of the table and on any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.filled import full, legal

from gpupartition.domain.mig import COMPUTE, GpuModel, Profile
from gpupartition.domain.mig_layouts import Placement, nearest, place, why_not
from gpupartition.tables.mig import builtin

EACH_MODEL = pytest.mark.parametrize("model", builtin(), ids=lambda model: model.name)
SEVEN_SLICES = pytest.mark.parametrize(
    "model", [m for m in builtin() if m.has[COMPUTE] == 7], ids=lambda model: model.name
)


def counted(layout: tuple[Placement, ...]) -> frozenset[tuple[str, int]]:
    return frozenset(Counter(p.profile for p in layout).items())


def changes(one: Mapping[str, int], other: Mapping[str, int]) -> int:
    steps = [one.get(name, 0) - other.get(name, 0) for name in {*one, *other}]
    return max(sum(n for n in steps if n > 0), -sum(n for n in steps if n < 0))


def base(model: GpuModel, *, double: bool = True) -> GpuModel:
    """Only the profiles without extras, and perhaps without those of one compute slice with twice the memory."""
    plain = [p for p in model.profiles if not set("+-") & set(p.name)]
    kept = [p for p in plain if double or (p.slices, p.size) != (1, 2)]
    return replace(model, profiles=tuple(kept))


# ----------------------------------------------------------------------------------------------------------- the GPUs of the table


@EACH_MODEL
def test_what_can_be_found_by_trying_everything_is_placed_and_nothing_else(model: GpuModel) -> None:
    """What fits does so without one of its partitions too: whatever is one partition more than what fits stands for all that does not."""
    fitting = {counted(layout) for layout in legal(model)}
    for counts in fitting:
        found = place(model, dict(counts))
        assert found in legal(model)
        assert counted(found) == counts
        for profile in model.profiles:
            more = Counter(dict(counts)) + Counter([profile.name])
            fits = frozenset(more.items()) in fitting
            assert (place(model, more) is not None) is fits
            assert (why_not(model, more) == "") is fits


@EACH_MODEL
def test_a_gpu_can_be_filled_in_the_known_number_of_ways(model: GpuModel) -> None:
    """Numbers to hold against the vendor's drawings: 19 is the one that is told of the A100."""
    with_double = full(base(model))
    ways, distinct = len(with_double), len({counted(layout) for layout in with_double})
    if model.memory_slices == 8:
        assert len(full(base(model, double=False))) == 19
        assert (ways, distinct) == (78, 38)
    else:
        assert (ways, distinct) == (5, 4)


@SEVEN_SLICES
def test_engines_forbid_nothing_that_memory_and_compute_slices_allow(model: GpuModel) -> None:
    """So that what is not known of the engines of such a GPU costs nothing. The others have media engines to share out."""
    free = replace(model, profiles=tuple(replace(p, engines=()) for p in model.profiles))
    assert len(legal(model)) == len(legal(free)) == 2319


@EACH_MODEL
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_fits_instead_fits_and_nothing_that_fits_is_nearer(model: GpuModel, data: st.DataObject) -> None:
    names = st.sampled_from([p.name for p in model.profiles])
    counts = data.draw(st.dictionaries(names, st.integers(0, 9), max_size=4))
    found = nearest(model, counts)
    distances = [changes(counts, one) for one in found]
    others = sorted(changes(counts, dict(one)) for one in {counted(layout) for layout in legal(model)} if one)
    assert distances == others[:3]
    assert all(place(model, one) is not None for one in found)


# ----------------------------------------------------------------------------------------------------------------------- any other GPU


@st.composite
def models(draw: st.DrawFn) -> GpuModel:
    """GPUs with up to 6 memory slices and profiles whose places follow no order, such as no vendor would build."""
    memory_slices = draw(st.integers(1, 6))
    profiles = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, memory_slices))
        starts = draw(st.sets(st.integers(0, memory_slices - size), min_size=1))
        engines = draw(st.dictionaries(st.sampled_from(["decoders", "ofa-engines"]), st.integers(1, 3)))
        slices = draw(st.integers(1, 3))
        profiles.append(
            Profile(
                name=f"{slices}g.{10 * 2**number}gb",
                gi_profile_id=number,
                slices=slices,
                size=size,
                starts=tuple(sorted(starts)),
                most=draw(st.integers(1, 4)),
                engines=tuple(engines.items()),
            )
        )
    return GpuModel(name="X", products=("X",), architecture="X", memory_slices=memory_slices, profiles=tuple(profiles))


@settings(max_examples=200, deadline=None)
@given(models())
def test_on_any_gpu_the_search_agrees_with_trying_everything(model: GpuModel) -> None:
    fitting = {counted(layout) for layout in legal(model)}
    names = [p.name for p in model.profiles]
    for vector in product(range(4), repeat=len(names)):
        counts = {name: n for name, n in zip(names, vector, strict=True) if n}
        found = place(model, counts)
        assert (found is not None) is (frozenset(counts.items()) in fitting)
        assert found is None or (found in legal(model) and counted(found) == frozenset(counts.items()))
        assert (why_not(model, counts) == "") is (found is not None)
