"""MIG: what is known of GPUs, by which names, what fits on one, and what is said of what does not."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupartition.backends.installed import with_tables
from gpupartition.domain import mig
from gpupartition.domain.mig import GpuModel, Profile
from gpupartition.domain.mig_layouts import Placement, nearest, place, told, why_not
from gpupartition.domain.problem import Refused
from gpupartition.tables import mig as tables

ROOT = Path(__file__).parents[2]
MODELS = {model.name: model for model in tables.builtin()}
A100, A30, H100 = MODELS["A100-40GB"], MODELS["A30-24GB"], MODELS["H100-80GB"]
RTX, GB200 = MODELS["RTX-PRO-6000-96GB"], MODELS["GB200-186GB"]
EACH_MODEL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
EACH_PROFILE = pytest.mark.parametrize(
    ("model", "profile"),
    [pytest.param(m, p, id=f"{m.name}-{p.name}") for m in MODELS.values() for p in m.profiles],
)

# ------------------------------------------------------------------------------------------------------------------------ the table


@EACH_PROFILE
def test_the_most_that_the_driver_allows_is_what_the_counters_allow(model: GpuModel, profile: Profile) -> None:
    free = replace(model, profiles=tuple(replace(p, most=99) for p in model.profiles))
    counted = next(n for n in range(1, 99) if place(free, {profile.name: n + 1}) is None)
    if profile.name.endswith("+me") and not profile.engines:  # nobody has published the engines that limit it
        assert profile.most == 1 < counted
    else:
        assert profile.most == counted


@EACH_PROFILE
def test_every_place_lies_on_the_gpu(model: GpuModel, profile: Profile) -> None:
    assert all(0 <= start <= model.memory_slices - profile.size for start in profile.starts)
    assert profile.name.startswith(f"{profile.slices}g.")


@EACH_MODEL
def test_the_devices_of_a_gpu_are_as_many_as_its_driver_announces(model: GpuModel) -> None:
    announced = {4: 13, 8: 25, 12: 30}
    assert sum(len(p.starts) for p in model.profiles) == announced[model.memory_slices]


@EACH_MODEL
def test_profiles_stand_in_the_order_of_their_size(model: GpuModel) -> None:
    sizes = [(p.slices, p.size) for p in model.profiles]
    assert sizes == sorted(sizes)


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    package = ROOT / "operator/gpupartition"
    shipped = {
        path
        for name, patterns in settings["package-data"].items()
        for pattern in patterns
        for path in (ROOT / "operator" / name.replace(".", "/")).glob(pattern)
    }
    others = {p for p in package.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc"}}
    assert others == shipped
    assert package / "tables/mig.json" in shipped


def test_the_table_of_this_release_does_not_contradict_itself() -> None:
    text = (ROOT / "operator/gpupartition/tables/mig.json").read_text(encoding="utf-8")
    assert tables.parse(json.loads(text), at="mig.json") == tables.builtin()


# ---------------------------------------------------------------------------------------------------------------------------- names

SPELLINGS = [
    ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
    ("NVIDIA-A100-SXM4-40GB", "A100-40GB"),
    ("A100-SXM4-40GB", "A100-40GB"),
    ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-40GB"),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-40GB"),
    ("NVIDIA-A100-SXM4-80GB-SHARED", "A100-80GB"),
    ("NVIDIA-A100-80GB-PCIe-MIG-3g.40gb-SHARED", "A100-80GB"),
    ("NVIDIA_H100_80GB_HBM3", "H100-80GB"),
    ("NVIDIA-GH200-144G-HBM3e", "GH200-144GB"),
    ("nvidia-b300-sxm6-ac", "B300"),
]


@pytest.mark.parametrize(("product", "name"), SPELLINGS)
def test_a_product_is_known_however_it_is_spelled(product: str, name: str) -> None:
    assert mig.model_of(product, tables.builtin(), at="GPU 0").name == name


@EACH_MODEL
def test_each_product_leads_to_its_own_model(model: GpuModel) -> None:
    for product in model.products:
        assert mig.model_of(product.replace(" ", "-"), tables.builtin(), at="GPU 0") == model


def test_an_unknown_product_is_refused_with_those_most_like_it() -> None:
    with pytest.raises(Refused) as refused:
        mig.model_of("NVIDIA-A100-SXM5-40GB", tables.builtin(), at="node a, GPU 3")
    (problem,) = refused.value.problems
    assert (problem.reason, problem.at) == ("UnknownProduct", "node a, GPU 3")
    assert "'NVIDIA-A100-SXM5-40GB'" in problem.why
    assert "if it is one of NVIDIA A100-SXM4-40GB, " in problem.fix
    assert "table of MIG profiles" in problem.fix


def test_a_product_like_no_other_is_refused_too() -> None:
    with pytest.raises(Refused, match="'' can be cut; add its profiles"):
        mig.model_of("", tables.builtin(), at="GPU 0")


def test_a_product_that_is_spelled_as_a_model_is_called_is_that_model_unless_another_is_sold_so() -> None:
    named_so = replace(A30, name="H100-80GB")
    assert mig.find("h100 80gb", [named_so, H100]) == named_so
    assert mig.find("h100 80gb", [named_so, replace(H100, products=("NVIDIA H100-80GB",))]) != named_so
    assert mig.find("H300", tables.builtin()) is None


SHAPES = [
    ("7g.79gb", "7g.80gb", True),
    ("1g.23gb", "1g.24gb", True),
    ("3g.93gb", "3g.95gb", True),
    ("7g.186gb", "7g.189gb", True),
    ("1g.5gb", "1g.6gb", False),
    ("1g.10gb", "1g.12gb", False),
    ("1g.10gb", "1g.20gb", False),
    ("1g.24gb+me", "1g.24gb-me", False),
    ("1g.24gb+me", "1g.24gb+me.all", False),
    ("1g.24gb+gfx", "1g.23gb+gfx", True),
    ("1g.24gb", "2g.24gb", False),
    ("whole", "whole", True),
    ("whole", "1g.5gb", False),
]


@pytest.mark.parametrize(("one", "other", "same"), SHAPES)
def test_a_size_that_a_driver_rounds_otherwise_is_the_same_shape(one: str, other: str, same: bool) -> None:
    assert mig.same_shape(one, other) is mig.same_shape(other, one) is same


@EACH_MODEL
def test_no_two_profiles_of_a_gpu_are_the_same_shape(model: GpuModel) -> None:
    for profile in model.profiles:
        assert [p for p in model.profiles if mig.same_shape(p.name, profile.name)] == [profile]


def test_counts_may_use_the_name_that_another_driver_has() -> None:
    assert place(H100, {"7g.79gb": 1}) == (Placement(0, "7g.80gb"),)
    assert place(GB200, {"1g.24gb": 4, "1g.23gb": 4}) is None


# -------------------------------------------------------------------------------------------------------------------------- presets


@EACH_PROFILE
def test_all_of_a_profile_is_as_many_as_there_can_be(model: GpuModel, profile: Profile) -> None:
    name = f"all-{profile.name.replace('+', '.')}"
    assert mig.preset(model, name, at="spec") == mig.Preset(mig_enabled=True, counts={profile.name: profile.most})


@EACH_MODEL
def test_balanced_is_one_of_each_size_and_two_of_the_smallest(model: GpuModel) -> None:
    balanced = mig.preset(model, "all-balanced", at="spec").counts
    profiles = [model.profile(name) for name in balanced]
    assert [p and p.slices for p in profiles] == ([1, 2, 3] if model.memory_slices == 8 else [1, 2])
    assert list(balanced.values()) == [2, 1, 1][: len(balanced)]
    assert why_not(model, balanced) == ""


def test_one_preset_means_different_counts_on_different_gpus() -> None:
    assert mig.preset(A100, "all-1g.10gb", at="spec").counts == {"1g.10gb": 4}
    assert mig.preset(H100, "all-1g.10gb", at="spec").counts == {"1g.10gb": 7}
    assert mig.preset(MODELS["H200-141GB"], "all-1g.35gb", at="spec").counts == {"1g.35gb": 4}
    assert mig.preset(MODELS["GB300"], "all-1g.35gb", at="spec").counts == {"1g.35gb": 7}
    assert mig.preset(GB200, "all-7g.189gb", at="spec").counts == {"7g.186gb": 1}


def test_mig_can_be_off_or_on_without_partitions() -> None:
    assert mig.preset(A100, "all-disabled", at="spec") == mig.Preset(mig_enabled=False, counts={})
    assert mig.preset(A100, "all-enabled", at="spec") == mig.Preset(mig_enabled=True, counts={})
    assert place(A100, {}) == ()


@pytest.mark.parametrize(
    ("name", "why", "fix"),
    [
        ("all-1g.5gb", "H100-80GB has no profile 1g.5gb", "use one of 1g.10gb, 1g.10gb+me, 1g.20gb, "),
        ("all-1g.10gb.gfx", "H100-80GB has no profile 1g.10gb+gfx", "use one of 1g.10gb, "),
        ("half", "mig-parted has no preset half for H100-80GB", "use all-disabled, all-enabled, all-balanced, or all-"),
    ],
)
def test_a_preset_that_means_nothing_on_a_gpu_is_refused(name: str, why: str, fix: str) -> None:
    with pytest.raises(Refused) as refused:
        mig.preset(H100, name, at="spec.layouts[0]")
    (problem,) = refused.value.problems
    assert (problem.reason, problem.at, problem.why) == ("UnknownProfile", "spec.layouts[0]", why)
    assert problem.fix.startswith(fix)


def test_balanced_is_not_guessed() -> None:
    with pytest.raises(
        Refused, match="has no preset all-balanced for H100-80GB; use all-disabled, all-enabled, or all-"
    ):
        mig.preset(replace(H100, balanced=()), "all-balanced", at="spec")


# ------------------------------------------------------------------------------------------------------------------------- what fits


def test_a_partition_lies_where_it_takes_least_from_others() -> None:
    """Behind memory slice 6 lies one that a small partition cannot have anyway."""
    assert place(A100, {"1g.10gb": 1}) == (Placement(6, "1g.10gb"),)
    assert place(A100, {"1g.5gb": 3, "3g.20gb": 1}) == (
        *(Placement(n, "1g.5gb") for n in range(3)),
        Placement(4, "3g.20gb"),
    )
    assert place(RTX, {"2g.48gb": 1, "1g.24gb-me": 2}) is not None


REFUSALS = [
    (A100, {"3g.20gb": 3}, "3 x 3g.20gb are too many: A100-40GB has room for 2"),
    (A100, {"3g.20gb": 2, "1g.5gb": 1}, "1 x 1g.5gb, 2 x 3g.20gb take 9 memory slices, and A100-40GB has 8"),
    (A100, {"2g.10gb": 3, "1g.5gb": 2}, "2 x 1g.5gb, 3 x 2g.10gb take 8 compute slices, and A100-40GB has 7"),
    (A100, {"1g.6gb": 1}, "A100-40GB has no profile 1g.6gb"),
    (A30, {"1g.6gb+me": 1, "2g.12gb+me": 1}, "1 x 1g.6gb+me, 1 x 2g.12gb+me take 2 jpeg-engines, and A30-24GB has 1"),
    (RTX, {"2g.48gb+me.all": 1, "1g.24gb": 1}, "1 x 1g.24gb, 1 x 2g.48gb+me.all take 5 decoders, and RTX-PRO-6000-96GB has 4"),
    (GB200, {"1g.23gb+me": 2}, "2 x 1g.23gb+me are too many: GB200-186GB has room for 1"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "counts", "sentence"), REFUSALS)
def test_a_refusal_says_which_profile_and_what_is_used_up(
    model: GpuModel, counts: dict[str, int], sentence: str
) -> None:
    assert place(model, counts) is None
    assert why_not(model, counts) == sentence


def test_a_refusal_says_where_a_partition_could_begin_when_only_its_places_are_taken() -> None:
    small = Profile(name="1g.10gb", gi_profile_id=19, slices=1, size=1, starts=(0,), most=1)
    half = Profile(name="2g.20gb", gi_profile_id=14, slices=2, size=2, starts=(0,), most=1)
    whole = Profile(name="4g.40gb", gi_profile_id=0, slices=4, size=4, starts=(0,), most=1)
    model = GpuModel(name="X", products=("X",), architecture="X", memory_slices=4, profiles=(small, half, whole))
    assert why_not(model, {"1g.10gb": 1, "2g.20gb": 1}) == (
        "1 x 1g.10gb find no place on X beside 1 x 2g.20gb: each takes 1 memory slices from 0 on"
    )


INSTEAD = [
    (A100, {"3g.20gb": 3}, "2 x 3g.20gb"),
    (A100, {"4g.20gb": 2}, "1 x 3g.20gb, 1 x 4g.20gb"),
    (A100, {"1g.5gb": 8}, "7 x 1g.5gb"),
    (A100, {"1g.6gb": 7}, "7 x 1g.5gb"),
    (H100, {"1g.5gb": 2, "3g.20gb": 1}, "2 x 1g.10gb, 1 x 3g.40gb"),
    (A30, {"7g.40gb": 1}, "1 x 4g.24gb"),
    (RTX, {"4g.96gb": 1, "1g.24gb": 1}, "1 x 4g.96gb"),
]


@pytest.mark.parametrize(("model", "counts", "best"), INSTEAD)
def test_what_fits_instead_changes_little_and_uses_much(model: GpuModel, counts: dict[str, int], best: str) -> None:
    found = nearest(model, counts)
    assert told(found[0]) == best
    assert len(found) == 3
    assert [c for c in found if place(model, c) is None] == []


def test_what_fits_is_the_nearest_to_itself() -> None:
    assert nearest(A100, {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}, limit=1) == (
        {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
    )


# ------------------------------------------------------------------------------------------------------------------- tables of one's own

OWN = yaml.safe_load("""
gpus:
- name: L900
  products: [NVIDIA L900 32GB]
  architecture: Example
  memorySlices: 4
  sources: [nvidia-smi mig -lgip and -lgipp on L900]
  balanced: {1g.8gb: 2, 2g.16gb: 1}
  profiles:
  - {name: 1g.8gb, id: 19, slices: 1, size: 1, starts: [0, 1, 2, 3], max: 4, memoryMib: 7936}
  - {name: 1g.8gb+me, id: 20, slices: 1, size: 1, starts: [0, 1, 2, 3], max: 1, engines: {ofa-engines: 1}}
  - {name: 2g.16gb, id: 14, slices: 2, size: 2, starts: [0, 2], max: 2}
  - {name: 4g.32gb, id: 0, slices: 4, size: 4, starts: [0], max: 1, engines: {ofa-engines: 1}}
