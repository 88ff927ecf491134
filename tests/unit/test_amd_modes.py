"""Which modes AMD's GPUs have, how far each is trusted, and what is refused because nobody knows it."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupartition import tables
from gpupartition.backends import amd_limits, by_label
from gpupartition.domain.amd_modes import COMPUTE, MEMORY, Mode, Trust, known_mode, model_of
from gpupartition.domain.problem import Problem, Refused
from gpupartition.tables import amd

MODELS = amd.builtin()
OAM = "AMD_Instinct_MI300X_OAM"


def refusal(product: str, compute: str, memory: str) -> Problem:
    with pytest.raises(Refused) as refused:
        known_mode(product, Mode(compute, memory), MODELS, "spec.layouts[0]")
    (problem,) = refused.value.problems
    return problem


@pytest.mark.parametrize("product", [OAM, "AMD Instinct MI300X", "amd-instinct-mi300x-oam"])
def test_a_product_is_recognized_by_a_word_of_its_name(product: str) -> None:
    model = model_of(product, MODELS)
    assert model is not None
    assert model.name == "MI300X"


@pytest.mark.parametrize("product", ["", "AMD Instinct MI300", "MI300XL", "AMD Radeon PRO W7900"])
def test_a_product_that_only_looks_like_a_known_one_is_not_known(product: str) -> None:
    assert model_of(product, MODELS) is None
    assert refusal(product, "SPX", "NPS1").reason == "UnknownProduct"


def test_the_modes_of_the_driver_are_read_and_written_as_it_names_them() -> None:
    assert Mode.read("cpx_nps4") == Mode("CPX", "NPS4")
    assert Mode("CPX", "NPS4").name == "cpx_nps4"
    assert [Mode.read(name) for name in ("", "cpx", "cpx_nps44", "x_cpx_nps4")] == [None] * 4


@pytest.mark.parametrize(
    ("mode", "partitions", "trust"),
    [
        (Mode("SPX", "NPS1"), 1, Trust.VALIDATED),
        (Mode("DPX", "NPS2"), 2, Trust.VALIDATED),
        (Mode("QPX", "NPS1"), 4, Trust.ALLOWED),
        (Mode("CPX", "NPS1"), 8, Trust.ALLOWED),
        (Mode("CPX", "NPS4"), 8, Trust.VALIDATED),
    ],
)
def test_what_is_known_of_a_mode_is_how_many_partitions_it_makes_and_who_says_so(
    mode: Mode, partitions: int, trust: Trust
) -> None:
    known = known_mode(OAM, mode, MODELS, "")
    assert (known.partitions, known.trust) == (partitions, trust)


def test_a_mode_of_another_model_is_refused_with_those_that_there_are() -> None:
    problem = refusal("AMD Instinct MI325X", "CPX", "NPS4")
    assert problem.reason == "UnknownMode"
    assert problem.why == "it is not known that MI325X can be CPX/NPS4"
    assert problem.fix == "use one of SPX/NPS1, or, not validated by AMD, one of DPX/NPS1, QPX/NPS1, CPX/NPS1"


def test_a_whole_gpu_with_memory_in_parts_is_no_mode_of_any_model() -> None:
    assert all(model.known(Mode("SPX", memory)) is None for model in MODELS for memory in ("NPS2", "NPS4"))


def test_modes_that_device_config_manager_does_not_know_are_never_advised() -> None:
    assert not Mode("TPX", "NPS1").settable
    assert "TPX" not in refusal("AMD Instinct MI300A", "QPX", "NPS1").fix


def test_every_model_can_be_whole() -> None:
    for model in MODELS:
        known = model.known(Mode("SPX", "NPS1"))
        assert known is not None, model.name
        assert (known.partitions, known.trust) == (1, Trust.VALIDATED)


def test_there_are_never_more_memory_domains_than_partitions() -> None:
    for model in MODELS:
        for known in model.modes:
            assert int(known.mode.memory.removeprefix("NPS")) <= known.partitions, (model.name, known.mode.name)


def test_a_wider_compute_mode_makes_more_partitions() -> None:
    for model in MODELS:
        by_compute = {known.mode.compute: known.partitions for known in model.modes}
        counts = [by_compute[name] for name in COMPUTE if name in by_compute]
        assert counts == sorted(set(counts)), model.name
    assert MEMORY == ("NPS1", "NPS2", "NPS4")


# ----------------------------------------------------------------------------------------------------------------- the table itself


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(tables).joinpath("amd.json").read_text(encoding="utf-8"))
    return found


def test_the_table_reads_as_one() -> None:
    assert amd.parse(document(), at="amd.json") == MODELS


def test_every_row_of_the_table_says_where_it_is_from() -> None:
    assert [row["name"] for row in document()["gpus"] if not row.get("sources")] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"validated": ["SPX/NPS1", "SPX/NPS1"]}, "MI300X has SPX/NPS1 2 times"),
        ({"allowed": ["SPX/NPS1"]}, "MI300X has SPX/NPS1 2 times"),
        ({"allowed": ["TPX/NPS1"]}, "partitions do not say into how many"),
        ({"allowed": ["CPX-NPS1"]}, "'CPX-NPS1' is not a mode; write the compute mode and the memory mode"),
        ({"partitions": {"SPX": "1"}}, "valid integer"),
        ({"sources": ["hearsay"]}, "there is no source hearsay"),
        ({"name": "MI325X"}, "MI325X is there 2 times"),
        ({"speed": 1}, "there is no such field; leave it out, or use one of name, partitions, validated"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(change: dict[str, Any], says: str) -> None:
    table = document()
    table["gpus"][0] |= change
    with pytest.raises(Refused, match=says):
        amd.parse(table, at="amd.json")


PAGE = (Path(__file__).parents[2] / "docs" / "amd.md").read_text(encoding="utf-8")


def test_the_table_that_the_page_shows_is_one_and_what_is_refused_is_refused_so() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (model,) = amd.parse(yaml.safe_load(text), at="the page")
    assert [known.mode.told for known in model.modes] == ["SPX/NPS1", "DPX/NPS1", "CPX/NPS1"]
    for said, wrong in (
        (r"gpus\[0\].validated\[0\]: 'CPX' is not a mode", text.replace("[SPX/NPS1, DPX/NPS1]", "[CPX]")),
        ("MI999X has CPX/NPS1 2 times; name each mode once", text.replace("[SPX/NPS1, ", "[CPX/NPS1, ")),
        ("partitions do not say into how many that is; add it there", text.replace(", CPX: 16", "")),
    ):
        with pytest.raises(Refused, match=said):
            amd.parse(yaml.safe_load(wrong), at="the page")


def test_the_page_explains_each_reason_for_which_an_installation_is_refused() -> None:
    source = Path(amd_limits.__file__).read_text(encoding="utf-8")
    source = source.partition("# ------")[2].partition("def no_inventory")[0]
    source += Path(by_label.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r'reason="(\w+)"', source))
    assert named >= {"ConfigManagerMissing", "ConfigNotWired", "StopsServices"}
    assert sorted(reason for reason in named if f"`{reason}`" not in PAGE) == []


def test_the_page_shows_the_modes_that_can_be_set_as_the_table_has_them() -> None:
    page = PAGE
    shown: dict[str, list[str]] = {}
    for line in page.splitlines():
        if line.startswith("| MI"):
            models, *modes = (cell.strip() for cell in line.strip("|").split("|"))
            shown |= dict.fromkeys(models.split(", "), modes)
    assert shown == {
        model.name: [
            ", ".join(known.mode.told for known in model.modes if known.trust is trust and known.mode.settable)
            for trust in (Trust.VALIDATED, Trust.ALLOWED)
        ]
        for model in MODELS
    }
