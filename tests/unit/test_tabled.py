"""GPUs that a table knows, as the operator publishes them: counters, placements, modes, and what counters alone decide."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.published import BACKEND, choices, config, driver, layout, node

from gpupartition.api.v1alpha1 import DriverSpec
from gpupartition.domain.amd_modes import AmdModel, Mode
from gpupartition.domain.backend import Cluster, Config
from gpupartition.domain.counters import Placed, equal_parts, everywhere, in_order, whole
from gpupartition.domain.gpus import MIB, Gpu
from gpupartition.domain.mig import COMPUTE, GpuModel
from gpupartition.domain.pool import Device, Pool
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.tabled import Tables, tabled
from gpupartition.tables import amd, mig

TABLES = Tables(mig=mig.builtin(), amd=amd.builtin())
MIG = {model.name: model for model in mig.builtin()}
AMD = {model.name: model for model in amd.builtin()}

H100 = {"count": 1, "product": "NVIDIA H100 80GB HBM3", "memory": "80Gi"}
MI300X = {"count": 1, "product": "AMD_Instinct_MI300X_OAM", "memory": "192Gi"}
MI325X = {"count": 1, "product": "AMD_Instinct_MI325X", "memory": "256Gi"}
PROFILES = ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def profiles(*names: str, **counts: int) -> dict[str, Any]:
    wanted = [{"name": name} for name in names] + [{"name": name, "count": n} for name, n in counts.items()]
    return layout("Profiles", profiles=wanted)


def mode(compute: str, memory: str = "NPS1") -> dict[str, Any]:
    return layout("Mode", mode={"compute": compute, "memory": memory})


def pool(wanted: Mapping[str, Any], *groups: Mapping[str, Any]) -> Pool:
    return config(wanted, of=driver(*groups)).pool


def refused(wanted: Mapping[str, Any], *groups: Mapping[str, Any]) -> Problem:
    with pytest.raises(Refused) as refusal:
        config(wanted, of=driver(*groups))
    (problem,) = refusal.value.problems
    return problem


def names(of: Pool) -> list[str]:
    return [device.name for device in of.devices]


def text(device: Device, attribute: str) -> str:
    return str(device.attributes[attribute]["string"])


# ------------------------------------------------------------------------------------------------------------------------- NVIDIA

# What NVIDIA's own DRA driver publishes of an H100 with DynamicMIG on: its counters by its names, and what some of its 26 devices take.
# kubernetes-sigs/dra-driver-nvidia-gpu at 95932046, cmd/gpu-kubelet-plugin/partitions.go; numbers of an H100 80GB HBM3.
ENGINES = ("multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")
TAKES = {  # profile and first memory slice: engines, MiB, memory slices
    ("1g.10gb", 6): ((16, 1, 1, 0, 1, 0), 9984, [6]),
    ("1g.10gb+me", 3): ((16, 1, 1, 0, 1, 1), 9984, [3]),
    ("1g.20gb", 6): ((26, 1, 1, 0, 1, 0), 20096, [6, 7]),
    ("2g.20gb", 4): ((32, 2, 2, 0, 2, 0), 20096, [4, 5]),
    ("3g.40gb", 4): ((60, 3, 3, 0, 3, 0), 40448, [4, 5, 6, 7]),
    ("4g.40gb", 0): ((64, 4, 4, 0, 4, 0), 40448, [0, 1, 2, 3]),
    ("7g.80gb", 0): ((132, 8, 7, 0, 7, 1), 81152, [*range(8)]),
    ("full", 0): ((132, 8, 7, 0, 7, 1), 81152, [*range(8)]),
}


def test_an_h100_has_the_counters_of_nvidias_own_driver_and_its_devices_take_what_they_take_there() -> None:
    published = pool(choices(*PROFILES), H100)
    assert len(published.devices) == 26
    by_place = {(text(d, "profile"), int(re.sub(r".*\D", "", d.name) or 0)): d for d in published.devices}
    for place, (engines, memory, slices) in TAKES.items():
        shared = dict(zip(ENGINES, engines, strict=True)) | {"memory": memory * MIB}
        device = by_place[place]
        assert device.costs == {"gpu-0": shared | {f"memory-slice-{n}": 1 for n in slices}}, place
        camel = {re.sub("-(.)", lambda m: m[1].upper(), name): amount for name, amount in shared.items()}
        assert device.capacity == camel, place
        assert device.attributes == {
            "index": {"int": 0},
            "productName": {"string": H100["product"]},
            "profile": {"string": place[0]},
            "type": {"string": "gpu" if place[0] == "full" else "mig"},
            "architecture": {"string": "Hopper"},
        }
    assert published.counters["gpu-0"] == by_place["full", 0].costs["gpu-0"]


@cache
def gpu(model: GpuModel | AmdModel) -> Gpu:
    found = tabled(getattr(model, "products", [model.name])[0], 300 * 1024 * MIB, TABLES)
    assert found is not None
    return found


def by_counters(of: Gpu, placed: Sequence[Placed]) -> bool:
    return all(sum(p.costs.get(name, 0) for p in placed) <= amount for name, amount in of.counters.items())


def by_rules(model: GpuModel, placed: Sequence[Placed]) -> bool:
    """NVIDIA's: no two on one memory slice, no more of a profile than there can be, no more of compute slices and engines than there are."""
    rows = {p.name: p for p in model.profiles}
    kinds = [rows[p.partition.name] for p in placed]
    slices = [n for p, kind in zip(placed, kinds, strict=True) for n in range(p.number, p.number + kind.size)]
    return (
        len(slices) == len(set(slices))
        and all(kinds.count(kind) <= kind.most for kind in kinds)
        and sum(kind.takes[COMPUTE] for kind in kinds) <= model.has[COMPUTE]
        and all(sum(kind.takes.get(name, 0) for kind in kinds) <= has for name, has in model.has.items())
    )


