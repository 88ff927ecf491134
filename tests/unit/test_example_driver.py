"""What the simulated example driver publishes, and how its pool moves from layout to layout."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testbed.drivers.example import BadEnvironmentError, Settings, draw, quantity
from testbed.drivers.slices import Pool, Writes, compare

from gpupartition.kube import Object

POOL = Pool(driver="gpu.example.com", node="n1", node_uid="uid-of-n1", name="n1")


def settings(*, devices: int = 8, partitions: int = 0, shared: bool = False) -> Settings:
    return Settings(node="n1", devices=devices, partitions=partitions, shared=shared)


# ── drawings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def drawing(slices: list[Object]) -> str:
    """One line per slice's kind, counter set and device: name, memory/compute, what it takes from where, its own attributes."""
    lines = []
    for content in slices:
        lines += [f"{each['name']}: {size(each['counters'])}" for each in content.get("sharedCounters", ())]
        for device in content.get("devices", ()):
            costs = [
                f"takes {size(each['counters'])} of {each['counterSet']}" for each in device.get("consumesCounters", ())
            ]
            own = [
                f"{name}={next(iter(value.values()))}"
                for name, value in device["attributes"].items()
                if name not in {"uuid", "model", "driverVersion"}
            ]
            lines.append(" | ".join((f"{device['name']}: {size(device['capacity'])}", *costs, " ".join(own))))
        lines.append("-" * 8)
    return "\n".join(lines[:-1])


def size(amounts: Object) -> str:
    return f"{amounts['memory']['value']}/{amounts['compute']['value']}"


def lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_without_partitions_every_gpu_is_one_plain_device() -> None:
    assert drawing(draw(settings(devices=3))) == lines("""
        gpu-0: 80Gi/100 | index=0
        gpu-1: 80Gi/100 | index=1
        gpu-2: 80Gi/100 | index=2
    """)


def test_halves_are_listed_before_the_whole_gpu_and_all_take_from_its_counters() -> None:
    assert drawing(draw(settings(devices=2, partitions=2))) == lines("""
        gpu-0-counters: 80Gi/100
        gpu-1-counters: 80Gi/100
        --------
        gpu-0-partition-0: 40Gi/50 | takes 40Gi/50 of gpu-0-counters | index=0 partition=0 partitionable=True
        gpu-0-partition-1: 40Gi/50 | takes 40Gi/50 of gpu-0-counters | index=0 partition=1 partitionable=True
        gpu-0-full: 80Gi/100 | takes 80Gi/100 of gpu-0-counters | index=0 partitionable=True full=True
        gpu-1-partition-0: 40Gi/50 | takes 40Gi/50 of gpu-1-counters | index=1 partition=0 partitionable=True
        gpu-1-partition-1: 40Gi/50 | takes 40Gi/50 of gpu-1-counters | index=1 partition=1 partitionable=True
        gpu-1-full: 80Gi/100 | takes 80Gi/100 of gpu-1-counters | index=1 partitionable=True full=True
    """)


@pytest.mark.parametrize(
    ("partitions", "part", "devices"), [(3, "28633115306/33", 32), (4, "20Gi/25", 40), (7, "12271335131/14", 64)]
)
def test_a_part_is_the_gpu_divided_without_remainder(partitions: int, part: str, devices: int) -> None:
    counters, published = draw(settings(partitions=partitions))
    assert len(counters["sharedCounters"]) == 8
    assert len(published["devices"]) == devices
    assert size(published["devices"][0]["capacity"]) == part
    assert size(published["devices"][0]["consumesCounters"][0]["counters"]) == part


def test_a_shared_device_says_in_which_steps_it_can_be_shared() -> None:
    half = draw(settings(devices=1, partitions=2, shared=True))[1]["devices"][0]
    assert half["allowMultipleAllocations"] is True
    assert half["capacity"] == {
        "memory": {
            "value": "40Gi",
            "requestPolicy": {"default": "40Gi", "validRange": {"min": "1Gi", "max": "40Gi", "step": "1Gi"}},
        },
        "compute": {
            "value": "50",
            "requestPolicy": {"default": "50", "validRange": {"min": "1", "max": "50", "step": "1"}},
        },
    }


