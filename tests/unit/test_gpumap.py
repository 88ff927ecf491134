"""The map shows what slices publish and claims hold, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, count
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testbed.drivers import example, nvidia_slices
from testbed.drivers.gpus import Gpu as NvidiaGpu
from testbed.drivers.gpus import Instance
from tests.unit.published import config, driver, layout

from gpupartition.cli import drawing
from gpupartition.cli.paint import Line, rendered
from gpupartition.domain import gpumap
from gpupartition.domain.gpumap import Gpu, NodeMap, Part, Use
from gpupartition.domain.pool import Device, Pool
from gpupartition.kube import Object
from gpupartition.names import TAINT_KEY

DRIVER: Final = "gpu.example.com"


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
    return pictured([gpumap.read("n", DRIVER, slices, claims)], width=width)[-1]


def pictured(maps: Sequence[NodeMap], *, width: int = 80) -> list[str]:
    return rendered(drawing.draw(maps, width=width, plain=True), colour=False).splitlines()


def written(line: Line) -> str:
    return rendered([line], colour=False)


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


def test_what_is_only_planned_is_drawn_to_the_scale_of_its_profiles_and_gpus_are_counted_not_spelled() -> None:
    def partition(gpu: int, kind: str) -> Device:
        return Device(name=f"gpu-{gpu}-{kind}", gpu=f"gpu-{gpu}", kind=kind, attributes={"profile": {"string": kind}})

    pool = Pool(devices=(partition(10, "7g.80gb"), partition(2, "1g.10gb"), partition(2, "3g.40gb+me")))
    two, ten = gpumap.of_pool("n", DRIVER, pool).gpus
    assert [(part.device, part.size // 2**30) for part in two.parts] == [
        ("gpu-2-1g.10gb", 10),
        ("gpu-2-3g.40gb+me", 40),
    ]
    assert [part.device for part in ten.parts] == ["gpu-10-7g.80gb"]


def test_what_is_left_of_a_former_layout_is_drawn_as_retiring_while_somebody_has_it_and_behind_the_new_one_else() -> (
    None
):
    slices = published(gpus=1, parts=2)
    devices = [device for body in slices for device in body["spec"].get("devices", ())]
    for device in devices:
        if device["name"].endswith("-1"):
            device["taints"] = [{"key": TAINT_KEY, "value": "retired", "effect": "NoSchedule"}]
    assert bars(drawn(slices, holding("gpu-0-partition-1")))[0] == "....|////"
    (gpu,) = gpumap.read("n", DRIVER, slices, []).gpus
    assert [(part.device, part.use) for part in gpu.parts] == [
        ("gpu-0-partition-0", Use.FREE),
        ("gpu-0-partition-1", Use.TAINTED),
    ]


def test_the_legend_tells_of_sharing_only_where_something_is_shared() -> None:
    alone = gpumap.read("n", DRIVER, published(), holding("gpu-0"))
    together = gpumap.read("n", DRIVER, published(shared=True), holding("gpu-0"))
    assert "shared" not in written(drawing.legend([alone]))
    assert "shared" in written(drawing.legend([together]))


def test_the_number_of_a_gpu_stands_above_its_bar() -> None:
    seen = gpumap.read("n", DRIVER, published(gpus=8, parts=2), [])
    header, line = pictured([seen])
    assert [header[bar.start() : bar.end()].strip() for bar in re.finditer(r"[.|]+", line)] == list("01234567")


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("width", [60, 80, 100])
def test_equal_parts_are_drawn_equally(parts: int, width: int) -> None:
    for bar in bars(drawn(published(gpus=8, parts=parts), width=width)):
        assert len(set(map(len, bar.split("|")))) == 1, bar


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    seen = gpumap.read("n", DRIVER, published(gpus=8, parts=2), [])
    assert max(map(len, pictured([seen], width=width))) <= width


def shared_out(*parts: dict[str, Any], counters: int = 80) -> list[Object]:
    """The slices of one GPU with so many Gi, cut into these parts: name, memory in Gi, and whatever else devices have."""
    amount = {"memory": {"value": f"{counters}Gi"}}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 2}
    devices = []
    for part in parts:
        own = {"memory": {"value": f"{part.pop('memory')}Gi"}}
        consumed = [{"counterSet": "gpu-0", "counters": own}]
        attributes = {"index": {"int": 0}}
        devices.append({"attributes": attributes, "capacity": own, "consumesCounters": consumed, **part})
    contents: list[Object] = [{"sharedCounters": [{"name": "gpu-0", "counters": amount}]}, {"devices": devices}]
    return [
        {"metadata": {"name": f"{i}-n"}, "spec": {"driver": DRIVER, "nodeName": "n", "pool": pool, **content}}
        for i, content in enumerate(contents)
    ]


def test_parts_are_as_long_as_they_are_large() -> None:
    slices = shared_out({"name": "a", "memory": 20}, {"name": "b", "memory": 20}, {"name": "c", "memory": 40})
    (gpu,) = gpumap.read("n", DRIVER, slices, holding("c")).gpus
    assert written(drawing.bar(gpu, 18, plain=True)) == "....|....|########"


def test_what_no_device_has_is_shown_as_not_cut() -> None:
    (gpu,) = gpumap.read("n", DRIVER, shared_out({"name": "a", "memory": 20}), []).gpus
    assert written(drawing.bar(gpu, 9, plain=True)) == "..|------"


def test_devices_that_exclude_one_another_are_not_drawn_side_by_side() -> None:
    halves = [{"name": f"half-{n}", "memory": 40} for n in range(2)]
    quarters = [{"name": f"quarter-{n}", "memory": 20} for n in range(4)]

    def shown(*held: str) -> list[str]:
        slices = shared_out(*({**each} for each in (*halves, *quarters)))
        (gpu,) = gpumap.read("n", DRIVER, slices, holding(*held)).gpus
        return [part.device for part in gpu.parts]

    assert shown() == ["half-0", "half-1"]
    assert shown("quarter-2") == ["half-0", "quarter-0", "quarter-2"]
    assert shown("half-1", "quarter-3") == ["half-1", "quarter-0", "quarter-3"]


def test_a_tainted_device_is_told_from_a_free_one_whoever_tainted_it() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    slices = shared_out({"name": "a", "memory": 40, "taints": [taint]}, {"name": "b", "memory": 40})

    def uses(*rules: Object, held: Sequence[str] = ()) -> list[Use]:
        (gpu,) = gpumap.read("n", DRIVER, slices, holding(*held), rules=rules).gpus
        return [part.use for part in gpu.parts]

    def rule(effect: str = "NoSchedule", **selector: str) -> Object:
        return {"spec": {"deviceSelector": {"driver": DRIVER, **selector}, "taint": {"key": "k", "effect": effect}}}

    assert uses() == [Use.TAINTED, Use.FREE]
    assert uses(rule(pool="n")) == [Use.TAINTED, Use.TAINTED]
    assert uses(rule(pool="n", device="b")) == [Use.TAINTED, Use.TAINTED]
    assert uses(rule(pool="other"), rule(effect="None", pool="n"), rule(device="c")) == [Use.TAINTED, Use.FREE]
    assert uses(held=["a"]) == [Use.USED, Use.FREE]


def mig(*instances: Instance, product: str = "NVIDIA A100-SXM4-40GB") -> list[Object]:
    """The slices of a node with one GPU that is cut like this."""
    contents = nvidia_slices.draw("n", [NvidiaGpu(product=product, mig=True, instances=instances)])
    pool = {"name": "n", "generation": 1, "resourceSliceCount": len(contents)}
    return [
        {
            "metadata": {"name": f"{i}-n"},
            "spec": {"driver": nvidia_slices.DRIVER, "nodeName": "n", "pool": pool, **content},
        }
        for i, content in enumerate(contents)
    ]


def test_mig_partitions_are_drawn_in_the_memory_slices_where_they_lie() -> None:
    slices = mig(Instance(profile="1g.5gb", start=2), Instance(profile="3g.20gb", start=4))
    (device,) = [d["name"] for s in slices for d in s["spec"]["devices"] if "3g" in d["name"]]
    claims = holding(device, driver=nvidia_slices.DRIVER)
    (gpu,) = gpumap.read("n", nvidia_slices.DRIVER, slices, claims).gpus
    assert [(part.use, part.profile, part.slots) for part in gpu.parts] == [
        (Use.UNCUT, "", (0, 1)),
        (Use.FREE, "1g.5gb", (2,)),
        (Use.UNCUT, "", (3,)),
        (Use.USED, "3g.20gb", (4, 5, 6, 7)),
    ]
    assert written(drawing.bar(gpu, 11, plain=True)) == "--|.|-|####"


def test_a_gpu_with_fewer_memory_slices_is_drawn_with_these() -> None:
    slices = mig(Instance(profile="2g.12gb", start=0), product="NVIDIA A30")
    (gpu,) = gpumap.read("n", nvidia_slices.DRIVER, slices, [], memory_slices={"NVIDIA A30": 4}.__getitem__).gpus
    assert [part.size for part in gpu.parts] == [2, 2]


def test_gpus_that_the_driver_does_not_number_are_numbered_as_they_are_plugged_in() -> None:
    gpus = [
        NvidiaGpu(product="NVIDIA L40S"),
        NvidiaGpu(product="NVIDIA A30", mig=True, instances=(Instance(profile="4g.24gb", start=0),)),
    ]
    (content,) = nvidia_slices.draw("n", gpus)
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    slices = [
        {"metadata": {"name": "s"}, "spec": {"driver": nvidia_slices.DRIVER, "nodeName": "n", "pool": pool, **content}}
    ]
    found = gpumap.read("n", nvidia_slices.DRIVER, slices, []).gpus
    assert [(gpu.index, gpu.product) for gpu in found] == [(0, "NVIDIA L40S"), (1, "NVIDIA A30")]


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=12), total=st.integers(1, 200))
def test_a_bar_is_as_long_as_asked_and_no_part_of_it_vanishes(sizes: list[int], total: int) -> None:
    found = drawing.shares(sizes, total)
    assert sum(found) == max(total, len(sizes))
    assert min(found) >= 1
    for one, other in combinations(range(len(sizes)), 2):
        if sizes[one] > sizes[other]:
            assert found[one] >= found[other] - 1, "a larger part is not drawn shorter, but for rounding"


@settings(deadline=None)  # a busy machine may take its time
@given(
    gpus=st.lists(st.lists(st.sampled_from(Use), min_size=1, max_size=8), min_size=1, max_size=16),
    width=st.integers(24, 140),
)
def test_every_part_of_every_gpu_is_drawn_at_any_width(gpus: list[list[Use]], width: int) -> None:
    cut = [tuple(Part(use=use) for use in parts) for parts in gpus]
    seen = NodeMap(node="n", gpus=tuple(Gpu(index=i, parts=parts) for i, parts in enumerate(cut)))
    lines = pictured([seen], width=width)
    assert max(map(len, lines)) <= width
    found = [bar for line in lines if not line.startswith("GPU") for bar in line[3:].split()]
    assert [[part[0] for part in bar.split("|")] for bar in found] == [
        [drawing.INK[use].ascii for use in parts] for parts in gpus
    ]


def test_partitions_that_are_published_with_counters_alone_are_drawn_where_they_lie() -> None:
    wanted = layout("Profiles", profiles=[{"name": "3g.40gb", "count": 1}, {"name": "1g.10gb", "count": 2}])
    of = driver({"count": 1, "product": "H100-80GB", "memory": "80Gi"})
    (gpu,) = gpumap.of_pool("node", "gpu.example.org", config(wanted, of=of).pool).gpus
    assert [(part.profile, part.slots) for part in gpu.parts if part.device] == [
        ("1g.10gb", (0,)),
        ("1g.10gb", (1,)),
        ("3g.40gb", (4, 5, 6, 7)),
    ]


def test_an_amount_that_is_negative_makes_no_part_of_no_size() -> None:
    cost = {"counterSet": "gpu-0", "counters": {"memory": {"value": "-80Gi"}}}
    whole = {"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}
    where = {"driver": "d", "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 2}}
    contents: list[dict[str, Any]] = [
        {"devices": [{"name": "x", "consumesCounters": [cost]}]},
        {"sharedCounters": [whole]},
    ]
    slices = [{"metadata": {"name": f"s-{n}"}, "spec": {**where, **each}} for n, each in enumerate(contents)]
    drawn = gpumap.read("n", "d", slices, [])
    assert [part.size for gpu in drawn.gpus for part in gpu.parts] == [1]
