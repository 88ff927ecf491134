"""The example driver, driven: one DaemonSet per layout, a label per node, and no layout that the driver cannot publish."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.example import (
    AS_SENT,
    BACKEND,
    BASE,
    CLUSTER,
    SHARED,
    as_the_server_gives_it_back,
    change,
    compiled,
    daemon_set,
    driver,
    facts,
    owned_by,
    pod,
    policy,
    policy_of,
    revision,
    waiting,
    with_env,
)

from gpupartition.api.v1alpha1 import PolicySpec
from gpupartition.backends.plugin_pods import base_label
from gpupartition.controller.trimmed import trim_pod
from gpupartition.domain.backend import Cluster, NodeFacts
from gpupartition.domain.effects import PatchNode
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused, Turn
from gpupartition.names import DRIVER, FINGERPRINT, LAYOUT, STEP

GI = 1024**3

# Kept release by release: whoever changes one of these moves every node of every cluster.
GOLDEN = {0: "edb8640494fabde1", 2: "5c9d7fdece30c7f2", 4: "c3624814dad068c5"}


def problems(wanted: PolicySpec, gpus: int = 8) -> list[Problem]:
    with pytest.raises(Refused) as refused:
        BACKEND.compile(driver(gpus), wanted, facts(), CLUSTER)
    return list(refused.value.problems)


# ------------------------------------------------------------------------------------------------------------------- fingerprints


@pytest.mark.parametrize(("parts", "golden"), GOLDEN.items())
def test_fingerprints_stay_what_they_were_in_the_last_release(parts: int, golden: str) -> None:
    assert compiled(policy(parts)) == golden


def test_what_the_server_fills_in_does_not_change_a_fingerprint() -> None:
    assert compiled(policy(2), as_the_server_gives_it_back()) == compiled(policy(2), AS_SENT)


def test_a_default_that_is_spelt_out_is_no_other_config() -> None:
    spelt_out = with_env(
        {"name": "GPU_ALLOW_MULTIPLE_ALLOCATIONS", "value": "false"}, *AS_SENT["spec"]["containers"][0]["env"]
    )
    base = Cluster(daemon_sets=[daemon_set(template=spelt_out)], controller_revisions=[revision(template=spelt_out)])
    assert BACKEND.observe(driver(), facts(pod()), base).running == compiled(policy(0))


@pytest.mark.parametrize(
    "other",
    [
        change(AS_SENT, image="registry.example/dra-example-driver:v0.5.0"),
        change(AS_SENT, env=[*reversed(AS_SENT["spec"]["containers"][0]["env"]), {"name": "A", "value": "1"}]),
        change(AS_SENT, resources={"requests": {"memory": "1024Mi", "cpu": "0.2"}}),
        change(AS_SENT, imagePullPolicy="Always"),
        {**AS_SENT, "metadata": {"labels": {}, "annotations": {"kubectl.kubernetes.io/restartedAt": "2030"}}},
    ],
    ids=["image", "env", "cpu", "pull policy", "restarted by hand"],
)
def test_whatever_changes_the_driver_changes_the_fingerprint(other: dict[str, Any]) -> None:
    assert compiled(policy(2), other) != compiled(policy(2))


def test_every_layout_has_a_fingerprint_of_its_own() -> None:
    seen = [compiled(policy(parts, sharing=sharing)) for parts in (0, 2, 4, 5) for sharing in ({}, SHARED)]
    seen += [compiled(policy(2), gpus=4)]
    assert len(set(seen)) == len(seen)


# ----------------------------------------------------------------------------------------------------------------------- variants


def test_a_variant_is_the_base_told_another_layout_and_bound_to_nodes_that_are_assigned_to_it() -> None:
    config = BACKEND.compile(driver(), policy(2), facts(), CLUSTER)
    (variant,) = config.objects
    whole = variant["metadata"]["annotations"][FINGERPRINT]
    marks = {LAYOUT: config.fingerprint, DRIVER: BASE}
    assert (len(whole), whole[:16]) == (64, config.fingerprint)
    assert variant["metadata"]["name"] == f"{BASE}-{config.fingerprint}"
    assert variant["metadata"]["labels"] == variant["spec"]["selector"]["matchLabels"] == marks
    assert variant["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "ownerReferences" not in variant["metadata"], "deleting a policy must not take plugins away"
    template = variant["spec"]["template"]
    assert template["metadata"]["labels"] == {"app.kubernetes.io/name": "dra-example-driver", **marks}
    assert template["spec"]["nodeSelector"] == {LAYOUT: config.fingerprint}
    assert "affinity" not in template["spec"]
    assert template["spec"]["containers"][0]["env"] == [
        {"name": "NUM_DEVICES", "value": "8"},
        {"name": "GPU_PARTITIONS", "value": "2"},
        {"name": "GPU_ALLOW_MULTIPLE_ALLOCATIONS", "value": "false"},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]


def test_a_variant_keeps_every_other_requirement_of_the_base() -> None:
    base = copy.deepcopy(AS_SENT)
    arch = {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}
    (term,) = base["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    term["matchExpressions"].append(arch)
    (variant,) = BACKEND.compile(driver(), policy(2), facts(), Cluster(daemon_sets=[daemon_set(template=base)])).objects
    affinity = variant["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert affinity == {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [arch]}]}
    }


def test_compiling_leaves_the_base_as_it_was_read() -> None:
    base = daemon_set()
    BACKEND.compile(driver(), policy(2), facts(), Cluster(daemon_sets=[base]))
    assert base == daemon_set()


def test_a_variant_that_somebody_changed_is_not_used() -> None:
    (variant,) = BACKEND.compile(driver(), policy(2), facts(), CLUSTER).objects
    changed = copy.deepcopy(dict(variant))
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    with pytest.raises(Refused, match=r"kubectl rollout undo daemonset/plugin-[0-9a-f]{16} --namespace gpu-driver"):
        BACKEND.compile(driver(), policy(2), facts(), Cluster(daemon_sets=[daemon_set(), changed]))


def test_nobody_is_told_to_roll_back_a_daemon_set_that_never_was_a_layout() -> None:
    (variant,) = BACKEND.compile(driver(), policy(2), facts(), CLUSTER).objects
    theirs = copy.deepcopy(dict(variant))
    theirs["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    del theirs["metadata"]["annotations"]
    with pytest.raises(Refused, match=r"somebody else's, .*; find out whose it is, and delete it"):
        BACKEND.compile(driver(), policy(2), facts(), Cluster(daemon_sets=[daemon_set(), theirs]))


def test_the_name_of_a_base_that_is_too_long_for_a_label_is_cut_and_stays_its_own() -> None:
    assert base_label("b" * 63) == "b" * 63
    long, other = base_label("b" * 200), base_label("b" * 199 + "c")
    assert len(long) == 63
    assert long != other


# ---------------------------------------------------------------------------------------------------------------- what is published


def drawing(pool: Pool) -> list[str]:
    """One line per device: name, memory in Gi (or bytes), compute, and the counters that it draws on."""
    lines = []
    for device in pool.devices:
        memory = device.capacity["memory"]
        size = f"{memory // GI}Gi" if memory % GI == 0 else str(memory)
        assert all(cost == device.capacity for cost in device.costs.values())
        lines.append(" ".join([device.name, size, str(device.capacity["compute"]), *device.costs]))
    return lines


def test_whole_gpus_are_plain_devices() -> None:
    pool = BACKEND.compile(driver(2), policy(0), facts(), CLUSTER).pool
    assert drawing(pool) == ["gpu-0 80Gi 100", "gpu-1 80Gi 100"]
    assert pool.counters == {}


def test_parts_come_before_the_whole_and_draw_on_the_same_counters() -> None:
    pool = BACKEND.compile(driver(2), policy(2), facts(), CLUSTER).pool
    assert drawing(pool) == [
        "gpu-0-partition-0 40Gi 50 gpu-0-counters",
        "gpu-0-partition-1 40Gi 50 gpu-0-counters",
        "gpu-0-full 80Gi 100 gpu-0-counters",
        "gpu-1-partition-0 40Gi 50 gpu-1-counters",
        "gpu-1-partition-1 40Gi 50 gpu-1-counters",
        "gpu-1-full 80Gi 100 gpu-1-counters",
    ]
    whole = {"memory": 80 * GI, "compute": 100}
    assert pool.counters == {"gpu-0-counters": whole, "gpu-1-counters": whole}


@pytest.mark.parametrize(
    ("dropped", "gate"),
    [
        ("spec.sharedCounters", "DRAPartitionableDevices"),
        ("spec.devices[0].consumesCounters", "DRAPartitionableDevices"),
        ("spec.devices[0].allowMultipleAllocations", "DRAConsumableCapacity"),
        ("spec.devices[0].capacity.memory.requestPolicy", "DRAConsumableCapacity"),
    ],
)
def test_what_the_api_server_would_drop_of_a_layout_is_refused_with_the_gate_and_other_layouts_are_not(
    dropped: str, gate: str
) -> None:
    lacks = replace(CLUSTER, dropped=[dropped])
    layouts = {"DRAPartitionableDevices": policy(2), "DRAConsumableCapacity": policy(0, sharing=SHARED)}
    with pytest.raises(Refused) as refused:
        BACKEND.compile(driver(), layouts.pop(gate), facts(), lacks)
    (problem,) = refused.value.problems
    assert (problem.reason, problem.turn) == ("FeatureGateOff", Turn.CLUSTER)
    assert gate in problem.fix
    for other in (*layouts.values(), policy(0)):
        BACKEND.compile(driver(), other, facts(), lacks)


def test_thirds_are_whole_bytes_rounded_down() -> None:
    pool = BACKEND.compile(driver(1), policy(3), facts(), CLUSTER).pool
    assert drawing(pool)[0] == "gpu-0-partition-0 28633115306 33 gpu-0-counters"


def test_shared_devices_say_so() -> None:
    assert all(d.shared for d in BACKEND.compile(driver(), policy(2, sharing=SHARED), facts(), CLUSTER).pool.devices)


@pytest.mark.parametrize(("gpus", "parts"), [(8, 7), (4, 15), (1, 63), (64, 0)])
def test_the_largest_layouts_of_the_api_are_accepted(gpus: int, parts: int) -> None:
    assert BACKEND.compile(driver(gpus), policy(parts), facts(), CLUSTER).pool.devices


# ------------------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("gpus", "wanted", "reason", "at", "fix"),
    [
        (9, policy(2), "TooManyGpus", "spec.layouts[0].equal.parts", "use type Whole on nodes with more than 8 GPUs"),
        (8, policy(8), "TooManyParts", "spec.layouts[0].equal.parts", "use 6 or 7 parts"),
        (4, policy(20), "TooManyParts", "spec.layouts[0].equal.parts", "use 14 or 15 parts"),
        (2, policy(3, sharing=SHARED), "PartsNotWholeGi", "spec.layouts[0].equal.parts", "use 2 or 4 parts"),
        (8, policy(7, sharing=SHARED), "PartsNotWholeGi", "spec.layouts[0].equal.parts", "use 4 or 5 parts"),
        (8, policy(2, equal={"parts": 2, "offerWhole": False}), "WholeAlwaysOffered", "spec.layouts[0].equal.offerWhole", "leave it out"),
        (8, policy(0, match={"indexes": [0]}), "LayoutNotUniform", "spec.layouts[0].match", "match: {all: true}"),
        (8, policy(0, type="Choices", choices={"profiles": ["1g"]}), "LayoutTypeUnsupported", "spec.layouts[0].type", "Publish"),
        (8, policy(0, sharing={**SHARED, "capacity": {"memory": {"default": "1Gi"}}}), "SharingCapacityUnsupported",
         "spec.layouts[0].sharing.capacity", "leave it out"),
    ],
)  # fmt: skip
def test_what_the_driver_would_fail_at_is_refused_beforehand_with_what_fits(
    gpus: int, wanted: PolicySpec, reason: str, at: str, fix: str
) -> None:
    (problem,) = problems(wanted, gpus)
    assert (problem.reason, problem.at) == (reason, at)
    assert fix in problem.fix


def test_the_numbers_are_named() -> None:
    (problem,) = problems(policy(8))
    assert problem.why == "8 GPUs in 8 parts and as a whole are 72 devices in one slice, and the API takes 64"


def test_all_problems_are_told_at_once() -> None:
    two = policy_of(
        {"name": "a", "match": {"indexes": [0]}, "type": "Equal", "equal": {"parts": 9, "offerWhole": False}},
        {"name": "b", "match": {"all": True}, "type": "Whole"},
    )
    assert [p.reason for p in problems(two)] == ["LayoutNotUniform", "WholeAlwaysOffered", "TooManyParts"]


# ---------------------------------------------------------------------------------------------------------------------- preflight


def preflight(*daemon_sets: Mapping[str, Any]) -> list[Problem]:
    return list(BACKEND.preflight(driver(), Cluster(daemon_sets=daemon_sets)))


def test_a_base_as_the_chart_should_install_it_has_no_problem() -> None:
    assert preflight(daemon_set()) == []


def test_a_missing_base_is_named() -> None:
    (problem,) = preflight()
    assert problem.reason == "BaseMissing"
    assert "no DaemonSet plugin in namespace gpu-driver" in str(problem)


def test_a_base_that_rolls_by_itself_is_told_how_not_to() -> None:
    (problem,) = preflight(daemon_set(updateStrategy={"type": "RollingUpdate"}))
    assert problem.reason == "BaseRollsItself"
    assert problem.fix == "set spec: {updateStrategy: {type: OnDelete}}"


@pytest.mark.parametrize("way_in", ["no affinity", "one term without"])
def test_a_base_that_would_run_beside_a_variant_is_told_what_to_add(way_in: str) -> None:
    base = daemon_set()
    spec = base["spec"]["template"]["spec"]
    if way_in == "no affinity":
        del spec["affinity"]
    else:
        required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        required["nodeSelectorTerms"].append({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]})
    (problem,) = preflight(base)
    assert problem.reason == "BaseNotExclusive"
    assert "matchExpressions: [{key: gpupartition.dev/layout, operator: DoesNotExist}]" in problem.fix


@pytest.mark.parametrize(
    ("template", "reason", "why"),
    [
        (with_env({"name": "NUM_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}), "EnvUnreadable", "NUM_DEVICES"),
        (with_env({"name": "DRIVER_NAME", "value": "$(NAME).example.com"}), "EnvUnreadable", "DRIVER_NAME"),
        (with_env(envFrom=[{"configMapRef": {"name": "c"}}]), "EnvUnreadable", "DRIVER_NAME"),
        (with_env({"name": "GPU_PARTITIONS", "value": "two"}), "EnvUnreadable", "'two'"),
        (with_env({"name": "GPU_ALLOW_MULTIPLE_ALLOCATIONS", "value": "yes"}), "EnvUnreadable", "'yes'"),
        (with_env({"name": "DEVICE_PROFILE", "value": "net"}), "EnvUnreadable", "no GPUs"),
        (with_env(args=["--gpu-partitions=4"]), "EnvUnreadable", "--gpu-partitions"),
    ],
    ids=["valueFrom", "reference", "envFrom", "number", "boolean", "profile", "flag"],
)  # fmt: skip
def test_a_setting_that_cannot_be_read_is_refused(template: dict[str, Any], reason: str, why: str) -> None:
    found = preflight(daemon_set(template=template))
    assert {p.reason for p in found} == {reason}
    assert why in str(found[0])


def test_a_pod_in_which_the_plugin_cannot_be_told_is_refused() -> None:
    template = with_env()
    template["spec"]["containers"].append({"name": "sidecar", "image": "s"})
    assert {p.reason for p in preflight(daemon_set(template=template))} == {"NoPluginContainer"}
    template["spec"]["containers"][0]["env"] = [{"name": "NUM_DEVICES", "value": "8"}]
    assert preflight(daemon_set(template=template)) == []


def test_the_driver_name_is_the_literal_one_or_the_drivers_default() -> None:
    assert BACKEND.driver_name(driver(), CLUSTER) == "gpu.example.com"
    named = Cluster(daemon_sets=[daemon_set(template=with_env({"name": "DRIVER_NAME", "value": "a.example"}))])
    assert BACKEND.driver_name(driver(), named) == "a.example"
    with pytest.raises(Refused, match="no DaemonSet"):
        BACKEND.driver_name(driver(), Cluster())


# -------------------------------------------------------------------------------------------------------------- what the node says


def test_a_base_that_already_runs_what_a_policy_asks_for_is_known_by_its_fingerprint() -> None:
    seen = BACKEND.observe(driver(), facts(pod()), CLUSTER)
    assert (seen.assignment, seen.running, seen.ready) == (None, compiled(policy(0)), True)


def test_a_variants_pod_runs_the_fingerprint_that_the_variant_is_named_by() -> None:
    config = BACKEND.compile(driver(), policy(4), facts(), CLUSTER)
    (variant,) = config.objects
    name = variant["metadata"]["name"]
    cluster = Cluster(
        daemon_sets=[daemon_set(), daemon_set(name, variant["spec"]["template"])],
        controller_revisions=[revision(name, template=variant["spec"]["template"])],
    )
    seen = BACKEND.observe(driver(), facts(pod(name), assignment=config.assignment), cluster)
    assert (seen.running, seen.ready) == (config.fingerprint, True)
    back = BACKEND.way_back(driver(), facts(pod(name), assignment=config.assignment), cluster)
    assert (back.assignment, back.fingerprint) == (config.assignment, config.fingerprint)
    assert back.objects == config.objects


STRANGERS = {"namespace": "gpu-driver", "name": "x", "uid": "x", "ownerReferences": [owned_by("x")]}
STRANGER = pod("somebody-elses", "x") | {"metadata": STRANGERS}


@pytest.mark.parametrize(
    ("pods", "ready", "plugin"),
    [
        ([pod()], True, "p1"),
        ([pod(ready=False)], False, "p1"),
        ([pod(), pod("plugin-old", "p0", ending=True)], False, "p1"),
        ([pod(), pod(name="p0", ending=True)], False, "p1"),
        ([pod(ending=True)], False, None),
        ([pod("plugin-old", "p0")], False, None),
        ([], False, None),
        ([pod(), STRANGER], True, "p1"),
    ],
    ids=["ready", "starting", "variant ending", "former ending", "ending", "only a variant's", "none", "a stranger beside"],
)  # fmt: skip
def test_the_driver_is_ready_when_the_assigned_pod_is_ready_and_alone(
    pods: list[dict[str, Any]], ready: bool, plugin: str | None
) -> None:
    seen = BACKEND.observe(driver(), facts(*pods), CLUSTER)
    assert (seen.ready, seen.plugin and seen.plugin["metadata"]["name"]) == (ready, plugin)


def test_a_pod_whose_revision_is_gone_runs_nobody_knows_what() -> None:
    assert BACKEND.observe(driver(), facts(pod(revision="gone")), CLUSTER).running == ""
    foreign = revision()
    foreign["metadata"]["ownerReferences"][0]["uid"] = "of a former DaemonSet of that name"
    assert BACKEND.observe(driver(), facts(pod()), Cluster(controller_revisions=[foreign])).running == ""


# -------------------------------------------------------------------------------------------------------------------- the way back


def test_the_way_back_to_a_current_base_is_no_assignment() -> None:
    back = BACKEND.way_back(driver(), facts(pod()), CLUSTER)
    assert (back.assignment, back.objects, back.fingerprint) == (None, (), compiled(policy(0)))
    assert drawing(back.pool)[0] == "gpu-0 80Gi 100", "no slices yet: what the base will publish"


def test_the_way_back_to_an_older_base_is_frozen_as_a_variant() -> None:
    old = change(AS_SENT, image="registry.example/dra-example-driver:v0.3.0")
    cluster = Cluster(daemon_sets=[daemon_set()], controller_revisions=[revision(), revision(name="r0", template=old)])
    back = BACKEND.way_back(driver(), facts(pod(revision="r0")), cluster)
    (frozen,) = back.objects
    assert back.assignment == back.fingerprint == compiled(policy(0), old)
    assert frozen["spec"]["template"]["spec"]["containers"][0]["image"].endswith("v0.3.0")
    assert frozen["spec"]["template"]["spec"]["nodeSelector"] == {LAYOUT: back.fingerprint}


def test_a_node_without_a_plugin_pod_goes_back_to_what_its_assignment_would_bring() -> None:
    assert BACKEND.way_back(driver(), facts(), CLUSTER).assignment is None


@pytest.mark.parametrize(
    ("here", "cluster"),
    [(facts(assignment="0123456789abcdef"), CLUSTER), (facts(pod(revision="gone")), CLUSTER), (facts(), Cluster())],
    ids=["variant gone", "revision gone", "base gone"],
)
def test_where_nothing_says_what_runs_there_is_no_way_back(here: NodeFacts, cluster: Cluster) -> None:
    with pytest.raises(Refused, match="accept-no-rollback") as refused:
        BACKEND.way_back(driver(), here, cluster)
    assert [p.reason for p in refused.value.problems] == ["NoWayBack"]


# ----------------------------------------------------------------------------------------------------------------------- assigning


def test_label_and_step_are_written_in_one_patch_under_the_nodes_version() -> None:
    to = BACKEND.compile(driver(), policy(2), facts(), CLUSTER).assigned()
    assert BACKEND.assign(driver(), facts(), to, "s1", 1) == PatchNode(
        node="n1", resource_version="7", labels={LAYOUT: to.assignment}, annotations={STEP: "s1"}
    )
    home = BACKEND.way_back(driver(), facts(pod()), CLUSTER).assigned()
    assert BACKEND.assign(driver(), facts(assignment="x"), home, "s1", 1) == PatchNode(
        node="n1", resource_version="7", labels={LAYOUT: None}, annotations={STEP: "s1"}
    )


def test_a_step_that_is_used_up_writes_nothing_any_more() -> None:
    to = BACKEND.compile(driver(), policy(2), facts(), CLUSTER).assigned()
    assert BACKEND.assign(driver(), facts(step="s1"), to, "s1", 1) is None
    assert BACKEND.cancel(driver(), facts(step="s1"), "s1") is None


def test_cancelling_uses_the_step_up_and_touches_no_label() -> None:
    assert BACKEND.cancel(driver(), facts(step="s0"), "s1") == PatchNode(
        node="n1", resource_version="7", labels={}, annotations={STEP: "s1"}
    )


def test_a_change_disturbs_the_whole_node_and_no_change_nobody() -> None:
    halves = BACKEND.compile(driver(1), policy(2), facts(), CLUSTER).pool
    quarters = BACKEND.compile(driver(1), policy(4), facts(), CLUSTER).pool
    assert BACKEND.disturbs(halves, quarters) == {"gpu-0-partition-0", "gpu-0-partition-1", "gpu-0-full"}
    assert BACKEND.disturbs(halves, halves) == frozenset()


def test_slices_of_the_driver_are_never_repaired_by_us() -> None:
    assert (
        BACKEND.repair(driver(), facts(), BACKEND.compile(driver(), policy(2), facts(), CLUSTER).assigned(), None, 1)
        is None
    )


@pytest.mark.parametrize(
    ("there", "assignment", "says"),
    [
        ([], None, "DaemonSet gpu-driver/plugin has made none for it"),
        ([pod()], "abc", "there is no DaemonSet gpu-driver/plugin-abc"),
        ([pod(ready=False)], None, "its driver pod is not ready: gpu-driver/p1 is Running"),
        (
            [trim_pod(waiting("CrashLoopBackOff"))],
            None,
            "its driver pod is not ready: gpu-driver/p1 is CrashLoopBackOff",
        ),
        ([pod()], None, ""),
        ([pod(), pod(name="p2", ending=True)], None, "its former driver pod has not ended"),
    ],
)
def test_a_driver_that_is_not_up_is_said_to_be_missing_late_or_not_alone(
    there: list[dict[str, Any]], assignment: str | None, says: str
) -> None:
    seen = BACKEND.observe(driver(), facts(*there, assignment=assignment), CLUSTER)
    assert says in seen.complaint
    assert seen.ready == (not says)
