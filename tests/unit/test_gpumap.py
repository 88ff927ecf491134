"""The map shows what slices publish and claims hold, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testbed import gpumap
from testbed.drivers import example
from testbed.gpumap import Gpu, NodeMap, Use

DRIVER: Final = "gpu.example.com"
Object = dict[str, Any]


def published(*, gpus: int = 2, parts: int = 0, shared: bool = False, node: str = "n") -> list[Object]:
    """The slices of a node's pool, as the example driver writes them."""
    contents = example.draw(example.Settings(node=node, devices=gpus, partitions=parts, shared=shared))
    pool = {"name": node, "generation": 1, "resourceSliceCount": len(contents)}
    return [
        {"metadata": {"name": f"{i:05x}-{node}"}, "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **content}}
        for i, content in enumerate(contents)
    ]


def holding(*devices: str, node: str = "n", driver: str = DRIVER) -> list[Object]:
    """A claim for each of these devices."""
    number = count()
    return [
        {
            "metadata": {"name": f"c{next(number)}", "namespace": "default"},
            "status": {"allocation": {"devices": {"results": [{"driver": driver, "pool": node, "device": device}]}}},
        }
        for device in devices
    ]


def drawn(slices: Sequence[Object], claims: Sequence[Object] = (), *, width: int = 80) -> str:
    return gpumap.draw([gpumap.read("n", DRIVER, slices, claims)], width=width, plain=True).plain.splitlines()[-1]


def bars(line: str) -> list[str]:
    return line.split()[1:]


def test_a_whole_gpu_is_one_bar() -> None:
    assert bars(drawn(published(), holding("gpu-1"))) == [".........", "#########"]


def test_a_partition_in_use_fills_its_own_part_of_the_bar() -> None:
    assert bars(drawn(published(parts=2), holding("gpu-1-partition-0"))) == ["....|....", "####|...."]


def test_a_gpu_that_is_used_as_a_whole_shows_no_parts() -> None:
    assert bars(drawn(published(parts=2), holding("gpu-0-full"))) == ["#########", "....|...."]


def test_a_device_that_several_claims_may_have_looks_shared_when_one_has_it() -> None:
    slices = published(gpus=1, parts=2, shared=True)
    assert bars(drawn(slices, holding("gpu-0-partition-1"))) == ["....|%%%%"]
    assert bars(drawn(slices, holding("gpu-0-partition-1", "gpu-0-partition-1"))) == ["....|%%%%"]


def test_claims_of_other_nodes_and_drivers_change_nothing() -> None:
    claims = holding("gpu-0", node="other") + holding("gpu-0", driver="other.example.com")
    assert gpumap.read("n", DRIVER, published(), claims) == gpumap.read("n", DRIVER, published(), [])


def test_a_device_in_use_that_is_not_published_is_named() -> None:
    seen = gpumap.read("n", DRIVER, published(parts=2), holding("gpu-0"))
    assert seen.lost == ("gpu-0",)
    assert "in use but not published: gpu-0" in drawn(published(parts=2), holding("gpu-0"))


def test_half_a_pool_is_not_taken_for_a_pool() -> None:
    slices = published(parts=2)[1:]
    assert "1 of 2 slices of generation 1 are there" in gpumap.read("n", DRIVER, slices, []).problem


def test_a_node_without_slices_says_that_it_publishes_nothing() -> None:
    assert drawn([]).endswith("publishes nothing")


def test_the_legend_tells_of_sharing_only_where_something_is_shared() -> None:
    alone = gpumap.read("n", DRIVER, published(), holding("gpu-0"))
    together = gpumap.read("n", DRIVER, published(shared=True), holding("gpu-0"))
    assert "shared" not in gpumap.legend([alone]).plain
    assert "shared" in gpumap.legend([together]).plain


def test_the_number_of_a_gpu_stands_above_its_bar() -> None:
    seen = gpumap.read("n", DRIVER, published(gpus=8, parts=2), [])
    header, line = gpumap.draw([seen], width=80, plain=True).plain.splitlines()
    assert [header[bar.start() : bar.end()].strip() for bar in re.finditer(r"[.|]+", line)] == list("01234567")


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("width", [60, 80, 100])
def test_equal_parts_are_drawn_equally(parts: int, width: int) -> None:
    for bar in bars(drawn(published(gpus=8, parts=parts), width=width)):
        assert len(set(map(len, bar.split("|")))) == 1, bar


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    seen = gpumap.read("n", DRIVER, published(gpus=8, parts=2), [])
    assert max(map(len, gpumap.draw([seen], width=width, plain=True).plain.splitlines())) <= width


@settings(deadline=None)  # a busy machine may take its time
@given(
    gpus=st.lists(st.lists(st.sampled_from(Use), min_size=1, max_size=8), min_size=1, max_size=16),
    width=st.integers(24, 140),
)
def test_every_part_of_every_gpu_is_drawn_at_any_width(gpus: list[list[Use]], width: int) -> None:
    seen = NodeMap(node="n", gpus=tuple(Gpu(index=i, parts=tuple(parts)) for i, parts in enumerate(gpus)))
    lines = gpumap.draw([seen], width=width, plain=True).plain.splitlines()
    assert max(map(len, lines)) <= width
    found = [bar for line in lines if not line.startswith("GPU") for bar in line[3:].split()]
    assert [[part[0] for part in bar.split("|")] for bar in found] == [
        [gpumap.INK[use].ascii for use in parts] for parts in gpus
    ]
