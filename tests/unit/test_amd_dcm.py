"""What Device Config Manager is told for a layout, what is made of what it and the DRA driver say, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.amd import (
    BACKEND,
    CPX,
    CPX_NPS4,
    EIGHT,
    INSTALLED,
    MANAGER,
    MI300X,
    Gpu,
    compiled,
    daemon_set,
    driver,
    facts,
    gpu,
    installed,
    item,
    mode,
    node,
    observed,
    theirs,
    with_profiles,
)
from tests.unit.vendor import pod, policy

from gpupartition.backends.amd_dcm import PROFILE, STATE
from gpupartition.domain.backend import Config, NodeFacts
from gpupartition.domain.effects import PatchNode
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused, Turn
from gpupartition.names import STEP


def refusals(*layouts: Mapping[str, Any], on: NodeFacts) -> list[Problem]:
    with pytest.raises(Refused) as refused:
        compiled(*layouts, on=on)
    return list(refused.value.problems)


def told(config: Config) -> Any:
    """The profile, without the numbers of GPUs that nobody skips."""
    (body,) = config.objects
    assert body["key"] == config.assignment
    assert isinstance(body["content"]["skippedGPUs"]["ids"], list)
    return body["content"]


# ---------------------------------------------------------------------------------------------------------------- what is told


def test_all_gpus_of_a_node_are_told_at_once() -> None:
    config = compiled(CPX_NPS4, on=facts(*EIGHT))
    assert told(config) == {"skippedGPUs": {"ids": []}, "profiles": [item("CPX", "NPS4", 8)]}
    assert config.assignment == f"gpp-{config.fingerprint}"


def test_nodes_with_as_many_gpus_share_a_profile_and_others_do_not() -> None:
    same = {compiled(CPX, on=facts(*gpus)).fingerprint for gpus in (EIGHT, [gpu(n, "cpx_nps1") for n in range(8)])}
    assert len(same) == 1
    assert compiled(CPX, on=facts(*EIGHT[:4])).fingerprint not in same, "the numbers must add up to the node's GPUs"


def test_gpus_are_told_in_the_order_of_their_numbers_so_that_modes_may_come_again() -> None:
    config = compiled(
        mode("CPX", "NPS1", match={"indexes": [0, 1, 7]}), mode("SPX", "NPS1"), on=facts(*reversed(EIGHT))
    )
    assert told(config)["profiles"] == [item("CPX", "NPS1", 2), item("SPX", "NPS1", 5), item("CPX", "NPS1", 1)]


def test_gpus_that_are_kept_are_skipped_by_number() -> None:
    keep = {"match": {"indexes": [2]}, "type": "Keep"}
    config = compiled(keep, mode("CPX", "NPS1", match={"indexes": [0, 1, 2, 3]}), on=facts(*EIGHT[:6]))
    assert told(config) == {"skippedGPUs": {"ids": [2, 4, 5]}, "profiles": [item("CPX", "NPS1", 3)]}


def test_whole_is_one_partition_and_one_memory_domain() -> None:
    whole = {"match": {"all": True}, "type": "Whole"}
    assert told(compiled(whole, on=facts(*EIGHT)))["profiles"] == [item("SPX", "NPS1", 8)]


def test_a_layout_may_be_for_a_model() -> None:
    config = compiled(mode("CPX", "NPS1", match={"products": ["mi300x"]}), on=facts(*EIGHT))
    assert told(config)["profiles"] == [item("CPX", "NPS1", 8)]


def test_a_name_that_no_gpu_has_is_told() -> None:
    config = compiled(mode("DPX", "NPS1", match={"products": ["MI210", "MI300"]}), CPX, on=facts(*EIGHT))
    assert config.unmatched == {"MI210", "MI300"}
    assert config.products == {f"{MI300X} (model MI300X)"}


def test_fingerprints_are_for_ever() -> None:
    assert compiled(CPX_NPS4, on=facts(*EIGHT)).fingerprint == "abf8740eaacb91cc"


def test_the_file_is_json_of_the_shape_that_the_manager_reads() -> None:
    config = compiled(CPX, on=facts(*EIGHT))
    file = json.loads(with_profiles(config)["data"]["config.json"])
    assert file == {"gpu-config-profiles": {config.assignment: told(config)}}


# ------------------------------------------------------------------------------------------------------------- what is expected


def test_it_counts_the_partitions_of_each_gpu_whatever_their_names() -> None:
    config = compiled(CPX_NPS4, on=facts(*EIGHT[:2]))
    shifted = [gpu(number, "cpx_nps4", first=17) for number in range(2)]
    assert observed(facts(*shifted)).pool.equals(config.pool)
    assert not observed(facts(shifted[0], gpu(1, "cpx_nps4", count=7))).pool.equals(config.pool)
    assert not observed(facts(shifted[0], gpu(1, "cpx_nps1"))).pool.equals(config.pool)


def test_a_gpu_that_died_leaves_the_others_as_they_are_wanted() -> None:
    config = compiled(CPX, on=facts(*EIGHT[:2]))
    assert observed(facts(gpu(0, "cpx_nps1"))).pool.equals_but_for_lost_gpus(config.pool)


def test_a_gpu_that_is_kept_may_be_cut_in_any_way() -> None:
    config = compiled(mode("CPX", "NPS1", match={"indexes": [0]}), on=facts(*EIGHT[:2]))
    for kept in ("spx_nps1", "dpx_nps1"):
        assert observed(facts(gpu(0, "cpx_nps1"), gpu(1, kept))).pool.equals(config.pool)


def test_a_record_says_the_same_of_a_pool_as_the_backend() -> None:
    config = compiled(mode("CPX", "NPS1", match={"indexes": [0]}), on=facts(*EIGHT[:2]))
    assert Pool.from_json(config.pool.to_json()) == config.pool


def test_a_node_that_publishes_nothing_for_a_moment_has_the_gpus_that_its_record_names() -> None:
    config = compiled(CPX, on=facts(*EIGHT[:2]))
    shown, silent = facts(*EIGHT[:2], known=config.pool), facts(known=config.pool)
    later = compiled(CPX, on=silent)
    assert (later.fingerprint, later.pool) == (config.fingerprint, config.pool)
    assert BACKEND.depends(driver(), node(), lambda: silent) != BACKEND.depends(driver(), node(), facts)
    assert BACKEND.depends(driver(), node(), lambda: shown) == BACKEND.depends(driver(), node(), lambda: shown)


# ------------------------------------------------------------------------------------------------------------- a GPU that died

LEFT = [gpu(number) for number in (0, 1, 3)]
FOUR = compiled(CPX, on=facts(*EIGHT[:4]))


def test_a_profile_counts_the_gpus_that_are_left_and_the_node_is_expected_to_have_all() -> None:
    config = compiled(CPX, on=facts(*LEFT, known=FOUR.pool))
    assert told(config)["profiles"] == [item("CPX", "NPS1", 3)]
    assert config.pool.equals(FOUR.pool)
    assert observed(facts(*[gpu(number, "cpx_nps1") for number in (0, 1, 3)])).pool.equals_but_for_lost_gpus(
        config.pool
    )


def test_it_stays_dead_while_nothing_is_published_and_lives_again_once_it_is() -> None:
    config = compiled(CPX, on=facts(*LEFT, known=FOUR.pool))
    assert compiled(CPX, on=facts(known=Pool.from_json(config.pool.to_json()))).fingerprint == config.fingerprint
    assert compiled(CPX, on=facts(*EIGHT[:4], known=config.pool)) == FOUR


def test_layouts_by_index_mean_the_same_gpus_as_before_one_died() -> None:
    config = compiled(
        mode("DPX", "NPS1", match={"indexes": [3]}), mode("CPX", "NPS1"), on=facts(*LEFT, known=FOUR.pool)
    )
    assert told(config)["profiles"] == [item("CPX", "NPS1", 2), item("DPX", "NPS1", 1)]


def test_what_was_done_before_a_gpu_died_is_left_alone_until_it_no_longer_works() -> None:
    left = [gpu(number, "cpx_nps1") for number in (0, 1, 3)]
    done, failed = (facts(*left, on=node(FOUR.assignment, say), known=FOUR.pool) for say in ("success", "failure"))
    assert compiled(CPX, on=done).fingerprint == FOUR.fingerprint
    assert told(compiled(CPX, on=failed))["profiles"] == [item("CPX", "NPS1", 3)]
    assert BACKEND.depends(driver(), done.node, lambda: done) != BACKEND.depends(driver(), failed.node, lambda: failed)


def test_whole_gpus_that_nobody_was_told_of_are_left_alone_when_one_dies() -> None:
    whole = {"match": {"all": True}, "type": "Whole"}
    four = compiled(whole, on=facts(*EIGHT[:4]))
    assert compiled(whole, on=facts(*LEFT, known=four.pool)).fingerprint == four.fingerprint
    assert told(compiled(CPX, on=facts(*LEFT, known=four.pool)))["profiles"] == [item("CPX", "NPS1", 3)]


def test_a_profile_for_more_gpus_than_there_are_has_failed_for_good() -> None:
    on = node(FOUR.assignment, "failure")
    assert "another number of GPUs than 3" in observed(facts(*LEFT, on=on), with_profiles(FOUR)).failed
    assert observed(facts(*EIGHT[:4], on=on), with_profiles(FOUR)).failed == ""


def test_the_way_back_is_that_of_the_gpus_that_are_left() -> None:
    back = way_back(facts(*LEFT, on=node(FOUR.assignment, "success"), known=FOUR.pool), with_profiles(FOUR))
    assert told(back)["profiles"] == [item("SPX", "NPS1", 3)]


def test_a_node_whose_last_gpu_with_a_layout_died_is_refused() -> None:
    one = mode("CPX", "NPS1", match={"indexes": [2]})
    known = compiled(one, on=facts(*EIGHT[:4])).pool
    (problem,) = refusals(one, on=facts(*LEFT, known=known))
    assert problem.reason == "NothingToCut"


# ------------------------------------------------------------------------------------------------------------------- whose it is


def test_older_drivers_say_otherwise_where_a_gpu_is_plugged_in() -> None:
    whole, parts = gpu(0), gpu(1, "cpx_nps1")
    for device, name in ((whole[0], "pciAddr"), *((each, "parentPciAddr") for each in parts)):
        attributes = dict(device["attributes"])
        attributes[name] = attributes.pop("resource.kubernetes.io/pciBusID")
        device["attributes"] = attributes
    assert told(compiled(CPX, on=facts(whole, parts)))["profiles"] == [item("CPX", "NPS1", 2)]


# -------------------------------------------------------------------------------------------------------- who is disturbed


def disturbed(config: Config, *now: Gpu) -> set[str]:
    return set(BACKEND.disturbs(observed(facts(*now)).pool, config.pool))


def names(*gpus: Gpu) -> set[str]:
    return {device["name"] for each in gpus for device in each}


def test_a_compute_mode_disturbs_only_the_gpus_that_get_another_one() -> None:
    config = compiled(CPX, on=facts(*EIGHT[:2]))
    assert disturbed(config, gpu(0), gpu(1, "cpx_nps1")) == names(gpu(0))
    assert disturbed(config, gpu(0, "cpx_nps1"), gpu(1, "cpx_nps1")) == set()


def test_a_memory_mode_disturbs_the_whole_node() -> None:
    config = compiled(CPX_NPS4, on=facts(*EIGHT[:2]))
    assert disturbed(config, *EIGHT[:2]) == names(*EIGHT[:2])


def test_gpus_that_are_to_differ_are_drained_all_because_numbers_may_mean_others() -> None:
    config = compiled(mode("CPX", "NPS1", match={"indexes": [0]}), mode("SPX", "NPS1"), on=facts(*EIGHT[:2]))
    assert disturbed(config, *EIGHT[:2]) == names(*EIGHT[:2])
    keeps = compiled(mode("CPX", "NPS1", match={"indexes": [0]}), on=facts(*EIGHT[:2]))
    assert disturbed(keeps, *EIGHT[:2]) == names(*EIGHT[:2])
    assert disturbed(keeps, gpu(0, "cpx_nps1"), gpu(1)) == set()


# --------------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("layouts", "gpus", "reason", "at", "says"),
    [
        ([mode("CPX", "NPS2")], EIGHT, "UnknownMode", "spec.layouts[0]: GPU 0", "MI300X can be CPX/NPS2"),
        ([mode("SPX", "NPS4")], EIGHT, "UnknownMode", "spec.layouts[0]: GPU 0", "MI300X can be SPX/NPS4"),
        ([CPX_NPS4], [gpu(0, product="AMD Instinct MI325X")], "UnknownMode", "spec.layouts[0]", "MI325X"),
        ([CPX], [gpu(0, product="AMD Radeon")], "UnknownProduct", "spec.layouts[0]: GPU 0", "'AMD Radeon'"),
        ([CPX], [gpu(0, "")], "NotPartitionable", "spec.layouts[0]: GPU 0", "no partitionProfile"),
        (
            [mode("CPX", "NPS4", match={"indexes": [0]}), mode("SPX", "NPS1")],
            EIGHT,
            "MemoryModesDiffer",
            "spec.layouts[1].mode.memory",
            "layout l0 has NPS4 and layout l1 has NPS1",
        ),
        ([mode("CPX", "NPS4", match={"indexes": [0]})], EIGHT, "KeptMemoryMode", "GPU 1", "SPX/NPS1"),
        ([{"match": {"all": True}, "type": "Keep"}], EIGHT, "NothingToCut", "spec.layouts", "left as it is"),
        ([mode("CPX", "NPS1", match={"indexes": [9]})], EIGHT, "NothingToCut", "spec.layouts", "left as it is"),
        (
            [{"match": {"all": True}, "type": "Equal", "equal": {"parts": 2}}],
            EIGHT,
            "LayoutTypeUnsupported",
            "spec.layouts[0].type",
            "Equal",
        ),
        (
            [mode("CPX", "NPS1", sharing={"mode": "Shared", "capacity": {"memory": {"default": "1Gi"}}})],
            EIGHT,
            "SharingUnsupported",
            "spec.layouts[0].sharing.mode",
            "one claim",
        ),
        ([CPX], [], "NoInventory", "node n1", "publishes no GPU"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_moves(
    layouts: Sequence[Mapping[str, Any]], gpus: Sequence[Gpu], reason: str, at: str, says: str
) -> None:
    (problem,) = refusals(*layouts, on=facts(*gpus))
    assert problem.reason == reason
    assert problem.at.startswith(at)
    assert says in problem.why
    assert problem.fix


def test_equal_gpus_are_told_of_once() -> None:
    assert len(refusals(mode("QPX", "NPS2"), on=facts(*EIGHT))) == 1


def test_two_who_cut_the_same_gpus_are_refused() -> None:
    auto = {
        "name": "gpu-0-cpx-nps4",
        "allowMultipleAllocations": True,
        "attributes": gpu(0)[0]["attributes"] | {"computePartition": {"string": "cpx"}},
    }
    (problem,) = refusals(CPX, on=facts([auto]))
    assert (problem.reason, problem.at, problem.of_node) == ("TwoOwners", "node n1", True)
    assert "gpu-0-cpx-nps4" in problem.why


def test_a_device_plugin_beside_the_dra_driver_is_refused() -> None:
    (problem,) = refusals(CPX, on=facts(*EIGHT, on=node(allocatable={"amd.com/gpu": "8", "cpu": "4"})))
    assert (problem.reason, problem.turn, problem.of_node) == ("DevicePluginPresent", Turn.CLUSTER, True)
    assert compiled(CPX, on=facts(*EIGHT, on=node(allocatable={"amd.com/gpu": "0"}))).pool.devices


# ------------------------------------------------------------------------------------------------------------ the installation


def preflight(*sets: Mapping[str, Any], config_map: Mapping[str, Any] | None = None) -> list[Problem]:
    return list(BACKEND.preflight(driver(), installed(*([config_map] if config_map else []), sets=sets)))


def test_an_installation_as_it_must_be_has_no_problems() -> None:
    assert preflight(*INSTALLED) == []
    assert preflight(*INSTALLED, config_map=theirs(default={"profiles": []})) == []


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ([INSTALLED[1]], "ConfigManagerMissing"),
        ([INSTALLED[0]], "PluginMissing"),
        ([daemon_set("kube-amd-gpu", "config-manager", config="default-dcm-config"), INSTALLED[1]], "ConfigNotWired"),
        ([MANAGER, daemon_set("dra-driver", "kubelet-plugin", gates="A=false,AutoPartition=true")], "TwoOwners"),
        ([MANAGER, daemon_set("dra-driver", "kubelet-plugin", "--feature-gates=AutoPartition=true")], "TwoOwners"),
    ],
)
def test_a_wrong_installation_is_named_with_what_to_write(sets: Sequence[Mapping[str, Any]], reason: str) -> None:
    (problem,) = preflight(*sets)
    assert problem.reason == reason
    assert problem.fix


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "ConfigUnreadable"),
        ('{"gpu-config-profiles": []}', "ConfigUnreadable"),
        ('{"gpuClientSystemdServices": {"names": ["gpuagent"]}}', "StopsServices"),
        (json.dumps({"gpu-config-profiles": {"big": "x" * 1_000_001}}), "ConfigFull"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_refused(text: str, reason: str) -> None:
    (problem,) = preflight(*INSTALLED, config_map=theirs() | {"data": {"config.json": text}})
    assert (problem.reason, problem.at) == (reason, "ConfigMap kube-amd-gpu/gpp-amd")


def test_a_file_without_services_to_stop_may_say_so() -> None:
    text = '{"gpuClientSystemdServices": {"names": []}}'
    assert preflight(*INSTALLED, config_map=theirs() | {"data": {"config.json": text}}) == []


# ----------------------------------------------------------------------------------------------------------- tables of one's own

TABLE = """
gpus:
- name: MI999X
  partitions: {SPX: 1, CPX: 16}
  validated: [SPX/NPS1, CPX/NPS1]
