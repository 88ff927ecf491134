"""Our allocator beside Kubernetes' own: the same claims, the same cluster, the same devices."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, Final
from zlib import crc32

import pytest
from tests.e2e.oracle import answers, built, differences, shrunk
from tests.properties.allocations import GPU, SELECTORS, Case, case, theirs
from tests.unit.expressions import ATTRIBUTES, CAPACITY, COMES_TO

from gpupartition.domain.allocator.allocate import Allocator
from gpupartition.domain.allocator.pools import Features
from gpupartition.domain.allocator.shares import Held
from gpupartition.domain.asks import alone
from gpupartition.domain.fit import Fits, Floor

CASES: Final = 10_000
IN_TURN: Final = 2_000
SEED: Final = "2026-11"  # whoever looks for surprises takes another one
KEPT: Final = Path(__file__).parent / "allocations"


@pytest.fixture(scope="session")
async def oracle() -> Path:
    return await built()


def _some(number: int) -> list[Case]:
    return [case(Random(f"{SEED}/{each}")) for each in range(number)]  # noqa: S311 - cases, no keys


def test_ten_thousand_cases_come_out_as_kubernetes_has_them(oracle: Path) -> None:
    different = differences(oracle, _some(CASES))
    for found, _, _ in different[:3]:
        small = json.dumps(shrunk(oracle, found))
        (KEPT / f"found-{crc32(small.encode()):08x}.json").write_text(f"{small}\n")
    assert different == [], f"{len(different)} cases differ; the first ones, made small, are in {KEPT}"


def test_the_cases_are_of_all_kinds_that_there_are(oracle: Path) -> None:
    """A comparison of claims that never fit, or always, would prove little."""
    said = [theirs(answer) for answer in answers(oracle, _some(2_000))]
    kinds = Counter("allocated" if isinstance(each, list) else str(each) for each in said)
    assert kinds["allocated"] > 500, kinds
    assert kinds["None"] > 500, kinds
    assert len(kinds) >= 10, kinds
    results = [result for each in said if isinstance(each, list) for claim, _ in each for result in claim]
    assert sum(result[6] for result in results) > 50, "devices that are shared"
    assert sum(result[4] for result in results) > 10, "devices with admin access"


def test_what_is_said_to_fit_one_after_the_other_is_what_kubernetes_gives_one_after_the_other(oracle: Path) -> None:
    """Each claim for itself, in turn: whoever comes later finds what the earlier ones left, by both."""
    cases = _some(IN_TURN)
    held: list[list[Any]] = [list(each["allocated"]) for each in cases]
    given: list[list[Any]] = [[] for _ in cases]
    for turn in range(max(len(each["claims"]) for each in cases)):
        there = [number for number, each in enumerate(cases) if turn < len(each["claims"])]
        asked: list[Case] = [{**cases[n], "claims": [cases[n]["claims"][turn]], "allocated": held[n]} for n in there]
        for number, question, answer in zip(there, asked, answers(oracle, asked), strict=True):
            said = theirs(answer)
            given[number].append([tuple(result[1:4]) for result in said[0][0]] if isinstance(said, list) else None)
            for claim, allocation in zip(question["claims"], answer["allocations"] or (), strict=False):
                held[number].append({**claim, "status": {"allocation": allocation}})
    assert [_in_turn(each) for each in cases] == given
    fits = Counter(result is not None for each in given for result in each)
    assert min(fits[True], fits[False]) > IN_TURN // 4, fits


def _in_turn(asked: Case) -> list[Any]:
    features = Features(**asked["features"])
    held = Held.read(asked["allocated"], consumable_capacity=features.consumable_capacity)
    floor = Floor([asked["node"]], Allocator(asked["slices"], asked["classes"], held, features))
    outcomes = floor.place(list(map(alone, asked["claims"]))).values()
    return [list(each.devices) if each.fits is Fits.YES else None for each in outcomes]


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_case_on_which_a_mistake_shows_comes_out_as_kubernetes_has_it(oracle: Path, path: Path) -> None:
    assert differences(oracle, [json.loads(path.read_text())]) == []


@pytest.mark.parametrize("expression", [*SELECTORS, *(expression for expression, _ in COMES_TO)])
def test_an_expression_selects_a_device_where_kubernetes_has_it_select_it(oracle: Path, expression: str) -> None:
    assert differences(oracle, [_selecting(expression, attributes) for attributes in (ATTRIBUTES, {})]) == []


def _selecting(expression: str, attributes: dict[str, Any]) -> Case:
    capacity = CAPACITY if attributes else {}
    spec = {"driver": GPU, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n1"}
    request = {
        "deviceClassName": "any",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": expression}}],
    }
    return {
        "features": asdict(Features()),
        "node": {"metadata": {"name": "n1"}},
        "slices": [
            {
                "metadata": {"name": "s"},
                "spec": {**spec, "devices": [{"name": "d", "attributes": attributes, "capacity": capacity}]},
            }
        ],
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "allocated": [],
        "claims": [
            {
                "metadata": {"name": "c", "namespace": "x"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}},
            }
        ],
    }