def test_a_device_that_is_not_shared_says_so_and_has_no_policy() -> None:
    for device in draw(settings())[0]["devices"] + draw(settings(partitions=2))[1]["devices"]:
        assert device["allowMultipleAllocations"] is False
        assert all("requestPolicy" not in capacity for capacity in device["capacity"].values())


def test_a_gpu_keeps_its_identity_over_layouts_and_differs_from_every_other() -> None:
    def identities(slices: list[Object]) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for device in slices[-1]["devices"]:
            attributes = device["attributes"]
            found.setdefault(attributes["index"]["int"], set()).add(attributes["uuid"]["string"])
        return found

    plain = identities(draw(settings()))
    assert identities(draw(settings(partitions=4))) == plain
    assert all(len(each) == 1 for each in plain.values())
    assert len(set.union(*plain.values())) == 8
    assert identities(draw(Settings(node="n2"))) != plain


@given(st.integers(0, 1 << 50))
def test_a_quantity_says_the_same_amount_with_the_largest_suffix(amount: int) -> None:
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
    text = quantity(amount)
    number, unit = (int(text[:-2]), units[text[-2:]]) if text[-2:] in units else (int(text), 1)
    assert number * unit == amount
    assert amount == 0 or not any(amount % other == 0 for other in units.values() if other > unit)


# ── environment ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_environment_is_read_as_the_real_driver_reads_it() -> None:
    env = {"NODE_NAME": "n1", "DRIVER_NAME": "g.dev", "NUM_DEVICES": "4", "GPU_PARTITIONS": "2"}
    assert Settings.from_env(env) == Settings(node="n1", driver="g.dev", devices=4, partitions=2)
    assert Settings.from_env({"NODE_NAME": "n1", "GPU_ALLOW_MULTIPLE_ALLOCATIONS": "T"}).shared
    assert Settings.from_env({"NODE_NAME": "n1"}) == Settings(node="n1")


def test_a_broken_environment_is_told_with_every_problem_at_once() -> None:
    env = {"NUM_DEVICES": "eight", "GPU_PARTITIONS": "2.5", "GPU_ALLOW_MULTIPLE_ALLOCATIONS": "maybe"}
    with pytest.raises(BadEnvironmentError) as told:
        Settings.from_env(env)
    for name in ("NUM_DEVICES", "GPU_PARTITIONS", "GPU_ALLOW_MULTIPLE_ALLOCATIONS", "NODE_NAME"):
        assert name in str(told.value)


# ── the pool over time ────────────────────────────────────────────────────────────────────────────────────────────────


def store(observed: list[Object], writes: Writes) -> list[Object]:
    """What an API server that accepts everything holds after these writes."""
    kept = {item["metadata"]["name"]: item for item in observed}
    for item in writes.delete:
        del kept[item["metadata"]["name"]]
    for item in writes.update:
        kept[item["metadata"]["name"]] = item
    for item in writes.create:
        name = next(
            name for number in itertools.count() if (name := f"{item['metadata']['generateName']}{number}") not in kept
        )
        kept[name] = {**item, "metadata": {**item["metadata"], "name": name}}
    return list(kept.values())


def published(*layouts: Settings) -> list[Object]:
    """The slices after the driver ran with these layouts, one after the other."""
    observed: list[Object] = []
    for layout in layouts:
        observed = store(observed, compare(observed, draw(layout), POOL))
    return observed


def numbers(observed: list[Object]) -> list[tuple[int, int]]:
    pools = [item["spec"]["pool"] for item in observed]
    return [(pool["generation"], pool["resourceSliceCount"]) for pool in pools]


def count(writes: Writes) -> tuple[int, int, int]:
    return len(writes.delete), len(writes.update), len(writes.create)