"""


def tabled(*texts: str) -> dict[str, Any]:
    data = {f"{number}.yaml": text for number, text in enumerate(texts)}
    return {"metadata": {"namespace": "kube-amd-gpu", "name": "more"}, "data": data}


def test_a_config_map_tells_of_other_products_and_replaces_known_ones() -> None:
    of, cluster = driver(tables={"name": "more"}), installed(tabled(TABLE, TABLE.replace("MI999X", "MI300X")))
    assert BACKEND.config_maps(of) == (("kube-amd-gpu", "gpp-amd"), ("kube-amd-gpu", "more"))
    assert BACKEND.preflight(of, cluster) == []
    for product in ("AMD Instinct MI999X", MI300X):
        config = BACKEND.compile(of, policy(CPX), facts(gpu(0, product=product)), cluster)
        assert len(config.pool.devices) == 16


@pytest.mark.parametrize(
    ("text", "reason", "at", "why", "fix"),
    [
        (None, "TableMissing", "spec.amdDcm.tables", "there is no ConfigMap kube-amd-gpu/more", "create it"),
        ("{", "TableInvalid", "more", "it is neither YAML nor JSON", "correct it"),
        ("gpus: [{name: MI1}]", "TableInvalid", "gpus[0].partitions", "it is missing", "add it"),
        (
            TABLE.replace("CPX/NPS1]", "CPX]"),
            "TableInvalid",
            "gpus[0].validated[1]",
            "'CPX' is not a mode",
            "such as CPX/NPS1",
        ),
        (
            TABLE.replace("SPX/NPS1,", "SPX/NPS1, SPX/NPS1,"),
            "TableInvalid",
            "gpus[0]",
            "MI999X has SPX/NPS1 2 times",
            "name each",
        ),
        (
            TABLE.replace(", CPX: 16", ""),
            "TableInvalid",
            "gpus[0]",
            "MI999X has CPX/NPS1, and partitions do not say",
            "add it there",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_said_of_the_driver(
    text: str | None, reason: str, at: str, why: str, fix: str
) -> None:
    maps = [tabled(text)] if text is not None else []
    problem = BACKEND.preflight(driver(tables={"name": "more"}), installed(*maps))[0]
    assert (problem.reason, problem.at.endswith(at)) == (reason, True), problem
    assert why in problem.why
    assert fix in problem.fix
    assert problem.fix


# ------------------------------------------------------------------------------------------------------------------ the way back


def way_back(on: NodeFacts, *config_maps: Mapping[str, Any]) -> Config:
    return BACKEND.way_back(driver(), on, installed(*config_maps))


def test_the_way_back_of_a_node_that_nobody_assigned_is_what_it_publishes() -> None:
    config = way_back(facts(gpu(0, "dpx_nps1"), gpu(1)))
    assert told(config)["profiles"] == [item("DPX", "NPS1", 1), item("SPX", "NPS1", 1)]
    assert observed(facts(gpu(0, "dpx_nps1"), gpu(1))).pool.equals(config.pool)


def test_the_way_back_is_the_assignment_where_that_says_what_is_there() -> None:
    config = compiled(CPX_NPS4, on=facts(*EIGHT[:2]))
    there = [gpu(number, "cpx_nps4") for number in range(2)]
    back = way_back(facts(*there, on=node(config.assignment, "success")), with_profiles(config))
    assert (back.fingerprint, back.assignment, back.objects) == (config.fingerprint, config.assignment, config.objects)
    assert back.pool.equals(config.pool)


@pytest.mark.parametrize("value", [None, "gpp-assigned"])
def test_the_way_back_knows_devices_by_the_names_under_which_they_are_held(value: str | None) -> None:
    there = [gpu(0, "cpx_nps1"), gpu(1), gpu(2, "")]
    profiles = theirs(**{"gpp-assigned": told(way_back(facts(*there)))})
    back = way_back(facts(*there, on=node(value, "success" if value else None)), profiles)
    assert back.pool.names == names(*there[:2])
    assert set(back.pool.kept) == {"0000:45:00.0"}


def test_the_way_back_may_be_a_profile_of_somebody_else_and_then_nothing_is_written_for_it() -> None:
    profiles = theirs(cpx={"profiles": [{"computePartition": "CPX", "memoryPartition": "NPS1"}]})
    back = way_back(facts(gpu(0, "cpx_nps1"), gpu(1, "cpx_nps1"), on=node("cpx", "success")), profiles)
    assert (back.assignment, back.objects) == ("cpx", ())


@pytest.mark.parametrize("value", ["gpp-0123456789abcdef", "cpx"])
def test_an_assignment_that_says_something_else_is_not_the_way_back(value: str) -> None:
    profiles = theirs(**{value: {"profiles": [item("CPX", "NPS1", 2)]}})
    back = way_back(facts(*EIGHT[:2], on=node(value, "failure")), profiles)
    assert back.assignment != value
    assert told(back)["profiles"] == [item("SPX", "NPS1", 2)]


@pytest.mark.parametrize("gpus", [[], [gpu(0, "")], [gpu(0, "tpx_nps1")], [gpu(0), gpu(1, "tpx_nps1")]])
def test_there_is_no_way_back_to_what_nobody_can_be_told(gpus: Sequence[Gpu]) -> None:
    with pytest.raises(Refused) as refused:
        way_back(facts(*gpus))
    assert [p.reason for p in refused.value.problems] == ["NoWayBack"]


def test_a_gpu_without_modes_is_skipped_on_the_way_back() -> None:
    assert told(way_back(facts(gpu(0, ""), gpu(1, "cpx_nps1")))) == {
        "skippedGPUs": {"ids": [0]},
        "profiles": [item("CPX", "NPS1", 1)],
    }


# -------------------------------------------------------------------------------------------------------------------- what it says


@pytest.mark.parametrize(
    ("state", "ready", "says"),
    [
        ("success", True, ""),
        (None, False, "has not answered yet"),
        ("in-progress", False, "is at work"),
        ("failure", False, "tries again each minute"),
    ],
)
def test_a_node_is_ready_when_the_manager_says_so_and_never_before(state: str | None, ready: bool, says: str) -> None:
    seen = observed(facts(*EIGHT, on=node("gpp-a", state)))
    assert (seen.acknowledged, seen.ready, seen.restarts) == (ready, ready, True)
    assert says in seen.complaint
    assert seen.failed == "", "it tries again: only the time limit ends it"


def test_a_node_without_an_assignment_waits_for_nobody() -> None:
    seen = observed(facts(*EIGHT))
    assert (seen.acknowledged, seen.ready, seen.assignment) == (True, True, None)


def test_a_node_that_was_never_assigned_anything_runs_what_somebody_set_by_hand() -> None:
    whole = compiled({"match": {"all": True}, "type": "Whole"}, on=facts(*EIGHT))
    eighths = [gpu(number, "cpx_nps1") for number in range(8)]
    assert observed(facts(*EIGHT)).running == whole.fingerprint, "such a node is adopted without a write"
    assert observed(facts(*eighths)).running == compiled(CPX, on=facts(*EIGHT)).fingerprint
    assert observed(facts()).running == ""


def test_a_node_that_lost_its_assignment_runs_what_it_has_only_while_its_gpus_are_whole() -> None:
    lost = node(step="s")
    assert observed(facts(*EIGHT, on=lost)).running
    assert observed(facts(*EIGHT[:7], gpu(7, "cpx_nps1"), on=lost)).running == "", "that would not outlive a reboot"


@pytest.mark.parametrize(
    "words",
    [
        {"profiles": [{"computePartition": "CPX", "memoryPartition": "NPS1"}]},
        {"skippedGPUs": {"ids": []}, "profiles": [item("CPX", "NPS1", 5), item("CPX", "NPS1", 3)]},
    ],
    ids=["all that are left", "in two halves"],
)
def test_a_profile_of_somebody_elses_runs_what_it_means_however_it_says_so(words: Any) -> None:
    there = facts(*(gpu(number, "cpx_nps1") for number in range(8)), on=node("theirs", "success"))
    wanted = compiled(CPX, on=facts(*EIGHT)).fingerprint
    assert observed(there, theirs(theirs=words)).running == wanted
    assert way_back(there, theirs(theirs=words)).fingerprint == wanted


def test_a_plugin_that_is_not_ready_makes_the_node_wait() -> None:
    seen = observed(facts(*EIGHT, on=node("gpp-a", "success"), pods=[pod("dra-driver", "kubelet-plugin", ready=False)]))
    assert (seen.acknowledged, seen.ready) == (True, False)


def test_what_runs_is_the_profile_that_the_label_names_even_while_it_is_carried_out_once_more() -> None:
    config = compiled(CPX, on=facts(*EIGHT))
    for state in ("success", "in-progress"):
        seen = observed(facts(*EIGHT, on=node(config.assignment, state)), with_profiles(config))
        assert seen.running == config.fingerprint
    assert observed(facts(*EIGHT, on=node(config.assignment, "failure")), with_profiles(config)).running == ""


# ------------------------------------------------------------------------------------------------------------------ what is written


def test_the_assignment_the_step_and_the_removal_of_the_old_answer_are_one_write() -> None:
    config = compiled(CPX, on=facts(*EIGHT))
    on = facts(*EIGHT, on=node("former", "success"))
    write = BACKEND.assign(driver(), on, config.assigned(), "s1", 1)
    assert write == PatchNode(
        node="n1",
        resource_version="7",
        labels={PROFILE: config.assignment, STATE: None},
        annotations={STEP: "s1"},
    )
    assert BACKEND.assign(driver(), facts(*EIGHT, on=node(step="s1")), config.assigned(), "s1", 1) is None


def test_the_same_value_is_taken_away_first_because_only_a_change_is_noticed() -> None:
    config = compiled(CPX, on=facts(*EIGHT))
    on = facts(*EIGHT, on=node(config.assignment, "failure"))
    write = BACKEND.assign(driver(), on, config.assigned(), "s1", 1)
    assert isinstance(write, PatchNode)
    assert (write.labels, write.annotations) == ({PROFILE: None, STATE: None}, {})


def test_a_step_is_used_up_without_a_change_once() -> None:
    write = BACKEND.cancel(driver(), facts(*EIGHT), "s1")
    assert isinstance(write, PatchNode)
    assert (write.labels, write.annotations) == ({}, {STEP: "s1"})
    assert BACKEND.cancel(driver(), facts(*EIGHT, on=node(step="s1")), "s1") is None
