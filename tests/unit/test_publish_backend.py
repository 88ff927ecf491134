"""Pools that the operator publishes itself: which devices, in which slices, written in which order."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.published import BACKEND, H100, Server, choices, config, driver, equal, layout, node

from gpupartition.api.v1alpha1 import Assigned, DriverSpec
from gpupartition.backends.probe import dropped, probe
from gpupartition.backends.slices import slice_name
from gpupartition.domain.backend import Cluster, Config
from gpupartition.domain.counters import slug
from gpupartition.domain.effects import Effect
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.products import plain_product
from gpupartition.names import DRAWING, FINGERPRINT, LAYOUT, STEP

GI = 1024**3

# Kept release by release: whoever changes one of these rewrites the slices of every node.
GOLDEN = {"Whole": "938319ce15f68e27", "Equal": "b6f0cc45702aa5a1", "Choices": "7ae64631ff41e9f4"}

# A GPU with four memory slices: a quarter fits anywhere, a half at two places; one more slice feeds the copy engine of one `+me`.
SLICED = {
    "count": 1,
    "product": "A30",
    "memory": "24Gi",
    "counters": {"memory": "24Gi", "slice-0": "1", "slice-1": "1", "slice-2": "1", "slice-3": "1", "engines": "1"},
    "profiles": [
        {
            "name": "2g.12gb",
            "capacity": {"memory": "12Gi"},
            "placements": [
                {"counters": {"memory": "12Gi", "slice-0": "1", "slice-1": "1"}},
                {"counters": {"memory": "12Gi", "slice-2": "1", "slice-3": "1"}},
            ],
        },
        {
            "name": "1g.6gb",
            "capacity": {"memory": "6Gi"},
            "placements": [{"counters": {"memory": "6Gi", f"slice-{n}": "1"}} for n in range(4)],
        },
        {
            "name": "1g.6gb+me",
            "capacity": {"memory": "6Gi"},
            "placements": [{"counters": {"memory": "6Gi", "slice-0": "1", "engines": "1"}}],
        },
    ],
}


def problems(*layouts: Mapping[str, Any], **where: Any) -> list[Problem]:
    with pytest.raises(Refused) as refused:
        config(*layouts, **where)
    return list(refused.value.problems)


def drawing(pool: Pool) -> list[str]:
    """One line per device: its name, its memory, and what it takes."""
    lines = []
    for device in pool.devices:
        ((counter_set, cost),) = device.costs.items()
        taken = " ".join(f"{name}={amount // GI}Gi" if name == "memory" else name for name, amount in cost.items())
        lines.append(f"{device.name} {device.capacity['memory'] // GI}Gi: {counter_set} {taken}")
    return lines


# ----------------------------------------------------------------------------------------------------------------------- the pool


def test_a_whole_gpu_draws_on_a_counter_set_too_so_that_it_can_outlive_a_change() -> None:
    assert drawing(config(layout()).pool) == [
        "gpu-0-full 80Gi: gpu-0 memory=80Gi",
        "gpu-1-full 80Gi: gpu-1 memory=80Gi",
    ]


def test_equal_parts_come_before_the_whole() -> None:
    assert drawing(config(equal(2)).pool)[:3] == [
        "gpu-0-1of2 40Gi: gpu-0 memory=40Gi",
        "gpu-0-2of2 40Gi: gpu-0 memory=40Gi",
        "gpu-0-full 80Gi: gpu-0 memory=80Gi",
    ]


def test_the_whole_can_be_left_out() -> None:
    assert [d.name for d in config(equal(2, offerWhole=False)).pool.devices][:2] == ["gpu-0-1of2", "gpu-0-2of2"]
    assert len(config(equal(2, offerWhole=False)).pool.devices) == 4


def test_choices_are_tried_smallest_first_and_where_they_strand_least() -> None:
    pool = config(choices("2g.12gb", "1g.6gb", "1g.6gb+me"), of=driver(SLICED)).pool
    everything = "memory=24Gi slice-0 slice-1 slice-2 slice-3 engines"
    assert drawing(pool) == [
        # Slice 0 comes last: it is the only place of the profile with the engine.
        "gpu-0-1g--6gb-1 6Gi: gpu-0 memory=6Gi slice-1",
        "gpu-0-1g--6gb-2 6Gi: gpu-0 memory=6Gi slice-2",
        "gpu-0-1g--6gb-3 6Gi: gpu-0 memory=6Gi slice-3",
        "gpu-0-1g--6gb-0 6Gi: gpu-0 memory=6Gi slice-0",
        "gpu-0-1g--6gb-plus-me-0 6Gi: gpu-0 memory=6Gi slice-0 engines",
        "gpu-0-2g--12gb-1 12Gi: gpu-0 memory=12Gi slice-2 slice-3",
        "gpu-0-2g--12gb-0 12Gi: gpu-0 memory=12Gi slice-0 slice-1",
        f"gpu-0-full 24Gi: gpu-0 {everything}",
    ]


def test_devices_say_which_gpu_they_are_of_and_what_they_are() -> None:
    assert config(equal(2)).pool.devices[0].attributes == {
        "index": {"int": 0},
        "productName": {"string": "H100"},
        "profile": {"string": "1of2"},
    }


def test_the_first_layout_that_matches_a_gpu_wins() -> None:
    of = driver({**H100, "count": 3}, {"count": 1, "product": "L4", "memory": "24Gi"})
    pool = config(
        {**equal(4), "match": {"indexes": [1]}},
        {**equal(2), "match": {"products": ["H100"], "indexes": [1, 2, 3]}},
        layout(),
        of=of,
    ).pool
    counts = [sum(d.name.startswith(f"gpu-{gpu}-") for d in pool.devices) for gpu in range(4)]
    assert counts == [1, 5, 3, 1], "GPU 3 is an L4: both lists must hold"


def test_a_product_that_no_gpu_is_called_is_told_and_others_are_not() -> None:
    found = config({**equal(2), "match": {"products": ["H100", "A100"]}}, layout())
    assert found.unmatched == {"A100"}
    assert found.products == {"H100"}


@pytest.mark.parametrize("label", ["H100", "H100-SHARED", "H100-MIG-1g.10gb", "H100-MIG-1g.10gb-SHARED"])
def test_products_are_compared_without_what_a_layout_appends_to_them(label: str) -> None:
    assert plain_product(label) == "H100"


def test_profiles_whose_names_differ_in_a_sign_have_other_slugs() -> None:
    names = ["1g.10gb+me", "1g.10gb-me", "1g.10gbme", "1g-10gb+me", "1G.10gb+me", "1g_10gb+me", "1g..10gb", "1g.10gb"]
    assert len({slug(name) for name in names}) == len(names)
    assert slug("1g.10gb+me") == "1g--10gb-plus-me"


@pytest.mark.parametrize(
    ("kind", "group", "wanted"),
    [("Whole", SLICED, layout()), ("Equal", H100, equal(2)), ("Choices", SLICED, choices("1g.6gb", "2g.12gb"))],
)
def test_fingerprints_stay_what_they_were_in_the_last_release(
    kind: str, group: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert config(wanted, of=driver(group)).fingerprint == GOLDEN[kind]


def test_a_fingerprint_does_not_depend_on_how_quantities_are_spelt() -> None:
    spelt = driver({**H100, "memory": "81920Mi"})
    assert config(equal(2), of=spelt).fingerprint == config(equal(2)).fingerprint


def test_sharing_becomes_a_request_policy() -> None:
    asked = {"memory": {"default": "2048Mi", "min": "1Gi", "max": "40Gi", "step": "1Gi"}}
    pool = config(equal(2) | {"sharing": {"mode": "Shared", "capacity": asked}}).pool
    assert all(d.shared for d in pool.devices)
    assert pool.devices[0].request_policy == {
        "memory": {"default": "2Gi", "validRange": {"min": "1Gi", "max": "40Gi", "step": "1Gi"}}
    }


# ------------------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("capacity", "at", "says"),
    [
        ({"min": "1Gi"}, ".default", "is missing"),
        ({"default": "1Gi", "step": "1Gi"}, ".min", "is missing"),
        ({"default": "1Gi", "min": "2Gi"}, ".default", "1Gi is less than min"),
        ({"default": "3Gi", "min": "1Gi", "max": "2Gi"}, ".default", "3Gi is more than max"),
        (
            {"default": "1Gi", "min": "1Gi", "max": "41Gi"},
            ".max",
            "41Gi is too much: a device of profile 1of2 has 40Gi",
        ),
        ({"default": "41Gi"}, ".default", "41Gi is too much"),
        (
            {"default": "1536Mi", "min": "1Gi", "step": "1Gi"},
            ".default",
            "1536Mi is not min and a whole number of steps of 1Gi",
        ),
        ({"default": "1Gi", "min": "1Gi", "max": "2560Mi", "step": "1Gi"}, ".max", "whole number of steps"),
        ({"default": "1Gi", "min": "1Gi", "step": "40Gi"}, ".step", "min and one step of 40Gi are too much"),
    ],
)
def test_a_request_policy_that_the_api_would_reject_is_refused_beforehand(
    capacity: dict[str, str], at: str, says: str
) -> None:
    shared = {"mode": "Shared", "capacity": {"memory": capacity}}
    found = problems(equal(2, offerWhole=False) | {"sharing": shared})
    assert f"spec.layouts[0].sharing.capacity[memory]{at}" in {p.at for p in found}
    assert any(says in str(p) for p in found), found


def test_a_capacity_that_no_device_has_is_refused() -> None:
    shared = {"mode": "Shared", "capacity": {"cores": {"default": "1"}}}
    (problem,) = problems(layout() | {"sharing": shared})
    assert (problem.at, problem.fix) == ("spec.layouts[0].sharing.capacity[cores]", "they have memory")


@pytest.mark.parametrize(
    ("wanted", "reason", "fix"),
    [
        (choices("3g"), "UnknownProfile", "use one of 1g.6gb, 1g.6gb+me, 2g.12gb"),
        (
            {**layout(), "match": {"products": ["H200"]}},
            "GpuUnmatched",
            "{name: rest, match: {all: true}, type: Whole}",
        ),
        (equal(2), "TooManyParts", "use type Whole"),
    ],
)
def test_what_cannot_be_published_is_refused_with_what_can(wanted: dict[str, Any], reason: str, fix: str) -> None:
    (problem,) = problems(wanted, of=driver(SLICED))
    assert problem.reason == reason
    assert fix in problem.fix


def test_equal_gpus_have_one_problem_not_one_each() -> None:
    (problem,) = problems({**layout(), "match": {"indexes": [0]}}, of=driver({**H100, "count": 12}))
    assert "GPU 1 (H100)" in problem.why


def test_more_devices_than_a_record_can_hold_are_refused() -> None:
    assert [p.reason for p in problems(equal(63), of=driver({**H100, "count": 64}))] == ["TooManyDevices"]


def test_a_product_that_a_device_has_no_room_for_is_refused_in_bytes() -> None:
    assert config(layout(), of=driver({**H100, "product": "Ü" * 32})).pool.devices
    (problem,) = problems(layout(), of=driver({**H100, "product": "Ü" * 33}))
    assert problem.reason == "ProductTooLong"
    assert "has 66 bytes, and a device can have 64" in problem.why


def profile(**counters: str) -> dict[str, Any]:
    half = {"name": "half", "capacity": {"memory": "40Gi"}, "placements": [{"counters": counters}]}
    return {**H100, "counters": {"memory": "80Gi"}, "profiles": [half]}


@pytest.mark.parametrize(
    ("group", "at", "why"),
    [
        ({**H100, "memory": "80GB"}, "[0].memory", "is not a Kubernetes quantity"),
        ({**H100, "memory": "0"}, "[0].memory", "0 is not more than 0"),
        (profile(memory="90Gi"), "[0].profiles[0].placements[0].counters[memory]", "takes 90Gi of memory, and the GPU has 80Gi"),
        (profile(slices="1"), "[0].profiles[0].placements[0].counters[slices]", "has no counter slices"),
        (profile(memory="20Gi"), "[0].profiles[0].placements[0].counters[memory]", "would be sold twice"),
    ],
)  # fmt: skip
def test_an_inventory_that_makes_no_sense_is_told_before_any_policy(group: dict[str, Any], at: str, why: str) -> None:
    (problem,) = BACKEND.preflight(driver(group), Cluster())
    assert (problem.reason, problem.at) == ("InventoryInvalid", f"spec.publish.inventory.gpus{at}")
    assert why in problem.why


def test_a_server_that_drops_fields_is_not_published_to() -> None:
    (problem,) = BACKEND.preflight(driver(), Cluster(dropped=["spec.sharedCounters"]))
    assert problem.reason == "FeatureGateOff"
    assert "spec.sharedCounters" in problem.why


def test_whoever_skips_what_plugins_do_says_so_in_every_slice() -> None:
    skips = DriverSpec.model_validate(
        {"type": "Publish", "publish": {"driverName": "a", "inventory": {"gpus": [H100]}, "nodeOperations": "Skip"}}
    )
    server = Server(skips)
    list(server.assign(config(equal(2), of=skips).assigned(), "s1"))
    assert {tuple(s["spec"]["skipNodeOperations"]) for s in server.slices.values()} == {("*",)}
    again = Server(driver())
    list(again.assign(config(equal(2)).assigned(), "s1"))
    assert not any("skipNodeOperations" in s["spec"] for s in again.slices.values())


def test_a_server_that_would_have_pods_wait_for_a_plugin_is_not_published_to() -> None:
    (problem,) = BACKEND.preflight(driver(), Cluster(dropped=["spec.skipNodeOperations"]))
    assert "DRAOptionalNodeOperations" in problem.fix


LABELS = {"count": "gpu/count", "product": "gpu/product", "memory": "gpu/memory"}


def test_the_inventory_may_stand_in_labels_of_the_node() -> None:
    labels = {"gpu/count": "2", "gpu/product": "H100-SHARED", "gpu/memory": "81920"}
    of_labels = config(equal(2), of=driver(nodeLabels=LABELS), on=node(**labels))
    assert of_labels.fingerprint == config(equal(2)).fingerprint, "a bare number is MiB"


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({}, ["gpu/count is missing", "gpu/product is missing", "gpu/memory is missing"]),
        ({"gpu/count": "no", "gpu/product": "A", "gpu/memory": "1Gi"}, ["gpu/count is 'no' instead of a number"]),
        ({"gpu/count": "1", "gpu/product": "A", "gpu/memory": "80GB"}, ["gpu/memory is '80GB' instead of a quantity"]),
        ({"gpu/count": "1", "gpu/product": "A", "gpu/memory": "0"}, ["gpu/memory is not more than 0"]),
    ],
)
def test_a_node_whose_labels_do_not_tell_is_named_with_the_label(labels: dict[str, str], told: list[str]) -> None:
    found = problems(layout(), of=driver(nodeLabels=LABELS), on=node(**labels))
    assert {(p.reason, p.at) for p in found} == {("NoInventory", "node n1")}
    assert len(found) == len(told)
    assert all(text in problem.why for text, problem in zip(told, found, strict=True))


# ----------------------------------------------------------------------------------------------------------------- slices and writes


def kinds(effects: Sequence[Effect]) -> list[str]:
    return [type(e).__name__ for e in effects]


NOTHING = Assigned()


def test_twelve_gpus_need_two_slices_of_counters_and_sixty_four_devices_fit_into_one() -> None:
    server = Server(driver({**H100, "count": 12}))
    list(server.assign(config(equal(5), of=server.driver).assigned(), "s"))
    content = [
        (len(s["spec"].get("sharedCounters", ())), len(s["spec"].get("devices", ()))) for s in server.slices.values()
    ]
    assert content == [(8, 0), (4, 0), (0, 64), (0, 8)]


def test_a_slice_says_whose_it_is_and_the_anchor_what_was_asked() -> None:
    server = Server()
    wanted = config(equal(2))
    list(server.assign(wanted.assigned(), "step-1", generation=5))
    anchor = server.anchor
    assert sorted(anchor["metadata"]["annotations"]) == [FINGERPRINT, STEP]
    assert anchor["metadata"]["annotations"][FINGERPRINT].startswith(wanted.fingerprint)
    drawing = [each["metadata"]["annotations"].get(DRAWING) for each in server.slices.values()]
    assert drawing == [None, "6"], "of two GPUs the halves and the wholes"
    for each in server.slices.values():
        assert each["metadata"]["labels"] == {LAYOUT: wanted.fingerprint}
        assert each["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}
        ]
        assert each["spec"]["nodeName"] == "n1"
        assert each["spec"]["pool"] == {"name": "gpu.example.org/n1", "generation": 5, "resourceSliceCount": 2}


def test_names_of_slices_never_meet_however_driver_and_node_are_called() -> None:
    assert slice_name("a", "b-c", 0) != slice_name("a-b", "c", 0)
    assert slice_name("a", "n" * 253, 0) != slice_name("a", "n" * 252 + "m", 0)
    assert len(slice_name("d" * 63, "n" * 253, 99999)) <= 253


def test_the_anchor_goes_first_and_until_the_last_slice_the_pool_cannot_be_used() -> None:
    server = Server()
    list(server.assign(config(layout()).assigned(), "s1"))
    usable = [(kinds([e]), server.observe().pool.usable) for e in server.assign(config(equal(2)).assigned(), "s2", 2)]
    assert usable == [(["PutSlice"], False), (["PutSlice"], True)]
    seen = server.observe()
    assert (seen.assignment, seen.step, seen.running, seen.ready) == (
        config(equal(2)).assignment, "s2", config(equal(2)).fingerprint, True,
    )  # fmt: skip


def test_what_is_there_already_is_not_written_again() -> None:
    server = Server()
    wanted = config(equal(2)).assigned()
    list(server.assign(wanted, "s1"))
    assert list(server.assign(wanted, "s1")) == []
    assert kinds(list(server.assign(wanted, "s2"))) == ["PutSlice", "PutSlice"], "another step is always written"


def test_slices_that_are_left_over_go_last_and_until_then_the_node_is_not_ready() -> None:
    server = Server(driver({**H100, "count": 12}))
    list(server.assign(config(equal(5), of=server.driver).assigned(), "s1"))
    rewriting = server.assign(config(layout(), of=server.driver).assigned(), "s2")
    assert [(*kinds([effect]), server.observe().ready) for effect in rewriting] == [
        ("PutSlice", False),
        ("PutSlice", False),
        ("PutSlice", False),
        ("DeleteSlice", True),
    ]


def test_going_back_to_nothing_leaves_an_empty_anchor_that_keeps_the_step() -> None:
    server = Server()
    list(server.assign(config(equal(2)).assigned(), "s1"))
    effects = list(server.assign(NOTHING, "s2"))
    assert kinds(effects) == ["PutSlice", "DeleteSlice"]
    seen = server.observe()
    assert (seen.assignment, seen.step, seen.pool.devices, seen.ready) == (None, "s2", (), True)
    assert kinds(list(server.repair(NOTHING))) == ["DeleteSlice"], "at rest nothing is left"
    assert server.slices == {}


def test_a_cancelled_step_writes_nothing_any_more() -> None:
    server = Server()
    list(server.assign(config(layout()).assigned(), "s1"))
    before = server.observe()
    cancel = BACKEND.cancel(server.driver, server.facts, "s2")
    assert cancel is not None
    server.write(cancel)
    assert BACKEND.cancel(server.driver, server.facts, "s2") is None
    assert list(server.assign(config(equal(2)).assigned(), "s2")) == []
    after = server.observe()
    assert (after.step, after.assignment, after.pool) == ("s2", before.assignment, before.pool)


def test_a_step_can_be_cancelled_where_nothing_was_ever_published() -> None:
    server = Server()
    cancel = BACKEND.cancel(server.driver, server.facts, "s1")
    assert cancel is not None
    server.write(cancel)
    assert list(server.assign(config(equal(2)).assigned(), "s1")) == []
    assert (server.observe().step, server.observe().pool.devices) == ("s1", ())


def test_labels_and_annotations_of_others_stay() -> None:
    server = Server()
    list(server.assign(config(layout()).assigned(), "s1"))
    server.anchor["metadata"]["labels"]["team"] = "a"
    server.anchor["metadata"]["annotations"]["note"] = "b"
    list(server.assign(config(equal(2)).assigned(), "s2"))
    assert (server.anchor["metadata"]["labels"]["team"], server.anchor["metadata"]["annotations"]["note"]) == ("a", "b")


# --------------------------------------------------------------------------------------------------------------------------- repair


def at_rest(wanted: Config) -> Server:
    server = Server()
    list(server.assign(wanted.assigned(), "s1", generation=3))
    return server


def test_a_node_at_rest_is_left_alone() -> None:
    assert list(at_rest(config(equal(2))).repair(config(equal(2)).assigned())) == []


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]], ids=["anchor", "devices", "all"])
def test_lost_slices_come_back(lost: list[int]) -> None:
    server = at_rest(config(equal(2)))
    for number in lost:
        del server.slices[slice_name("gpu.example.org", "n1", number)]
    assert list(server.repair(config(equal(2)).assigned(), generation=3))
    seen = server.observe()
    assert seen.ready
    assert seen.pool.equals(config(equal(2)).pool)


@pytest.mark.parametrize("told", [config(equal(2)).assigned(), NOTHING], ids=["halves", "nothing"])
def test_slices_that_are_lost_while_they_are_verified_come_back_with_the_step_that_brought_them(told: Assigned) -> None:
    server = Server()
    list(server.assign(told, "s1", generation=3))
    assert list(server.repair(told, "s1", generation=3)) == []
    server.slices.clear()
    assert list(server.repair(told, "s1", generation=3))
    seen = server.observe()
    assert (seen.step, seen.assignment) == ("s1", told.assignment)
    assert list(server.repair(told, "s1", generation=3)) == []


@pytest.mark.parametrize("number", [0, 1])
def test_edited_slices_are_rewritten_and_the_pool_is_unusable_until_all_of_it_is_right(number: int) -> None:
    server = at_rest(config(equal(2)))
    spec = server.slices[slice_name("gpu.example.org", "n1", number)]["spec"]
    if number == 0:
        spec["sharedCounters"][0]["counters"]["memory"]["value"] = "160Gi"
    else:
        del spec["devices"][0]["consumesCounters"]
    rewriting = server.repair(config(equal(2)).assigned(), generation=3)
    assert [server.observe().pool.usable for _ in rewriting] == [False, True]
    assert server.observe().pool.equals(config(equal(2)).pool)
    assert server.observe().step == "s1"


def test_foreign_slices_in_the_pool_are_removed() -> None:
    server = at_rest(config(equal(2)))
    foreign = copy.deepcopy(server.anchor)
    foreign["metadata"]["name"] = "foreign"
    server.store(foreign, uid="f")
    assert not server.observe().ready
    assert kinds(list(server.repair(config(equal(2)).assigned()))) == ["DeleteSlice"]
    assert server.observe().ready


def test_slices_of_other_pools_and_drivers_are_none_of_our_business() -> None:
    server = at_rest(config(equal(2)))
    for name, change in (
        ("other-pool", {"pool": {**server.anchor["spec"]["pool"], "name": "x"}}),
        ("other", {"driver": "x"}),
    ):
        other = copy.deepcopy(server.anchor)
        other["metadata"]["name"] = name
        other["spec"] |= change
        server.store(other, uid=name)
    assert server.observe().ready
    assert list(server.repair(config(equal(2)).assigned())) == []


# -------------------------------------------------------------------------------------------------------------------- the way back


def test_the_way_back_is_the_pool_as_it_is_whoever_wrote_it() -> None:
    server = at_rest(config(equal(2)))
    back = BACKEND.way_back(server.driver, server.facts, Cluster())
    assert (back.assignment, back.fingerprint) == (config(equal(2)).assignment, config(equal(2)).fingerprint)
    list(server.assign(config(layout()).assigned(), "s2", 4))
    list(server.assign(back.assigned(), "s3", 5))
    assert server.observe().pool.equals(config(equal(2)).pool)
    assert server.observe().running == back.fingerprint


def test_the_way_back_from_the_first_pool_is_none() -> None:
    back = BACKEND.way_back(driver(), Server().facts, Cluster())
    assert (back.assignment, back.pool.devices) == (None, ())


def test_a_pool_that_cannot_be_used_is_no_way_back() -> None:
    server = at_rest(config(equal(2)))
    del server.slices[slice_name("gpu.example.org", "n1", 0)]
    with pytest.raises(Refused, match="1 of 2 slices of generation 3 are there"):
        BACKEND.way_back(server.driver, server.facts, Cluster())


def test_only_what_vanishes_or_changes_is_disturbed() -> None:
    halves, whole = config(equal(2)).pool, config(layout()).pool
    assert BACKEND.disturbs(whole, halves) == frozenset()
    assert BACKEND.disturbs(halves, whole) == {f"gpu-{gpu}-{part}of2" for gpu in (0, 1) for part in (1, 2)}


# --------------------------------------------------------------------------------------------------------------------------- probe


def test_the_probe_uses_every_feature_and_finds_what_was_dropped() -> None:
    counters, devices = probe(driver())
    assert "ownerReferences" not in counters["metadata"]
    assert dropped(counters, {"spec": {**counters["spec"], "more": 1}}) == []
    assert dropped(counters, {"spec": {k: v for k, v in counters["spec"].items() if k != "sharedCounters"}}) == [
        "spec.sharedCounters"
    ]
    stored = copy.deepcopy(devices)
    del stored["spec"]["devices"][0]["consumesCounters"]
    assert dropped(devices, stored) == ["spec.devices[0].consumesCounters"]
    assert dropped(devices, {"spec": {**devices["spec"], "devices": []}}) == ["spec.devices[0]"]