Rule = Callable[[Sequence[Placed]], bool]


def grown(fits: Rule, places: Sequence[Placed], begin: int = 0, *placed: Placed) -> Iterator[tuple[Placed, ...]]:
    """All sets of placements that fit, each once."""
    yield placed
    for n in range(begin, len(places)):
        if fits(more := (*placed, places[n])):
            yield from grown(fits, places, n + 1, *more)


def maximal(fits: Rule, places: Sequence[Placed]) -> int:
    """In how many ways devices can be allocated so that no other one can be."""
    return sum(not any(one not in placed and fits((*placed, one)) for one in places) for placed in grown(fits, places))


@pytest.mark.parametrize(
    ("model", "double", "ways"),
    [
        *((name, "", 19) for name in ("A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB")),
        *((name, double, 78) for name, double in (("A100-40GB", "1g.10gb"), ("H100-80GB", "1g.20gb"), ("B200-180GB", "1g.45gb"))),
        ("A30-24GB", "", 5),
        ("RTX-PRO-6000-96GB", "", 5),
    ],
)  # fmt: skip
def test_counters_alone_leave_as_many_ways_to_fill_a_gpu_as_nvidia_counts(model: str, double: str, ways: int) -> None:
    of, smallest = gpu(MIG[model]), MIG[model].profiles[0]
    doubles = {p.name for p in MIG[model].profiles if (p.slices, p.size > smallest.size) == (1, True)} - {double}
    plain = [p for name, p in of.partitions.items() if not re.search("[+-]", name) and name not in doubles]
    assert maximal(partial(by_counters, of), everywhere(plain)) == ways


@pytest.mark.parametrize("model", MIG.values(), ids=MIG.keys())
def test_partitions_can_be_there_together_exactly_when_their_counters_suffice(model: GpuModel) -> None:
    of, places = gpu(model), everywhere(gpu(model).partitions.values())
    number = {id(place): n for n, place in enumerate(places)}
    allowed, fit = (
        {tuple(number[id(place)] for place in placed) for placed in grown(rule, places)}
        for rule in (partial(by_rules, model), partial(by_counters, of))
    )
    assert allowed == fit
    assert len(fit) > 10


@pytest.mark.parametrize("model", MIG.values(), ids=MIG.keys())
def test_memory_that_an_inventory_says_is_never_exceeded_and_never_keeps_partitions_from_fitting(
    model: GpuModel,
) -> None:
    for said in (1000 * MIB, 70_001 * MIB, 10**12):
        of = tabled(model.products[0], said, TABLES)
        assert of is not None
        assert of.counters["memory"] <= said
        places = everywhere(of.partitions.values())
        for placed in itertools.islice(grown(partial(by_rules, model), places), 1000):
            assert by_counters(of, placed)


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3", "H100-80GB", "nvidia h100 pcie"])
def test_a_product_is_known_as_drivers_labels_and_the_table_spell_it(name: str) -> None:
    assert "gpu-0-7g--80gb-0" in names(pool(choices("7g.80gb"), {**H100, "product": name}))