def test_a_new_pool_begins_at_generation_one_and_belongs_to_its_node() -> None:
    counters, devices = published(settings(partitions=2))
    assert numbers([counters, devices]) == [(1, 2), (1, 2)]
    assert counters["metadata"]["name"].startswith("00000-gpu.example.com-n1-")
    assert devices["metadata"]["name"].startswith("00001-gpu.example.com-n1-")
    assert devices["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1", "controller": True}
    ]
    assert "devices" not in counters["spec"]
    assert "sharedCounters" not in devices["spec"]


@pytest.mark.parametrize(
    ("before", "after", "writes", "generation"),
    [
        pytest.param(2, 2, (0, 0, 0), 1, id="the same layout writes nothing"),
        pytest.param(2, 4, (0, 1, 0), 1, id="other parts are one update in place"),
        pytest.param(0, 2, (0, 1, 1), 2, id="from plain to parts a slice is added, so the generation goes up"),
        pytest.param(2, 0, (1, 1, 0), 1, id="from parts to plain a slice is dropped, and the generation stays"),
    ],
)
def test_a_layout_change_writes_no_more_than_it_must(
    before: int, after: int, writes: tuple[int, int, int], generation: int
) -> None:
    observed = published(settings(partitions=before))
    assert count(compare(observed, draw(settings(partitions=after)), POOL)) == writes
    slices = len(draw(settings(partitions=after)))
    assert (
        numbers(published(settings(partitions=before), settings(partitions=after))) == [(generation, slices)] * slices
    )


def test_two_changed_slices_need_a_new_generation() -> None:
    observed = published(settings(devices=8, partitions=2), settings(devices=4, partitions=2))
    assert numbers(observed) == [(2, 2), (2, 2)]


def test_a_lost_slice_comes_back_under_a_new_generation() -> None:
    counters, _ = published(settings(partitions=2))
    writes = compare([counters], draw(settings(partitions=2)), POOL)
    assert count(writes) == (0, 1, 1)
    assert numbers(store([counters], writes)) == [(2, 2), (2, 2)]


def test_slices_that_fit_no_place_are_deleted_whoever_made_them() -> None:
    observed = published(settings(partitions=2))
    stray = {"metadata": {"name": "hand-made"}, "spec": observed[0]["spec"]}
    twin = {"metadata": {"name": "00001-gpu.example.com-n1-zzzzz"}, "spec": observed[1]["spec"]}
    beyond = {"metadata": {"name": "00002-gpu.example.com-n1-0"}, "spec": observed[1]["spec"]}
    writes = compare([*observed, stray, twin, beyond], draw(settings(partitions=2)), POOL)
    assert sorted(item["metadata"]["name"] for item in writes.delete) == [
        "00001-gpu.example.com-n1-zzzzz",
        "00002-gpu.example.com-n1-0",
        "hand-made",
    ]
    assert count(writes)[1:] == (0, 0)


def test_a_slice_of_an_older_generation_is_replaced_by_a_new_one() -> None:
    """So it comes that nine GPUs in halves lose the whole pool: only the devices were rewritten, the old counters are now obsolete."""
    counters, devices = published(settings(partitions=2))
    devices["spec"] = {**devices["spec"], "pool": {**devices["spec"]["pool"], "generation": 2}}
    writes = compare([counters, devices], draw(settings(devices=9, partitions=2)), POOL)
    assert writes.delete == [counters]
    assert count(writes) == (1, 1, 1)


LAYOUTS = st.builds(settings, devices=st.integers(1, 8), partitions=st.integers(0, 7), shared=st.booleans())


@given(st.lists(LAYOUTS, min_size=1, max_size=4), st.data())
def test_whatever_was_there_one_turn_is_enough(layouts: list[Settings], data: st.DataObject) -> None:
    observed = published(*layouts[:-1])
    lost = data.draw(st.sets(st.sampled_from([item["metadata"]["name"] for item in observed]))) if observed else set()
    observed = [item for item in observed if item["metadata"]["name"] not in lost]
    wanted = draw(layouts[-1])
    after = store(observed, compare(observed, wanted, POOL))
    assert count(compare(after, wanted, POOL)) == (0, 0, 0)
    assert len({item["spec"]["pool"]["generation"] for item in after}) == 1