""")


def with_builtin(own: Any) -> Sequence[GpuModel]:
    models, problems = with_tables(yaml.safe_dump(own), "ConfigMap gpu/mig", tables.parse, tables.builtin())
    assert problems == ()
    return models


def test_a_gpu_of_ones_own_is_planned_like_any_other() -> None:
    models = with_builtin(OWN)
    model = mig.model_of("NVIDIA-L900-32GB", models, at="GPU 0")
    assert mig.preset(model, "all-balanced", at="spec").counts == {"1g.8gb": 2, "2g.16gb": 1}
    assert place(model, {"2g.16gb": 2}) == (Placement(0, "2g.16gb"), Placement(2, "2g.16gb"))
    assert len(models) == len(tables.builtin()) + 1


def test_an_own_entry_replaces_the_built_in_one_of_its_name_and_takes_its_products() -> None:
    document = copy.deepcopy(OWN)
    document["gpus"][0] |= {"name": "A30-24GB", "products": ["NVIDIA A30", "NVIDIA H100 PCIe"]}
    models = with_builtin(document)
    assert len(models) == len(tables.builtin())
    for product in ("NVIDIA A30", "NVIDIA-H100-PCIe"):
        assert mig.model_of(product, models, at="GPU 0").profiles[0].name == "1g.8gb"
    assert mig.model_of("NVIDIA H100 80GB HBM3", models, at="GPU 0") == H100


WRONG: list[tuple[str, Any, str, str, str]] = [
    ("memorySlices", "4", "gpus[0].memorySlices", "'4' cannot be", "it should be a valid integer"),
    ("memorySlices", 99, "gpus[0].memorySlices", "99 cannot be", "it should be less than or equal to 16"),
    ("memorySlices", 5, "gpus[0].profiles", "no profile takes all 5 memory slices, so that it is not known what the whole GPU has", "add it"),
    ("memory", 4, "gpus[0].memory", "there is no such field", "leave it out, or use one of name, products, architecture, memorySlices, "),
    ("confidence", "sure", "gpus[0].confidence", "'sure' cannot be", "it should be 'high', 'medium' or 'low'"),
    ("pciIds", ["2330"], "gpus[0].pciIds[0]", "'2330' is not a device with its vendor", "write both in one, such as 0x233010DE"),
    ("products", [], "gpus[0].products", "[] cannot be", "list should have at least 1 item"),
    ("products", ["NVIDIA X", "X"], "gpus[0].products[1]", "x is there before", "name each once"),
    ("balanced", {"1g.8gb": 5}, "gpus[0].balanced", "5 x 1g.8gb cannot be: 5 x 1g.8gb are too many: L900 has room for 4", "correct it"),
    ("balanced", {"1g.5gb": 1}, "gpus[0].balanced", "1 x 1g.5gb cannot be: L900 has no profile 1g.5gb", "correct it"),
    ("profiles", [3], "gpus[0].profiles[0]", "3 is not a mapping", "write one with the fields name, id, slices, size, starts, max, "),
]  # fmt: skip

WRONG_PROFILES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"name": "small"}, "name", "'small' is not the name of a profile", "write it as the driver prints it, such as 1g.10gb+me"),
    ({"name": "1g.8gb"}, "name", "1g.8gb cannot be told from 1g.8gb", "leave one out"),
    ({"id": 19}, "id", "19 is there before", "name each once"),
    ({"starts": [2, 0]}, "starts", "[2, 0] are not in order", "write [0, 2]"),
    ({"starts": [0, 3]}, "starts", "2 memory slices from 3 on end behind the last of 4", "begin at 2 or before"),
    ({"size": 5}, "starts", "5 memory slices from 2 on end behind the last of 4", "correct size"),
    ({"max": 3}, "max", "it is 3, but 3 x 2g.16gb take 6 compute slices, and L900 has 4", "correct max, or what contradicts it"),
    ({"max": True}, "max", "True cannot be", "it should be a valid integer"),
    ({"engines": {"decoder": 1}}, "engines.decoder", "'decoder' cannot be", "it should be 'multiprocessors', 'copy-engines', "),
]  # fmt: skip


def refusal(document: Any) -> tuple[str, str, str]:
    with pytest.raises(Refused) as refused:
        tables.parse(document, at="ConfigMap gpu/mig")
    (problem,) = refused.value.problems
    assert problem.reason == "TableInvalid"
    return problem.at, problem.why, problem.fix


@pytest.mark.parametrize(("field", "value", "path", "why", "fix"), WRONG)
def test_a_bad_table_is_refused_with_the_field(field: str, value: Any, path: str, why: str, fix: str) -> None:
    document = copy.deepcopy(OWN)
    document["gpus"][0][field] = value
    found = refusal(document)
    assert found[:2] == (f"ConfigMap gpu/mig: {path}", why)
    assert found[2].startswith(fix)


@pytest.mark.parametrize(("change", "path", "why", "fix"), WRONG_PROFILES)
def test_a_bad_profile_is_refused_with_the_field(change: dict[str, Any], path: str, why: str, fix: str) -> None:
    document = copy.deepcopy(OWN)
    document["gpus"][0]["profiles"][2] |= change
    found = refusal(document)
    assert found[:2] == (f"ConfigMap gpu/mig: gpus[0].profiles[2].{path}", why)
    assert found[2].startswith(fix)


@pytest.mark.parametrize("document", [None, [], "gpus", 3])
def test_what_is_no_table_is_refused(document: Any) -> None:
    at, why, fix = refusal(document)
    assert (at, why) == ("ConfigMap gpu/mig: table", f"{document!r} is not a mapping")
    assert fix == "write one with the fields gpus"


def test_all_that_is_wrong_is_told_at_once() -> None:
    document = {"gpus": [{**OWN["gpus"][0], "architecture": 1, "note": 2}, *OWN["gpus"]]}
    with pytest.raises(Refused) as refused:
        tables.parse(document, at="a")
    assert [p.at for p in refused.value.problems] == ["a: gpus[0].architecture", "a: gpus[0].note"]
    with pytest.raises(Refused) as refused:
        tables.parse({"gpus": OWN["gpus"] * 2}, at="a")
    assert [p.at for p in refused.value.problems] == ["a: gpus[1].name", "a: gpus[1].products[0]"]


def test_a_table_that_would_take_for_ever_to_look_through_is_refused() -> None:
    document = copy.deepcopy(OWN)
    document["gpus"][0] |= {"memorySlices": 16, "balanced": {}}
    document["gpus"][0]["profiles"] = [
        *(
            {"name": f"1g.{2**n}gb", "id": n, "slices": 1, "size": 1, "starts": [*range(16)], "max": 16}
            for n in range(6)
        ),
        {"name": "16g.999gb", "id": 99, "slices": 16, "size": 16, "starts": [0], "max": 1},
    ]
    at, why, _ = refusal(document)
    assert (at, why) == (
        "ConfigMap gpu/mig: gpus[0].profiles",
        "they can be combined in more than 2000 ways, too many to look through",
    )


# ------------------------------------------------------------------------------------------------------------------------ the page


PAGE = (ROOT / "docs" / "mig.md").read_text(encoding="utf-8")


def test_the_page_shows_the_models_products_and_profiles_as_the_table_has_them() -> None:
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if "gb, " in line]
    rows = {cells[0].strip("`"): cells[1:3] for cells in shown if len(cells) == 4}
    assert rows == {
        model.name: [
            ", ".join(product.removeprefix("NVIDIA ") for product in model.products),
            ", ".join(profile.name for profile in model.profiles),
        ]
        for model in MODELS.values()
    }


def test_the_table_that_the_page_shows_is_one() -> None:
    (text,) = [
        block for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "gpus:" in block
    ]
    (model,) = tables.parse(yaml.safe_load(text), at="the page")
    assert place(model, dict(model.balanced)) is not None
    with pytest.raises(Refused, match=r"gpus\[0\].profiles\[1\].max"):
        tables.parse(yaml.safe_load(text.replace("starts: [0, 2], max: 2", "starts: [0, 2], max: 3")), at="the page")


def test_the_page_explains_each_reason_for_which_an_installation_is_refused() -> None:
    backends = ROOT / "operator/gpupartition/backends"
    source = (backends / "nvidia_limits.py").read_text(encoding="utf-8").partition("# ------")[2]
    source = source.partition("def cuts_for")[0] + (backends / "by_label.py").read_text(encoding="utf-8")
    named = set(re.findall(r'reason="(\w+)"', source))
    assert named >= {"MigManagerMissing", "ConfigNotWired", "DynamicMigOn"}
    assert sorted(reason for reason in named if f"`{reason}`" not in PAGE) == []
