"""What mig-manager is told for a layout, what is made of what it and the DRA driver say, and what is refused before anything moves."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
import yaml
from tests.unit.nvidia import (
    A30,
    A100,
    BACKEND,
    EIGHT,
    H100,
    INSTALLED,
    PLUGIN,
    SEVENTHS,
    compiled,
    cut,
    daemon_set,
    device,
    driver,
    facts,
    installed,
    node,
    observed,
    profiles,
    whole,
)
from tests.unit.vendor import T0, config_map_of, pod

from gpupartition.backends.nvidia_limits import DEPLOYED
from gpupartition.backends.nvidia_mig import CONFIG, STATE
from gpupartition.domain.backend import Cluster, Config, NodeFacts
from gpupartition.domain.effects import PatchNode
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused, Turn
from gpupartition.domain.products import hint
from gpupartition.names import ENTRIES, STEP


def refusals(*layouts: Mapping[str, Any], on: NodeFacts, cluster: Cluster | None = None) -> list[Problem]:
    with pytest.raises(Refused) as refused:
        compiled(*layouts, on=on, cluster=cluster)
    return list(refused.value.problems)


def entry_of(config: Config) -> Any:
    (body,) = config.objects
    assert body["key"] == config.assignment
    return body["content"]


# ---------------------------------------------------------------------------------------------------------------- what is told


def test_equal_gpus_are_told_of_at_once_so_that_nodes_with_more_or_fewer_share_an_entry() -> None:
    one, two = (compiled(profiles(("1g.10gb", 7)), on=facts(*gpus)) for gpus in (EIGHT, EIGHT[:4]))
    assert entry_of(one) == [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]
    assert one.fingerprint == two.fingerprint
    assert one.assignment == f"gpp-{one.fingerprint}"


def test_the_order_in_which_profiles_are_written_makes_no_other_layout() -> None:
    one = compiled(profiles("3g.40gb", ("1g.10gb", 2)), on=facts(*EIGHT))
    other = compiled(profiles(("1g.10gb", 2), "3g.40gb"), on=facts(*EIGHT))
    assert one.fingerprint == other.fingerprint


def test_fingerprints_are_for_ever() -> None:
    halves = profiles("3g.40gb", "4g.40gb")
    assert compiled(halves, on=facts(*EIGHT)).fingerprint == "b07a2fc2d9942ee2"
    assert compiled(whole(), on=facts(*EIGHT)).fingerprint == "271b227b4f0a128b"


def test_the_first_layout_that_matches_a_gpu_wins_and_others_are_left_alone() -> None:
    config = compiled(
        profiles(("1g.10gb", 7), match={"indexes": [0, 1]}), whole(match={"indexes": [1, 2]}), on=facts(*EIGHT[:4])
    )
    assert entry_of(config) == [
        {"devices": [0, 1], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}},
        {"devices": [2], "mig-enabled": False},
    ]
    assert set(config.pool.kept) == {"gpu-3"}


def test_what_is_kept_may_be_anything() -> None:
    config = compiled(profiles(("1g.10gb", 7), match={"indexes": [0]}), whole(type="Keep"), on=facts(*EIGHT[:2]))
    for second in (cut(1, H100), cut(1, H100, "7g.80gb"), []):
        assert observed(facts(cut(0, H100, *["1g.10gb"] * 7), second)).pool.equals(config.pool)
    assert not observed(facts(cut(0, H100, *["1g.10gb"] * 6), cut(1, H100))).pool.equals(config.pool)


def test_gpus_are_numbered_as_they_are_plugged_in_whatever_their_minor_numbers() -> None:
    swapped = facts(cut(0, H100, bus=9), cut(1, H100, bus=3))
    config = compiled(profiles("7g.80gb", match={"indexes": [0]}), on=swapped)
    assert entry_of(config) == [{"devices": [0], "mig-enabled": True, "mig-devices": {"7g.80gb": 1}}]
    assert {d.gpu for d in config.pool.devices} == {"gpu-1"}


def test_layouts_may_be_by_product_spelled_as_labels_do() -> None:
    mixed = facts(cut(0, A100), cut(1, H100))
    config = compiled(
        profiles(("1g.5gb", 7), match={"products": ["NVIDIA-A100-SXM4-40GB"]}),
        profiles(("1g.10gb", 7), match={"products": [H100]}),
        on=mixed,
    )
    assert [item["mig-devices"] for item in entry_of(config)] == [{"1g.5gb": 7}, {"1g.10gb": 7}]


def test_a_product_may_be_called_by_the_model_of_the_table_too() -> None:
    mixed = facts(cut(0, A100), cut(1, H100))
    config = compiled(profiles(("1g.10gb", 7), match={"products": ["h100-80gb"]}), on=mixed)
    assert entry_of(config) == [{"devices": [1], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]
    assert config.unmatched == set()


def test_names_that_no_gpu_of_any_node_has_are_told_with_those_that_there_are() -> None:
    layouts = (profiles("all-balanced", match={"products": ["H100", "NVIDIA A30"]}), whole())
    nodes = [facts(cut(0, H100)), facts(cut(0, A30)), facts(cut(0, "NVIDIA Q900"))]
    told = hint(compiled(*layouts, on=on) for on in nodes)
    assert told.startswith("no GPU of its nodes is called H100, as match.products says: there are ")
    assert "NVIDIA A30 (model A30-24GB), NVIDIA H100 80GB HBM3 (model H100-80GB), NVIDIA Q900" in told
    assert hint([compiled(whole(), on=nodes[0])]) == ""
    assert hint([]) == ""


def test_a_policy_that_cuts_nothing_because_of_a_name_says_which_name_and_what_there_is() -> None:
    (problem,) = refusals(profiles(("1g.10gb", 7), match={"products": ["H100"]}), on=facts(*EIGHT))
    assert problem.reason == "NothingToCut"
    assert f"none is called H100, as match.products says; there are {H100} (model H100-80GB)" in problem.why


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("all-1g.10gb", {"1g.10gb": 7}),
        ("all-balanced", {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
        ("all-1g.10gb.me", {"1g.10gb+me": 1}),
    ],
)
def test_presets_of_mig_parted_mean_what_they_mean_there(name: str, told: dict[str, int]) -> None:
    assert entry_of(compiled(profiles(name), on=facts(*EIGHT)))[0]["mig-devices"] == told


def test_the_preset_that_switches_mig_off_is_the_layout_whole() -> None:
    off = compiled(profiles("all-disabled"), on=facts(*EIGHT))
    assert off.fingerprint == compiled(whole(), on=facts(*EIGHT)).fingerprint


def test_profiles_are_told_as_the_policy_spells_them_and_compared_as_the_table_does() -> None:
    config = compiled(profiles("7g.79gb"), on=facts(*EIGHT[:1]))
    assert entry_of(config)[0]["mig-devices"] == {"7g.79gb": 1}
    for spelled in ("7g.79gb", "7g.80gb"):
        assert observed(facts(cut(0, H100, spelled))).pool.equals(config.pool)


# -------------------------------------------------------------------------------------------------------- the config file


def test_the_config_file_keeps_the_names_that_mig_manager_knows_by_itself() -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT))
    written = yaml.safe_load(config_map_of(config)["data"]["config.yaml"])
    assert written["version"] == "v1"
    assert list(written["mig-configs"]) == ["all-disabled", "all-enabled", config.assignment]
    assert written["mig-configs"][config.assignment] == entry_of(config)


def test_what_somebody_else_wrote_into_the_file_stays() -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT))
    (body,) = config.objects
    text = "version: v1\nmig-configs:\n  mine:\n  - {devices: all, mig-enabled: false}\n"
    before = {
        "metadata": {"name": "gpp-mig", "namespace": "gpu-operator", "resourceVersion": "3"},
        "data": {"config.yaml": text},
    }
    after = body["document"].with_entry(before, body["key"], body["content"], T0)
    assert set(yaml.safe_load(after["data"]["config.yaml"])["mig-configs"]) == {
        "all-disabled",
        "all-enabled",
        "mine",
        config.assignment,
    }
    assert after["metadata"]["resourceVersion"] == "3", "written under what was read"
    assert body["document"].ours(after) == {config.assignment}
    shorter = body["document"].without(after, {config.assignment}, T0)
    assert body["document"].ours(shorter) == set()
    assert "mine" in shorter["data"]["config.yaml"]


# ------------------------------------------------------------------------------------------------------------- what is expected


def test_it_counts_how_many_of_each_profile_a_gpu_has_not_where_they_lie_nor_how_large_they_are() -> None:
    config = compiled(profiles("3g.40gb", ("1g.10gb", 2)), on=facts(cut(0, H100)))
    there = [
        device(0, H100, "1g.10gb", "19-3", memory="1Gi"),
        device(0, H100, "1g.10gb", "19-0"),
        device(0, H100, "3g.40gb", "9-4"),
    ]
    assert observed(facts(there)).pool.equals(config.pool)
    assert not observed(facts([*there, device(0, H100, "1g.10gb", "19-1")])).pool.equals(config.pool)


def test_a_whole_gpu_beside_its_partitions_is_not_what_is_wanted() -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT[:2]))
    assert observed(facts(*SEVENTHS)).pool.equals(config.pool)
    assert not observed(facts(*SEVENTHS, cut(1, H100))).pool.equals(config.pool)


def test_a_gpu_that_died_leaves_the_others_as_they_are_wanted() -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT[:2]))
    assert observed(facts(SEVENTHS[0])).pool.equals_but_for_lost_gpus(config.pool)


def test_a_record_says_the_same_of_a_pool_as_the_backend() -> None:
    config = compiled(profiles(("1g.10gb", 7), match={"indexes": [0]}), on=facts(*EIGHT[:2]))
    again = Pool.from_json(config.pool.to_json())
    assert again == config.pool
    assert again.equals(config.pool)


# ------------------------------------------------------------------------------------------------------ which GPUs there are


def test_a_node_that_publishes_nothing_for_a_moment_has_the_gpus_that_its_record_names() -> None:
    config = compiled(profiles(("1g.10gb", 7), match={"indexes": [0]}), on=facts(*EIGHT[:2]))
    later = compiled(profiles(("1g.10gb", 7), match={"indexes": [0]}), on=facts(known=config.pool))
    assert (later.fingerprint, later.pool) == (config.fingerprint, config.pool)
    shown, silent = facts(*EIGHT[:2], known=config.pool), facts(known=config.pool)
    assert BACKEND.depends(driver(), node(), lambda: silent) == BACKEND.depends(driver(), node(), lambda: shown)


def test_labels_tell_of_gpus_whose_mig_mode_is_on_without_a_partition() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2"}
    config = compiled(profiles(("1g.10gb", 7)), on=facts(on=node(labels=labels)))
    assert config.pool.gpus == {"gpu-0", "gpu-1"}


def test_labels_that_speak_of_partitions_tell_nothing_of_gpus() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "nvidia.com/gpu.count": "7"}
    (problem,) = refusals(profiles(("1g.10gb", 7)), on=facts(on=node(labels=labels)))
    assert (problem.reason, problem.turn) == ("NoInventory", Turn.CLUSTER)


# --------------------------------------------------------------------------------------------------------------- what is refused


def test_a_layout_that_cannot_be_is_refused_with_the_gpu_the_profile_and_what_fits_instead() -> None:
    (problem,) = refusals(profiles(("3g.40gb", 3)), on=facts(*EIGHT))
    assert problem.reason == "LayoutDoesNotFit"
    assert f"GPU 0 ({H100})" in problem.why
    assert "3 x 3g.40gb" in problem.why
    assert "2 x 3g.40gb" in problem.fix


def test_equal_gpus_are_told_of_once_and_others_beside_them() -> None:
    mixed = facts(cut(0, A100), cut(1, A100), cut(2, A30))
    found = refusals(profiles(("1g.10gb", 7)), on=mixed)
    assert [("GPU 0" in p.why, "GPU 2" in p.why) for p in found] == [(True, False), (False, True)]


def test_a_product_that_nobody_knows_is_refused_by_name() -> None:
    (problem,) = refusals(profiles("1g.10gb"), on=facts(cut(0, "NVIDIA Q900")))
    assert problem.reason == "UnknownProduct"
    assert "NVIDIA Q900" in str(problem)


def test_a_product_that_nobody_knows_can_be_left_whole() -> None:
    assert entry_of(compiled(whole(), on=facts(cut(0, "NVIDIA Q900")))) == [{"devices": "all", "mig-enabled": False}]


TABLE = """
gpus:
- name: Q900
  products: [NVIDIA Q900]
  architecture: Quiet
  memorySlices: 2
  profiles:
  - {name: 1g.10gb, id: 1, slices: 1, size: 1, starts: [0, 1], max: 2}
  - {name: 2g.20gb, id: 2, slices: 2, size: 2, starts: [0], max: 1}
