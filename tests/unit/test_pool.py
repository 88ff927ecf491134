"""Slices are read as the scheduler reads them."""

from typing import Any

import pytest

from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import Device, Pool

GI = 1024**3


def slice_of(name: str, *, generation: int = 1, count: int = 2, **content: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": "d",
            "pool": {"name": "p", "generation": generation, "resourceSliceCount": count},
            **content,
        },
    }


def counters(name: str = "gpu-0", memory: str = "80Gi") -> dict[str, Any]:
    return {"sharedCounters": [{"name": name, "counters": {"memory": {"value": memory}}}]}


def devices(*names: str, cost: str = "40Gi", counter_set: str = "gpu-0", counter: str = "memory") -> dict[str, Any]:
    return {
        "devices": [
            {
                "name": name,
                "capacity": {"memory": {"value": cost}},
                "consumesCounters": [{"counterSet": counter_set, "counters": {counter: {"value": cost}}}],
            }
            for name in names
        ]
    }


def numbered(*names: str, serial: str = "A") -> list[dict[str, Any]]:
    """GPUs with a number of their own each, as drivers publish them."""
    gpus = [{"name": name, "attributes": {"uuid": {"string": f"{serial}-{name}"}}} for name in names]
    return [slice_of("1", count=1, devices=gpus)]


def test_a_pool_is_all_its_slices_in_the_order_of_their_names() -> None:
    pool = offered_by([slice_of("2", **devices("b", "a")), slice_of("1", **counters())])
    assert pool.usable
    assert [d.name for d in pool.devices] == ["b", "a"]
    assert pool.counters == {"gpu-0": {"memory": 80 * GI}}


def test_no_slices_are_an_empty_pool_that_can_be_used() -> None:
    assert offered_by([]) == Pool()
    assert offered_by([]).usable


def test_a_pool_with_a_missing_slice_cannot_be_used() -> None:
    pool = offered_by([slice_of("1", **counters())])
    assert not pool.usable
    assert pool.problem == "1 of 2 slices of generation 1 are there"


def test_only_the_highest_generation_counts() -> None:
    old = [slice_of("1", **counters()), slice_of("2", **devices("old"))]
    half = offered_by([*old, slice_of("3", generation=2, **counters())])
    assert (half.generation, half.usable, half.devices) == (2, False, ())
    done = offered_by([*old, slice_of("3", generation=2, **counters()), slice_of("4", generation=2, **devices("new"))])
    assert (done.usable, [d.name for d in done.devices]) == (True, ["new"])


def test_slices_that_disagree_on_their_number_cannot_be_trusted() -> None:
    pool = offered_by([slice_of("1", count=2, **counters()), slice_of("2", count=3, **devices("a"))])
    assert pool.problem == "2 of 2/3 slices of generation 1 are there"


def test_one_bad_reference_makes_the_whole_pool_useless() -> None:
    unknown_set = offered_by([slice_of("1", **counters()), slice_of("2", **devices("a", counter_set="gpu-1"))])
    assert unknown_set.problem == "device a draws on counter memory of gpu-1, which does not exist"
    unknown_counter = offered_by([slice_of("1", **counters()), slice_of("2", **devices("a", counter="slices"))])
    assert unknown_counter.problem == "device a draws on counter slices of gpu-0, which does not exist"


def test_a_device_or_a_counter_set_that_is_there_twice_makes_the_pool_useless() -> None:
    assert "device a is there twice" in offered_by([slice_of("1", count=1, **devices("a", "a"))]).problem
    assert (
        "counter set gpu-0 is there twice"
        in offered_by([slice_of("1", **counters()), slice_of("2", **counters())]).problem
    )


def device(name: str, memory: int = 40) -> Device:
    return Device(name=name, capacity={"memory": memory * GI}, costs={"gpu-0": {"memory": memory * GI}})


def pool_of(*members: Device) -> Pool:
    return Pool(devices=members, counters={"gpu-0": {"memory": 80 * GI}})


def test_pools_are_equal_by_devices_costs_and_order_whatever_their_generation_and_attributes() -> None:
    labelled = Device(
        **{
            **{f: getattr(device("a"), f) for f in ("name", "capacity", "costs")},
            "attributes": {"uuid": {"string": "x"}},
        }
    )
    later = Pool(devices=(labelled, device("b")), counters={"gpu-0": {"memory": 80 * GI}}, generation=7)
    assert pool_of(device("a"), device("b")).equals(later)
    assert not pool_of(device("b"), device("a")).equals(later), "the order decides what the scheduler takes first"
    assert not pool_of(device("a"), device("b", 20)).equals(later)
    assert not Pool(devices=later.devices, problem="half").equals(later)