def test_labels_of_a_node_are_enough_for_a_table() -> None:
    keys = {"count": "gpu/count", "product": "gpu/product", "memory": "gpu/memory"}
    of = driver(nodeLabels=keys)
    labels = {"gpu/count": "8", "gpu/product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "gpu/memory": "81559"}
    published = config(choices(*PROFILES), of=of, on=node(**labels)).pool
    assert len(published.devices) == 8 * 26


def test_what_an_inventory_spells_out_itself_wins_over_the_table() -> None:
    own = {"name": "third", "capacity": {"memory": "20Gi"}, "placements": [{"counters": {"memory": "20Gi"}}]}
    by_hand = {**H100, "counters": {"memory": "80Gi"}}
    assert pool(layout(), by_hand).counters == {"gpu-0": {"memory": 80 * 1024 * MIB}}
    assert names(pool(choices("third"), {**by_hand, "profiles": [own]})) == ["gpu-0-third-0", "gpu-0-full"]
    assert refused(choices("1g.10gb"), {**by_hand, "profiles": [own]}).reason == "UnknownProfile"


def test_a_name_of_another_driver_release_means_the_tables_profile() -> None:
    assert names(pool(choices("7g.79gb", "7g.80gb"), H100)) == ["gpu-0-7g--80gb-0", "gpu-0-full"]


def test_an_unknown_profile_is_refused_with_those_that_the_table_has() -> None:
    problem = refused(choices("1g.10gb", "5g.50gb"), H100)
    assert (problem.reason, problem.at) == ("UnknownProfile", "spec.layouts[0].choices.profiles[1]")
    assert problem.fix == f"use one of {', '.join(sorted(PROFILES))}"
    assert "H100-80GB" in problem.why


@pytest.mark.parametrize("called", ["NVIDIA H100 80GB HBM3", "H100-80GB", "NVIDIA-H100-80GB-HBM3"])
def test_a_policy_may_call_gpus_by_their_model_too(called: str) -> None:
    halves = {**choices("3g.40gb"), "match": {"products": [called]}}
    found = config(halves, layout(), of=driver(H100, {"count": 1, "product": "L4", "memory": "24Gi"}))
    assert {text(d, "profile") for d in found.pool.devices if d.name.startswith("gpu-0-")} == {"3g.40gb", "full"}
    assert found.unmatched == frozenset()
    assert found.products == {"NVIDIA H100 80GB HBM3 (model H100-80GB)", "L4"}


@pytest.mark.parametrize("name", ["NVIDIA-", "nvidia", "-SHARED", "H100"])
def test_a_piece_of_a_name_calls_no_gpu_and_is_no_product(name: str) -> None:
    found = config({**layout("Equal", equal={"parts": 2}), "match": {"products": [name]}}, layout(), of=driver(MI325X))
    assert found.unmatched == {name}
    assert tabled(name, MIB, TABLES) is None


def test_equal_parts_of_a_tabled_gpu_divide_its_memory_and_exclude_the_whole() -> None:
    halves = pool(layout("Equal", equal={"parts": 2}), H100)
    assert [d.costs["gpu-0"] for d in halves.devices[:2]] == [{"memory": 81152 * MIB // 2}] * 2
    assert halves.devices[2].costs["gpu-0"] == halves.counters["gpu-0"]


# ------------------------------------------------------------------------------------------------------------------ exact partitions


def test_exact_partitions_are_placed_so_that_all_of_them_can_be_allocated() -> None:
    wanted = layout("Profiles", profiles=[{"name": "1g.10gb", "count": 3}, {"name": "4g.40gb"}])
    published = pool(wanted, {**H100, "count": 2})
    assert names(published) == [
        f"gpu-{n}-{name}" for n in (0, 1) for name in ("1g--10gb-4", "1g--10gb-5", "1g--10gb-6", "4g--40gb-0")
    ]
    for n in (0, 1):
        taken = [d.costs[f"gpu-{n}"] for d in published.devices if f"gpu-{n}" in d.costs]
        counters = published.counters[f"gpu-{n}"]
        assert all(sum(t.get(name, 0) for t in taken) <= amount for name, amount in counters.items())


def test_a_device_is_the_same_whether_it_is_one_of_many_choices_or_there_for_good() -> None:
    many = {d.name: d.hardware() for d in pool(choices(*PROFILES), H100).devices}
    exact = {d.name: d.hardware() for d in pool(profiles("all-balanced"), H100).devices}
    assert exact.items() <= many.items()
    whole = {d.name: d.hardware() for d in pool(layout(), H100).devices}
    assert whole.items() <= many.items()
    assert pool(choices("1g.10gb"), H100).counters == pool(layout(), H100).counters


@pytest.mark.parametrize(
    ("preset", "found"),
    [
        ("all-1g.10gb", {"1g.10gb": 7}),
        ("all-balanced", {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
        ("all-disabled", {"full": 1}),
    ],
)
def test_presets_mean_what_they_mean_to_mig_parted(preset: str, found: dict[str, int]) -> None:
    kinds = [text(d, "profile") for d in pool(profiles(preset), H100).devices]
    assert {kind: kinds.count(kind) for kind in kinds} == found


@pytest.mark.parametrize(
    ("wanted", "reason", "why", "fix"),
    [
        (layout("Profiles", profiles=[{"name": "3g.40gb", "count": 3}]), "LayoutDoesNotFit", "HBM3) 3 x 3g.40gb are too many", "2 x 3g.40gb"),
        (profiles("1g.5gb"), "LayoutDoesNotFit", "H100-80GB has no profile 1g.5gb", "what fits instead: 1 x 1g.10gb"),
        (profiles("all-1g.5gb"), "UnknownProfile", "H100-80GB has no profile 1g.5gb", "use one of 1g.10gb"),
        (profiles("all-enabled"), "NothingPublished", "nobody publishes the GPU", "name the partitions"),
        (layout("Keep"), "LayoutTypeUnsupported", "slices are the operator's own", "Whole, Equal, Choices, Profiles or Mode"),
        (mode("CPX"), "UnknownProduct", "GPU 0 (NVIDIA H100 80GB HBM3) is not known to have modes", "use another type of layout"),
    ],
)  # fmt: skip
def test_what_an_h100_cannot_be_is_refused_with_what_it_can_be(
    wanted: dict[str, Any], reason: str, why: str, fix: str
) -> None:
    problem = refused(wanted, H100)
    assert problem.reason == reason
    assert why in problem.why
    assert fix in problem.fix
    assert problem.at.startswith("spec.layouts[0]")


SLOTS = {"slot0": "1", "slot1": "1", "slot2": "1", "slot3": "1"}
BY_HAND = {
    "count": 1,
    "product": "own",
    "memory": "40Gi",
    "counters": SLOTS,
    "profiles": [
        {"name": "one", "placements": [{"counters": {slot: "1"}} for slot in SLOTS]},
        {"name": "two", "placements": [{"counters": {"slot1": "1", "slot2": "1"}}, {"counters": {"slot0": "1", "slot1": "1"}}]},
    ],
}  # fmt: skip


def test_exact_partitions_of_an_inventory_of_ones_own_are_found_by_looking_at_all_ways() -> None:
    # The first place of the large one would leave no two small ones beside each other, but two all the same.
    assert names(pool(profiles(two=1, one=2), BY_HAND)) == ["gpu-0-one-0", "gpu-0-one-3", "gpu-0-two-0"]
    # Only the second place of the large one leaves room, wherever the small ones begin.
    three = {**BY_HAND, "profiles": [*BY_HAND["profiles"], {"name": "end", "placements": [{"counters": {"slot2": "1", "slot3": "1"}}]}]}  # type: ignore[misc]  # fmt: skip
    assert names(pool(profiles(two=1, end=1), three)) == ["gpu-0-two-1", "gpu-0-end-0"]


def test_in_which_order_a_policy_asks_for_exact_partitions_makes_no_difference() -> None:
    apart = [{"counters": {"slot0": "1", "slot1": "1"}}, {"counters": {"slot2": "1", "slot3": "1"}}]
    group = {**BY_HAND, "profiles": [BY_HAND["profiles"][0], {"name": "two", "placements": apart}]}  # type: ignore[index]
    assert pool(profiles(one=1, two=1), group) == pool(profiles(two=1, one=1), group)


def test_exact_partitions_for_which_an_inventory_of_ones_own_has_no_room_are_refused() -> None:
    problem = refused(profiles(two=2), BY_HAND)
    assert (problem.reason, problem.at) == ("LayoutDoesNotFit", "spec.layouts[0].profiles")
    assert "2 x two" in problem.why
    problem = refused(profiles(five=1), BY_HAND)
    assert (problem.reason, problem.at) == ("UnknownProfile", "spec.layouts[0].profiles[0].name")


def test_a_search_that_would_not_end_soon_is_given_up() -> None:
    slots = {f"slot{n}": "1" for n in range(24)}
    kinds = [{"name": f"p{n}", "placements": [{"counters": {slot: "1"}} for slot in slots]} for n in range(16)]
    group = {**BY_HAND, "counters": slots, "profiles": kinds}
    fits = {"p0": 9} | {f"p{n}": 1 for n in range(1, 16)}
    assert len(pool(profiles(**fits), group).devices) == 24
    assert refused(profiles(**fits | {"p0": 10}), group).reason == "LayoutDoesNotFit", "there are two million ways"


# ---------------------------------------------------------------------------------------------------------------------------- AMD


def test_a_mode_is_as_many_devices_as_the_gpu_has_partitions_in_it_all_of_which_can_be_had_at_once() -> None:
    published = pool(mode("CPX", "NPS4"), {**MI300X, "count": 8})
    assert names(published)[:8] == [f"gpu-0-cpx-nps4-{n}" for n in range(8)]
    assert len(published.devices) == 64
    assert {d.capacity["memory"] for d in published.devices} == {24 * 1024 * MIB}
    assert {(text(d, "profile"), text(d, "partitionProfile"), text(d, "type")) for d in published.devices} == {
        ("cpx_nps4", "cpx_nps4", "amdgpu-partition")
    }


@pytest.mark.parametrize("model", AMD.values(), ids=AMD.keys())
def test_partitions_of_one_mode_are_there_together_and_two_modes_never_are(model: AmdModel) -> None:
    of = gpu(model)
    assert len(of.counters) <= 32, "more than the API takes"
    assert {Mode.read(name) for name in of.partitions} == {k.mode for k in model.modes if k.mode.settable} - {
        Mode("SPX", "NPS1")
    }
    for one, other in itertools.combinations(of.partitions.values(), 2):
        for a, b in itertools.product(everywhere([one]), everywhere([other])):
            assert not by_counters(of, [a, b]), (a, b)
    for each in of.partitions.values():
        assert by_counters(of, everywhere([each]))
        assert not any(by_counters(of, [p, *everywhere([of.whole])]) for p in everywhere([each]))
        known = model.known(Mode.read(each.name) or Mode("", ""))
        assert known is not None
        assert known.partitions == len(each.placements)


def test_modes_are_called_as_drivers_or_as_people_write_them() -> None:
    assert pool(choices("CPX/NPS1"), MI325X) == pool(choices("cpx_nps1"), MI325X)


def test_several_modes_may_be_offered_for_the_scheduler_to_choose_from() -> None:
    both = choices("dpx_nps1", "cpx_nps1")
    assert names(pool(both, MI325X)) == [
        *(f"gpu-0-cpx-nps1-{n}" for n in range(8)), "gpu-0-dpx-nps1-0", "gpu-0-dpx-nps1-1", "gpu-0-full"
    ]  # fmt: skip


def test_the_mode_of_a_gpu_in_one_piece_is_the_whole_gpu() -> None:
    assert pool(mode("SPX"), MI300X) == pool(layout(), MI300X)
    assert text(pool(layout(), MI300X).devices[0], "partitionProfile") == "spx_nps1"


@pytest.mark.parametrize(
    ("wanted", "reason", "why"),
    [
        (mode("CPX", "NPS4"), "UnknownMode", "it is not known that MI325X can be CPX/NPS4"),
        (choices("cpx_nps4"), "UnknownProfile", "MI325X has no profile cpx_nps4"),
        (profiles("cpx_nps4"), "UnknownProfile", "MI325X has no profile cpx_nps4"),
    ],
)
def test_a_mode_that_a_model_is_not_known_to_have_is_refused(wanted: dict[str, Any], reason: str, why: str) -> None:
    problem = refused(wanted, MI325X)
    assert problem.reason == reason
    assert why in problem.why
    assert "nps1" in problem.fix.lower()


@pytest.mark.parametrize(
    "wanted",
    [
        choices("cpx_nps4"),  # beside the whole GPU, which is in NPS1
        choices("dpx_nps2", "cpx_nps4", offerWhole=False),
        {**mode("CPX", "NPS4"), "match": {"indexes": [0]}},
    ],
)
def test_two_memory_modes_on_one_node_are_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refusal:
        config(wanted, layout(), of=driver({**MI300X, "count": 2}))
    (problem,) = refusal.value.problems
    assert problem.reason == "MemoryModesDiffer"
    assert "a node has one memory mode" in problem.why


def test_one_memory_mode_may_be_offered_in_several_compute_modes() -> None:
    assert len(pool(choices("qpx_nps4", "cpx_nps4", offerWhole=False), MI300X).devices) == 12


def test_a_memory_mode_takes_all_devices_of_a_node_away_and_a_compute_mode_those_of_its_gpu() -> None:
    two = {**MI300X, "count": 2}
    first = {"match": {"indexes": [0]}}

    def of(*wanted: Mapping[str, Any]) -> Pool:
        return config(*wanted, of=driver(two)).pool

    before = of({**mode("DPX"), **first}, mode("CPX"))
    assert before.vanishing(of({**mode("QPX"), **first}, mode("CPX"))) == {"gpu-0-dpx-nps1-0", "gpu-0-dpx-nps1-1"}
    assert before.vanishing(of(mode("CPX", "NPS4"))) == before.names


# --------------------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("model", [*MIG.values(), *AMD.values()], ids=[*MIG, *AMD])
def test_names_of_devices_are_distinct_and_labels_of_dns(model: GpuModel | AmdModel) -> None:
    of = gpu(model)
    pieces = [*in_order(of, everywhere(of.partitions.values())), whole(of), *equal_parts(of, 63)]
    found = [f"gpu-63-{piece.name}" for piece in pieces]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in found)


@pytest.mark.parametrize("model", MIG.values(), ids=MIG.keys())
def test_eight_gpus_with_all_choices_fit_into_a_record_and_into_the_limits_of_the_api(model: GpuModel) -> None:
    group = {"count": 8, "product": model.products[0], "memory": "200Gi"}
    published = pool(choices(*(p.name for p in model.profiles)), group)
    assert len(published.devices) == 8 * (sum(len(p.starts) for p in model.profiles) + 1)
    for device in published.devices:
        assert len(device.costs) <= 2
        assert all(len(costs) <= 32 for costs in device.costs.values())
        assert len(device.attributes) + len(device.capacity) <= 32


EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"


@pytest.mark.parametrize(("policy_file", "devices"), [("choices", 8 * 26), ("publish", 3 + 5 * (7 + 3 + 2 + 1))])
def test_the_policies_of_the_examples_are_understood(policy_file: str, devices: int) -> None:
    of = DriverSpec.model_validate(yaml.safe_load((EXAMPLES / "driver-publish.yaml").read_text())["spec"])
    wanted = yaml.safe_load((EXAMPLES / f"{policy_file}.yaml").read_text())["spec"]
    assert len(config(*wanted["layouts"], of=of).pool.devices) == devices


def test_the_example_of_an_inventory_by_hand_makes_sense() -> None:
    of = DriverSpec.model_validate(yaml.safe_load((EXAMPLES / "driver-publish-by-hand.yaml").read_text())["spec"])
    assert BACKEND.preflight(of, Cluster()) == []
    assert len(config(choices("1g.10gb", "2g.20gb", "3g.40gb"), of=of).pool.devices) == 8 * 13


def test_a_driver_says_nothing_of_an_inventory_that_a_table_fills_in() -> None:
    assert BACKEND.preflight(driver(H100, MI300X), Cluster()) == []


# Kept release by release: whoever changes one of these rewrites the slices of every node.
GOLDEN = {
    "Choices": "087d5e1d5fc20a66",
    "Profiles": "55daaa2d25ee2b61",
    "Mode": "2178240e7a795a4f",
}


@pytest.mark.parametrize(
    ("wanted", "group"), [(choices(*PROFILES), H100), (profiles("all-balanced"), H100), (mode("CPX", "NPS4"), MI300X)]
)
def test_fingerprints_stay_what_they_were_in_the_last_release(wanted: dict[str, Any], group: dict[str, Any]) -> None:
    found: Config = config(wanted, of=driver(group))
    assert found.fingerprint == GOLDEN[wanted["type"]]