"""


def table(text: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "gpu-operator", "name": "more"}, "data": {"q900.yaml": text}}


def test_a_config_map_tells_of_other_products() -> None:
    of, cluster = driver(tables={"name": "more"}), installed(table(TABLE))
    assert BACKEND.preflight(of, cluster) == []
    config = compiled(profiles(("1g.10gb", 2)), on=facts(cut(0, "NVIDIA Q900")), of=of, cluster=cluster)
    assert [d.name for d in config.pool.devices] == ["gpu-0-mig-1g10gb-1-0", "gpu-0-mig-1g10gb-1-1"]


@pytest.mark.parametrize(
    ("config_maps", "reason"),
    [([], "TableMissing"), ([table("gpus: [{name: x}]")], "TableInvalid"), ([table("{")], "TableInvalid")],
)
def test_a_table_that_cannot_be_read_is_said_of_the_driver(config_maps: list[Any], reason: str) -> None:
    problems = BACKEND.preflight(driver(tables={"name": "more"}), installed(*config_maps))
    assert {p.reason for p in problems} == {reason}


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (whole(type="Equal", equal={"parts": 2}), "LayoutTypeUnsupported"),
        (whole(type="Choices", choices={"profiles": ["1g.10gb"]}), "LayoutTypeUnsupported"),
        (whole(sharing={"mode": "Shared"}), "SharingUnsupported"),
        (whole(type="Keep"), "NothingToCut"),
        (profiles("all-enabled"), "NothingPublished"),
        (profiles("all-9g.10gb"), "UnknownProfile"),
        (profiles("9g.10gb"), "LayoutDoesNotFit"),
    ],
)
def test_what_the_driver_cannot_build_is_refused(layout: dict[str, Any], reason: str) -> None:
    (problem,) = refusals(layout, on=facts(*EIGHT))
    assert problem.reason == reason
    assert problem.fix


def test_a_node_whose_device_plugin_offers_the_same_gpus_is_refused() -> None:
    for gpus in (EIGHT, []):
        (problem,) = refusals(whole(), on=facts(*gpus, on=node(status={"allocatable": {"nvidia.com/gpu": "8"}})))
        assert (problem.reason, problem.at, problem.of_node) == ("DevicePluginPresent", "node n1", True)


@pytest.mark.parametrize(("value", "refused"), [("true", True), ("false", False), (None, False)])
def test_a_device_plugin_of_the_gpu_operator_concerns_the_nodes_that_it_chooses(
    value: str | None, refused: bool
) -> None:
    plugin = daemon_set("gpu-operator", "nvidia-device-plugin-daemonset", app="nvidia-device-plugin-daemonset")
    plugin["spec"]["template"]["spec"]["nodeSelector"] = {DEPLOYED: "true"}
    cluster, on = installed(sets=replaced(plugin)), facts(*EIGHT, on=node(labels={DEPLOYED: value}))
    assert BACKEND.preflight(driver(), cluster) == []
    if refused:
        assert [p.of_node for p in refusals(whole(), on=on, cluster=cluster)] == [True]
    else:
        assert compiled(whole(), on=on, cluster=cluster).pool.devices


# ------------------------------------------------------------------------------------------------------------- the installation


def test_a_good_installation_has_no_problems() -> None:
    assert BACKEND.preflight(driver(), installed()) == []


def replaced(*sets: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    named = {s["metadata"]["name"]: s for s in [*INSTALLED, *sets]}
    return list(named.values())


@pytest.mark.parametrize(
    ("sets", "reason", "fix"),
    [
        (INSTALLED[1:], "MigManagerMissing", "GPUCluster"),
        (INSTALLED[:1], "PluginMissing", "gpuResourcesEnabledOverride"),
        (replaced(daemon_set("gpu-operator", "nvidia-mig-manager", config="default")), "ConfigNotWired", "name: gpp-mig"),
        (replaced(daemon_set("gpu-operator", "nvidia-mig-manager", env={"WITH_REBOOT": "true"})), "WouldReboot", "reboot: Allow"),
        (replaced(daemon_set("dra-driver", "kubelet-plugin", env={"FEATURE_GATES": "A=true,DynamicMIG=true"})), "DynamicMigOn", "=false"),
        (replaced(daemon_set("gpu-operator", "plugin", app="nvidia-device-plugin-daemonset")), "DevicePluginPresent", "devicePlugin:"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_installation_is_said_with_what_to_write(sets: Any, reason: str, fix: str) -> None:
    (problem,) = BACKEND.preflight(driver(), installed(sets=sets))
    assert problem.reason == reason
    assert fix in problem.fix


def test_a_driver_that_allows_reboots_has_longer_for_them_and_no_problem_with_them() -> None:
    sets = replaced(daemon_set("gpu-operator", "nvidia-mig-manager", env={"WITH_REBOOT": "true"}))
    assert BACKEND.preflight(driver(reboot="Allow"), installed(sets=sets)) == []
    assert (BACKEND.applying(driver()), BACKEND.applying(driver(reboot="Allow"))) == ("applying_mig", "applying_reboot")


@pytest.mark.parametrize(
    ("text", "reason"), [("{", "ConfigUnreadable"), ("[]", "ConfigUnreadable"), ("a: " + "ü" * 500_001, "ConfigFull")]
)
def test_a_config_file_that_cannot_be_written_to_stops_everything(text: str, reason: str) -> None:
    config_map = {"metadata": {"namespace": "gpu-operator", "name": "gpp-mig"}, "data": {"config.yaml": text}}
    assert [p.reason for p in BACKEND.preflight(driver(), installed(config_map))] == [reason]


def test_a_config_map_that_nobody_can_write_into_any_more_is_told_with_the_way_out() -> None:
    config_map = {"metadata": {"namespace": "gpu-operator", "name": "gpp-mig"}, "immutable": True}
    (problem,) = BACKEND.preflight(driver(), installed(config_map))
    assert (problem.reason, problem.at) == ("ConfigImmutable", "ConfigMap gpu-operator/gpp-mig")
    assert "create it anew without immutable" in problem.fix


# -------------------------------------------------------------------------------------------------------------- what a node says


def test_a_node_that_was_told_and_has_done_it_is_ready() -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT[:2]))
    seen = observed(facts(*SEVENTHS, on=node(config.assignment, step="s")), config_map_of(config))
    assert (seen.ready, seen.acknowledged, seen.running, seen.step) == (True, True, config.fingerprint, "s")
    assert seen.plugin == PLUGIN
    assert seen.restarts


@pytest.mark.parametrize("state", [None, "pending", "rebooting", "failed"])
def test_a_node_that_has_not_done_it_is_not_ready_and_says_why(state: str | None) -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT[:2]))
    seen = observed(facts(*EIGHT[:2], on=node(config.assignment, state)), config_map_of(config))
    assert (seen.ready, seen.acknowledged, seen.running) == (False, False, "")
    assert (state or "not answered") in seen.complaint
    assert bool(seen.failed) is (state == "failed")


def test_labels_that_are_left_paused_are_named() -> None:
    paused = {"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change"}
    assert "nvidia.com/gpu.deploy.dcgm" in observed(facts(on=node("x", "pending", labels=paused))).complaint


def test_a_driver_whose_pod_is_not_up_is_not_ready() -> None:
    seen = observed(facts(*EIGHT, pods=[pod("dra-driver", "kubelet-plugin", ready=False)]))
    assert not seen.ready
    assert "kubelet-plugin" in seen.complaint


def test_a_pod_of_that_name_in_another_namespace_is_another_drivers() -> None:
    stranger = pod("elsewhere", "kubelet-plugin", ready=False, uid="stranger")
    seen = observed(facts(*EIGHT, pods=[stranger, PLUGIN]))
    assert (seen.plugin, seen.ready) == (PLUGIN, True)


def test_a_label_of_the_gpu_operator_itself_runs_what_whole_is() -> None:
    wanted = compiled(whole(), on=facts(*EIGHT))
    assert observed(facts(*EIGHT)).running == wanted.fingerprint


H100_IDS = ["0x233010DE", "0x233110DE", "0x232210DE", "0x232410DE"]
SEVEN = {"mig-enabled": True, "mig-devices": {"1g.10gb": 7}}


@pytest.mark.parametrize(
    "words",
    [
        [{"devices": "all", **SEVEN}],
        [{"devices": [1, 0], **SEVEN}],
        [{"devices": [1], **SEVEN}, {"devices": [0], **SEVEN}],
        [
            {"device-filter": ["0x20B710DE"], "devices": "all", "mig-enabled": True, "mig-devices": {"1g.6gb": 4}},
            {"device-filter": H100_IDS, "devices": "all", **SEVEN},
        ],
    ],
    ids=["for all", "by number", "each for itself", "by PCI ID, beside other models"],
)
def test_an_entry_of_somebody_elses_runs_what_it_means_however_it_says_so(words: Any) -> None:
    theirs = {"data": {"config.yaml": yaml.safe_dump({"version": "v1", "mig-configs": {"theirs": words}})}}
    theirs["metadata"] = {"namespace": "gpu-operator", "name": "gpp-mig"}
    wanted = compiled(profiles(("1g.10gb", 7)), on=facts(*SEVENTHS))
    on = facts(*SEVENTHS, on=node("theirs"))
    assert observed(on, theirs).running == wanted.fingerprint == way_back(on, theirs).fingerprint
    assert way_back(on, theirs).assignment == "theirs"


def test_gpus_that_somebody_cut_without_a_word_to_mig_manager_run_what_they_publish() -> None:
    by_hand = node(None, None)
    wanted = compiled(profiles(("1g.10gb", 7)), on=facts(*SEVENTHS, on=by_hand))
    assert observed(facts(*SEVENTHS, on=by_hand)).running == wanted.fingerprint
    assert observed(facts(*EIGHT[:2], on=by_hand)).running == compiled(whole(), on=facts(*EIGHT)).fingerprint
    assert observed(facts(on=by_hand)).running == ""


def test_a_node_that_lost_its_label_does_not_run_what_it_publishes() -> None:
    lost = node(None, None, step="s")
    assert observed(facts(*SEVENTHS, on=lost)).running == "", "mig-manager would not bring it back"


@pytest.mark.parametrize(("older", "stale"), [(timedelta(seconds=1), True), (-timedelta(seconds=1), False)])
def test_a_failure_of_a_pod_that_is_older_than_the_entry_may_be_of_an_old_copy(older: timedelta, stale: bool) -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT[:2]))
    pods = [PLUGIN, pod("gpu-operator", "nvidia-mig-manager", created=T0 - older)]
    seen = observed(facts(*EIGHT[:2], on=node(config.assignment, "failed"), pods=pods), config_map_of(config))
    assert seen.stale is stale


@pytest.mark.parametrize("text", ["{", "[]", "a: 1\n---\nb: 2"])
def test_a_failure_is_told_though_nobody_can_read_the_config_file(text: str) -> None:
    config_map = {"metadata": {"namespace": "gpu-operator", "name": "gpp-mig"}, "data": {"config.yaml": text}}
    seen = observed(facts(*EIGHT[:2], on=node("gpp-1", "failed")), config_map)
    assert "mig-manager failed" in seen.failed
    assert not seen.stale


# -------------------------------------------------------------------------------------------------------------- what disturbs whom


def disturbs(now: NodeFacts, then: Config) -> frozenset[str]:
    return BACKEND.disturbs(observed(now).pool, then.pool)


def test_another_cut_of_one_gpu_disturbs_only_that_gpu() -> None:
    now = facts(cut(0, H100, "7g.80gb"), cut(1, H100, "7g.80gb"))
    then = compiled(profiles("7g.80gb", match={"indexes": [0]}), profiles(("3g.40gb", 2)), on=now)
    assert disturbs(now, then) == {"gpu-1-mig-7g80gb-1-0"}
    assert disturbs(now, compiled(profiles("7g.80gb"), on=now)) == set()


def test_a_change_of_the_mode_of_one_gpu_disturbs_the_node() -> None:
    now = facts(cut(0, H100, "7g.80gb"), cut(1, H100), cut(2, H100))
    then = compiled(profiles("7g.80gb", match={"indexes": [0, 1]}), whole(type="Keep"), on=now)
    assert disturbs(now, then) == {"gpu-0-mig-7g80gb-1-0", "gpu-1", "gpu-2"}


def test_a_gpu_that_publishes_nothing_may_be_in_either_mode() -> None:
    known = compiled(profiles("7g.80gb"), on=facts(*EIGHT[:2])).pool
    now = facts(cut(0, H100, "7g.80gb"), known=known)
    assert disturbs(now, compiled(profiles("7g.80gb"), on=now)) == {"gpu-0-mig-7g80gb-1-0"}


# --------------------------------------------------------------------------------------------------------------------- the way back


def way_back(of: NodeFacts, *config_maps: Mapping[str, Any]) -> Config:
    return BACKEND.way_back(driver(), of, installed(*config_maps))


def test_back_is_by_the_same_label_where_it_means_what_is_there() -> None:
    back = way_back(facts(*EIGHT))
    assert (back.assignment, back.objects) == ("all-disabled", ())
    assert back.pool.equals(observed(facts(*EIGHT)).pool)


def test_back_to_a_layout_of_ours_is_by_its_entry_which_must_be_there() -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT[:2]))
    back = way_back(facts(*SEVENTHS, on=node(config.assignment)), config_map_of(config))
    assert back == config


@pytest.mark.parametrize("value", [None, "all-1g.10gb", "all-disabled"])
def test_back_from_a_label_that_means_nothing_or_something_else_is_by_an_entry_for_what_is_there(
    value: str | None,
) -> None:
    back = way_back(facts(*SEVENTHS, on=node(value)))
    assert entry_of(back) == [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]
    assert back.pool.equals(observed(facts(*SEVENTHS)).pool)


def test_back_of_a_node_that_lost_a_gpu_is_by_its_label_which_numbers_no_gpu() -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT[:3]))
    left = facts(SEVENTHS[0], cut(2, H100, *["1g.10gb"] * 7), on=node(config.assignment), known=config.pool)
    back = way_back(left, config_map_of(config))
    assert (back.assignment, back.objects) == (config.assignment, config.objects)
    assert observed(left).pool.equals(back.pool)
    assert observed(facts(SEVENTHS[0])).pool.equals_but_for_lost_gpus(back.pool)
    assert not observed(facts(cut(0, H100), cut(2, H100))).pool.equals(back.pool)


def test_back_is_in_the_spelling_of_the_nodes_own_driver() -> None:
    assert entry_of(way_back(facts(cut(0, H100, "7g.79gb"))))[0]["mig-devices"] == {"7g.79gb": 1}


def test_a_node_that_publishes_nothing_has_no_way_back() -> None:
    with pytest.raises(Refused) as refused:
        way_back(facts())
    assert refused.value.problems[0].reason == "NoWayBack"


# ---------------------------------------------------------------------------------------------------------------------- writing


def test_the_label_is_written_with_its_step_and_takes_the_old_answer_away() -> None:
    to = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT)).assigned()
    write = BACKEND.assign(driver(), facts(*EIGHT), to, "s", 1)
    assert write == PatchNode(
        node="n1", resource_version="7", labels={CONFIG: to.assignment, STATE: None}, annotations={STEP: "s"}
    )


def test_the_same_value_is_taken_away_first_without_using_the_step_up() -> None:
    to = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT)).assigned()
    first = BACKEND.assign(driver(), facts(*EIGHT, on=node(to.assignment)), to, "s", 1)
    assert first == PatchNode(node="n1", resource_version="7", labels={CONFIG: None, STATE: None})
    second = BACKEND.assign(driver(), facts(*EIGHT, on=node(None, None)), to, "s", 1)
    assert second is not None
    assert second.annotations == {STEP: "s"}  # type: ignore[union-attr]


def test_a_step_that_is_used_up_writes_nothing() -> None:
    to = compiled(whole(), on=facts(*EIGHT)).assigned()
    on = facts(*EIGHT, on=node("something", step="s"))
    assert BACKEND.assign(driver(), on, to, "s", 1) is None
    assert BACKEND.cancel(driver(), on, "s") is None
    assert BACKEND.cancel(driver(), on, "t") == PatchNode(node="n1", resource_version="7", annotations={STEP: "t"})


def test_an_entry_that_somebody_changed_is_written_anew_and_young_again() -> None:
    config = compiled(profiles(("1g.10gb", 7)), on=facts(*EIGHT))
    (body,) = config.objects
    config_map = copy.deepcopy(config_map_of(config))
    config_map["data"]["config.yaml"] = config_map["data"]["config.yaml"].replace("1g.10gb: 7", "1g.10gb: 6")
    again = body["document"].with_entry(config_map, body["key"], body["content"], T0 + timedelta(hours=1))
    assert (T0 + timedelta(hours=1)).isoformat() in again["metadata"]["annotations"][ENTRIES]