def test_the_same_partitions_of_other_bytes_have_the_same_shape() -> None:
    assert pool_of(device("a"), device("b")).same_shape(pool_of(device("b", 39), device("a", 39)))
    assert not pool_of(device("a")).same_shape(pool_of(device("a"), device("b")))


def test_a_device_that_costs_something_else_vanishes_like_one_that_is_gone() -> None:
    now = pool_of(device("full", 80), device("half"), device("gone"))
    then = pool_of(device("half", 20), device("full", 80))
    assert now.vanishing(then) == {"half", "gone"}


def test_a_pool_survives_being_written_down() -> None:
    shared = Device(
        name="s",
        capacity={"memory": GI},
        costs={"gpu-0": {"memory": GI}},
        shared=True,
        attributes={"index": {"int": 0}},
        request_policy={"memory": {"default": "1Gi"}},
    )
    pool = pool_of(device("a"), shared)
    assert Pool.from_json(pool.to_json()) == pool
    assert Pool.from_json("") == Pool()


# ---------------------------------------------------------------------- drivers that choose names, places and sizes themselves


def part(name: str, gpu: str = "gpu-0", kind: str = "half", memory: int = GI) -> Device:
    return Device(name=name, gpu=gpu, kind=kind, capacity={"memory": memory})


def test_nodes_whose_gpus_differ_in_serial_numbers_alone_are_of_one_kind() -> None:
    one, other = (offered_by(numbered("gpu-0", "gpu-1", serial=serial)) for serial in ("A", "B"))
    assert one.equals(other)
    assert one.bare is other.bare
    assert [pool.devices[0].text("uuid") for pool in (one, other, one.bare)] == ["A-gpu-0", "B-gpu-0", ""]
    assert one != other
    assert hash(one) != hash(other), "each look-up of one would go through all others"


def test_a_node_with_another_device_is_of_another_kind() -> None:
    one, other = offered_by(numbered("gpu-0", "gpu-1")), offered_by(numbered("gpu-0", "gpu-2"))
    assert one.bare is not other.bare
    assert one.names == one.gpus == {"gpu-0", "gpu-1"}
    assert other.names == other.gpus == {"gpu-0", "gpu-2"}
    assert one.vanishing(other) == {"gpu-1"}
    assert not one.same_shape(other)


@pytest.mark.parametrize("odd", [{"int": 10**30}, {"string": "\ud800"}, {"string": "é"}])
def test_whatever_stands_in_an_attribute_reads_as_it_was_written(odd: dict[str, Any]) -> None:
    pool = Pool(devices=(Device(name="gpu-0", attributes={"odd": odd}),))
    assert Pool.from_json(pool.to_json()) == pool


def test_where_the_driver_chooses_only_how_many_of_each_kind_a_gpu_has_counts() -> None:
    pool = pool_of(part("a"), part("b"), part("c", kind="quarter"))
    assert pool.equals(pool_of(part("x", kind="quarter", memory=7), part("y"), part("z")))
    assert pool.same_shape(pool_of(part("x", kind="quarter"), part("y"), part("z")))
    assert not pool.equals(pool_of(part("a"), part("c", kind="quarter")))
    assert not pool.equals(pool_of(part("a"), part("b", gpu="gpu-1"), part("c", kind="quarter")))
    assert not pool.equals(Pool())


def test_what_vanishes_there_is_what_is_too_many_of_its_kind() -> None:
    now, then = pool_of(part("a"), part("b"), part("c", gpu="gpu-1")), pool_of(part("x"), part("y", gpu="gpu-1"))
    assert now.vanishing(then) == {"b"}
    assert then.vanishing(now) == set()


def test_a_gpu_of_which_nobody_wants_anything_is_not_compared() -> None:
    wanted = Pool(devices=(part("a"),), kept={"gpu-1": {}})
    assert pool_of(part("a"), part("b", gpu="gpu-1"), part("c", gpu="gpu-1")).equals(wanted)
    assert pool_of(part("a"), part("b", gpu="gpu-1")).vanishing(wanted) == set()
    assert wanted.gpus == {"gpu-0", "gpu-1"}


def test_lost_gpus_are_told_from_others_there_too() -> None:
    wanted = pool_of(part("a"), part("b", gpu="gpu-1"))
    assert pool_of(part("x", gpu="gpu-1")).equals_but_for_lost_gpus(wanted)
    assert not pool_of(part("x", gpu="gpu-1", kind="quarter")).equals_but_for_lost_gpus(wanted)


def test_such_a_pool_reads_as_it_was_written() -> None:
    pool = Pool(devices=(part("a"),), kept={"gpu-1": {"productName": {"string": "G"}}})
    assert Pool.from_json(pool.to_json()) == pool
