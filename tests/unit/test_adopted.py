"""What nodes have is said in words that are compiled into just that, drivers are known by what runs, and policies find only their own nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit import amd, example, nvidia
from tests.unit import published as publishing
from tests.unit.adopted import ALL, DISABLED, Words, adopted, amd_cluster, example_node, mig_cluster, of
from tests.unit.worlds import HALVES, HALVES_RESTARTED, WHOLE, seen, world

from gpupartition.api.v1alpha1 import DriverSpec, NodeStateStatus
from gpupartition.backends import BACKENDS
from gpupartition.backends.adopted import layouts_of
from gpupartition.backends.recognised import keeper, recognised
from gpupartition.domain.adoption import (
    LASTING,
    MAX_VALUES,
    Adopted,
    LeftOut,
    policies,
    touched,
    unfit,
    why_not,
)
from gpupartition.domain.backend import Cluster, NodeFacts, Observation
from gpupartition.domain.groups import HOSTNAME
from gpupartition.domain.guards import has_wanted
from gpupartition.domain.pool import Pool


def refusal(driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> str:
    with pytest.raises(LeftOut) as left_out:
        layouts_of(driver, facts, cluster)
    return str(left_out.value)


def cut(devices: Any = "all", **counts: int) -> Words:
    profiles = {name.removeprefix("_").replace("_", "."): count for name, count in counts.items()}
    return {"devices": devices, "mig-enabled": True, "mig-devices": profiles}


def profiles(**counts: int) -> Words:
    named = {name.removeprefix("_").replace("_", "."): count for name, count in counts.items()}
    return {"type": "Profiles", "profiles": [{"name": name, "count": count} for name, count in named.items()]}


# ------------------------------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize(
    ("gpus", "parts", "shared", "said"),
    [
        (8, 0, False, {"type": "Whole"}),
        (8, 2, False, {"type": "Equal", "equal": {"parts": 2}}),
        (3, 7, False, {"type": "Equal", "equal": {"parts": 7}}),
        (8, 4, True, {"type": "Equal", "equal": {"parts": 4}, "sharing": {"mode": "Shared"}}),
        (12, 0, True, {"type": "Whole", "sharing": {"mode": "Shared"}}),
    ],
)
def test_what_the_example_driver_was_told_by_hand_is_said(gpus: int, parts: int, shared: bool, said: Words) -> None:
    facts, cluster = example_node(gpus, parts, shared=shared)
    assert adopted(example.driver(gpus), facts, cluster) == [{**ALL, **said}]


HALF = Pool(devices=HALVES.pool.devices, problem="1 of 2 slices are there")


@pytest.mark.parametrize(
    "seen_as",
    [
        seen(HALVES),
        seen(WHOLE),
        seen(HALVES_RESTARTED),
        seen(HALVES, ready=False),
        seen(HALVES, pool=HALF),
        seen(HALVES, pool=Pool()),
        seen(WHOLE, pool=HALVES.pool),
    ],
)
def test_what_is_adopted_here_is_what_the_operator_finds_done(seen_as: Observation) -> None:
    why = unfit(seen_as) or why_not(HALVES, seen_as) or touched(HALVES, seen_as)
    assert (not why) == has_wanted(NodeStateStatus(), world(observed=seen_as))


def test_a_gpu_in_one_part_is_no_layout_that_a_policy_has() -> None:
    facts, cluster = example_node(8, 1)
    assert "no layout makes this driver publish" in refusal(example.driver(), facts, cluster)


def test_a_number_of_gpus_that_the_driver_does_not_have_is_told() -> None:
    facts, cluster = example_node(4, 0)
    assert "it publishes 4 GPUs, and its driver has gpusPerNode: 8" in refusal(example.driver(), facts, cluster)


def test_a_driver_of_another_release_publishes_what_a_policy_says_and_would_be_restarted() -> None:
    facts, cluster = example_node(8, 2)
    newer = example.change(
        cluster.daemon_sets[0]["spec"]["template"], image="registry.example/dra-example-driver:v0.5.0"
    )
    moved_on = Cluster(
        daemon_sets=[example.daemon_set(template=newer)], controller_revisions=cluster.controller_revisions
    )
    backend, driver = BACKENDS[example.driver().type], example.driver()
    layouts = layouts_of(driver, facts, moved_on)
    wanted = backend.compile(driver, of(layouts), facts, moved_on)
    seen_as = backend.observe(driver, facts, moved_on)
    assert why_not(wanted, seen_as) == ""
    assert "the driver is restarted there" in touched(wanted, seen_as)


@pytest.mark.parametrize(
    ("entries", "gpus", "said"),
    [
        ([cut(_3g_40gb=2)], [["3g.40gb"] * 2] * 8, [{**ALL, **profiles(_3g_40gb=2)}]),
        (DISABLED, [[]] * 2, [{**ALL, "type": "Whole"}]),
        # The driver publishes another size for what the file calls so: the file is right.
        ([cut(_7g_80gb=1)], [["7g.79gb"]], [{**ALL, **profiles(_7g_80gb=1)}]),
        (
            [cut([0, 2], _7g_80gb=1), {"devices": [1], "mig-enabled": False}],
            [["7g.80gb"], [], ["7g.80gb"]],
            [
                {"match": {"indexes": [0, 2]}, **profiles(_7g_80gb=1)},
                {"match": {"indexes": [1]}, "type": "Whole"},
            ],
        ),
        (
            [cut([1], _7g_80gb=1)],
            [[], ["7g.80gb"]],
            [{"match": {"indexes": [0]}, "type": "Keep"}, {"match": {"indexes": [1]}, **profiles(_7g_80gb=1)}],
        ),
    ],
    ids=["alike", "whole", "spelled", "by number", "some are left alone"],
)
def test_what_mig_manager_was_told_by_a_name_of_somebody_elses_is_said(
    entries: Any, gpus: list[list[str]], said: list[Words]
) -> None:
    devices = [nvidia.cut(number, nvidia.H100, *has) for number, has in enumerate(gpus)]
    facts = nvidia.facts(*devices, on=nvidia.node("by-hand"))
    assert adopted(nvidia.driver(), facts, mig_cluster(**{"by-hand": entries})) == said


BY_HAND = [
    ([["3g.40gb"] * 2] * 8, [{**ALL, **profiles(_3g_40gb=2)}]),
    ([["7g.79gb"]], [{**ALL, **profiles(_7g_79gb=1)}]),
    ([[], []], [{**ALL, "type": "Whole"}]),
    (
        [["1g.10gb"] * 7, []],
        [
            {"match": {"indexes": [0]}, **profiles(_1g_10gb=7)},
            {"match": {"indexes": [1]}, "type": "Whole"},
        ],
    ),
]


@pytest.mark.parametrize(("gpus", "said"), BY_HAND, ids=["alike", "spelled", "whole", "by number"])
def test_what_somebody_cut_without_a_word_to_mig_manager_is_said(gpus: list[list[str]], said: list[Words]) -> None:
    devices = [nvidia.cut(number, nvidia.H100, *has) for number, has in enumerate(gpus)]
    assert adopted(nvidia.driver(), nvidia.facts(*devices, on=nvidia.node(None, None)), mig_cluster()) == said


def test_a_gpu_that_nobody_publishes_and_nobody_told_anything_of_is_kept() -> None:
    two = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2"}
    facts = nvidia.facts(nvidia.cut(0, nvidia.H100, "7g.80gb"), on=nvidia.node(None, None, labels=two))
    assert adopted(nvidia.driver(), facts, mig_cluster()) == [
        {"match": {"indexes": [0]}, **profiles(_7g_80gb=1)},
        {"match": {"indexes": [1]}, "type": "Keep"},
    ]


@pytest.mark.parametrize(
    ("label", "state", "why"),
    [
        ("all-disabled", "success", "all-disabled is assigned to them, which does not say what they publish"),
        ("not-in-the-file", "failed", "mig-manager failed"),
    ],
)
def test_what_was_cut_behind_the_back_of_the_label_is_said_and_would_be_assigned(
    label: str, state: str, why: str
) -> None:
    facts = nvidia.facts(nvidia.cut(0, nvidia.H100, "7g.80gb"), on=nvidia.node(label, state))
    said = {"name": "1x7g-80gb", **ALL, **profiles(_7g_80gb=1)}
    assert would(nvidia.driver(), facts, mig_cluster(), said).startswith(why)


@pytest.mark.parametrize(
    ("label", "state", "why"),
    [
        ("whole", "success", "whole is assigned to them, which does not say what they publish"),
        ("not-in-the-file", "failure", "Device Config Manager has no profile not-in-the-file"),
    ],
)
def test_modes_that_were_set_behind_the_back_of_the_label_are_said_and_would_be_assigned(
    label: str, state: str, why: str
) -> None:
    facts = amd.facts(amd.gpu(0, "cpx_nps1"), on=amd.node(label, state))
    said = {"name": "cpx-nps1", **ALL, "type": "Mode", "mode": {"compute": "CPX", "memory": "NPS1"}}
    whole = {"profiles": [amd.item("SPX", "NPS1", 1)]}
    assert would(amd.driver(), facts, amd_cluster(whole=whole), said).startswith(why)


def would(driver: DriverSpec, facts: NodeFacts, cluster: Cluster, said: Words) -> str:
    """What would be done to a node that publishes what is said of it, and for which that would have to be enforced."""
    backend = BACKENDS[driver.type]
    wanted, seen_as = backend.compile(driver, of([said]), facts, cluster), backend.observe(driver, facts, cluster)
    assert layouts_of(driver, facts, cluster) == [said]
    assert unfit(seen_as) == why_not(wanted, seen_as) == ""
    assert f"to enforce this, {wanted.assignment} is assigned" in touched(wanted, seen_as)
    return touched(wanted, seen_as)


def test_gpus_of_two_products_are_said_by_product() -> None:
    facts = nvidia.facts(nvidia.cut(0, nvidia.A100), nvidia.cut(1, nvidia.H100, "7g.80gb"), on=nvidia.node("by-hand"))
    entries = [{"devices": [0], "mig-enabled": False}, cut([1], _7g_80gb=1)]
    assert adopted(nvidia.driver(), facts, mig_cluster(**{"by-hand": entries})) == [
        {"match": {"products": [nvidia.A100]}, "type": "Whole"},
        {"match": {"products": [nvidia.H100]}, **profiles(_7g_80gb=1)},
    ]


def test_a_gpu_whose_mig_mode_is_on_without_a_partition_is_said_by_nobody() -> None:
    two = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2"}
    facts = nvidia.facts(nvidia.cut(0, nvidia.H100), on=nvidia.node("by-hand", labels=two))
    entries = [{"devices": [0], "mig-enabled": False}, {"devices": [1], "mig-enabled": True, "mig-devices": {}}]
    assert "the MIG mode of GPU 1 is on" in refusal(nvidia.driver(), facts, mig_cluster(**{"by-hand": entries}))


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        (["SPX-NPS1"] * 2, [{**ALL, "type": "Whole"}]),
        (["CPX-NPS4"] * 2, [{**ALL, "type": "Mode", "mode": {"compute": "CPX", "memory": "NPS4"}}]),
        (
            ["CPX-NPS1", "SPX-NPS1", "CPX-NPS1"],
            [
                {"match": {"indexes": [0, 2]}, "type": "Mode", "mode": {"compute": "CPX", "memory": "NPS1"}},
                {"match": {"indexes": [1]}, "type": "Whole"},
            ],
        ),
    ],
    ids=["whole", "alike", "by number"],
)
def test_modes_that_were_set_by_a_name_of_somebody_elses_are_said(modes: list[str], said: list[Words]) -> None:
    pairs = [(compute, memory) for compute, _, memory in (mode.partition("-") for mode in modes)]
    told = [amd.item(*pair, 1) for pair in pairs] if len(set(modes)) > 1 else [amd.item(*pairs[0], len(modes))]
    gpus = [amd.gpu(number, "_".join(pair).lower()) for number, pair in enumerate(pairs)]
    facts = amd.facts(*gpus, on=amd.node("by-hand", "success"))
    assert adopted(amd.driver(), facts, amd_cluster(**{"by-hand": {"profiles": told}})) == said


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ("spx_nps1", {"type": "Whole"}),
        ("cpx_nps4", {"type": "Mode", "mode": {"compute": "CPX", "memory": "NPS4"}}),
    ],
)
def test_what_somebody_did_to_amds_gpus_without_a_word_to_anybody_is_said(modes: str, said: Words) -> None:
    facts = amd.facts(*(amd.gpu(number, modes) for number in range(8)))
    assert adopted(amd.driver(), facts, amd.installed()) == [{**ALL, **said}]


def test_gpus_of_a_model_of_ones_own_are_said_by_it() -> None:
    table = {"gpus": [{"name": "MI999X", "partitions": {"SPX": 1, "CPX": 2}, "validated": ["SPX/NPS1", "CPX/NPS1"]}]}
    meta = {"namespace": "kube-amd-gpu", "name": "own", "uid": "u", "resourceVersion": "1"}
    own = amd.gpu(0, "cpx_nps1", "AMD_Instinct_MI999X_OAM", count=2), amd.gpu(1, "spx_nps1", "MI999X")
    cluster = amd.installed({"metadata": meta, "data": {"table.json": json.dumps(table)}})
    found = adopted(amd.driver(tables={"name": "own"}), amd.facts(*own), cluster)
    assert [each["match"] for each in found] == [{"indexes": [0]}, {"indexes": [1]}], "both are called MI999X"


SHARING = {"mode": "Shared", "capacity": {"memory": {"default": "1Gi", "min": "1Gi", "max": "8Gi", "step": "1Gi"}}}
SLICED = {
    **publishing.H100,
    "profiles": [
        {"name": name, "capacity": {"memory": f"{gi}Gi"}, "placements": [{"counters": {"memory": f"{gi}Gi"}}] * 2}
        for name, gi in (("1g.10gb", 10), ("2g.20gb", 20))
    ],
}


@pytest.mark.parametrize(
    "said",
    [
        {"type": "Whole"},
        {"type": "Equal", "equal": {"parts": 4}},
        {"type": "Equal", "equal": {"parts": 4, "offerWhole": False}, "sharing": SHARING},
        {"type": "Choices", "choices": {"profiles": ["1g.10gb", "2g.20gb"]}},
        {"type": "Profiles", "profiles": [{"name": "1g.10gb", "count": 1}, {"name": "2g.20gb", "count": 2}]},
    ],
)
def test_what_the_operator_itself_published_is_said(said: Words) -> None:
    assert published(said, SLICED) == [{**ALL, **said}]


@pytest.mark.parametrize(
    ("product", "said"),
    [
        (nvidia.H100, {"type": "Choices", "choices": {"profiles": ["1g.10gb", "3g.40gb"], "offerWhole": False}}),
        (nvidia.H100, {"type": "Profiles", "profiles": [{"name": "1g.10gb", "count": 7}]}),
        (amd.MI300X, {"type": "Mode", "mode": {"compute": "CPX", "memory": "NPS4"}}),
        (amd.MI300X, {"type": "Choices", "choices": {"profiles": ["dpx_nps1", "cpx_nps1"]}}),
    ],
)
def test_what_the_operator_itself_published_of_gpus_that_a_table_knows_is_said(product: str, said: Words) -> None:
    assert published(said, {"count": 2, "product": product, "memory": "80Gi"}) == [{**ALL, **said}]


def published(said: Words, *gpus: Words) -> list[Words]:
    """What is said of a node of which the operator itself has published these GPUs in this layout."""
    server = publishing.Server(publishing.driver(*gpus))
    wanted = publishing.config({**ALL, **said}, of=server.driver)
    list(server.assign(wanted.assigned(), "step"))
    return adopted(server.driver, server.facts, Cluster())


# ------------------------------------------------------------------------------------------------------- what runs in the cluster

PLUGIN = "dra-driver-nvidia-gpu"


def running(namespace: str, name: str, image: str, volumes: Mapping[str, str] | None = None) -> Words:
    spec: Words = {"containers": [{"name": "c", "image": image}]}
    spec["volumes"] = [{"name": volume, "configMap": {"name": of}} for volume, of in (volumes or {}).items()]
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"template": {"spec": spec}}}


MIG_MANAGER = running(
    "gpu-operator",
    "nvidia-mig-manager",
    "mirror.example:5000/nvidia/k8s-mig-manager:v0.15.0@sha256:0",
    {"gpu-clients": "clients", "mig-parted-config": "layouts"},
)


def test_nvidias_software_is_known_by_its_images_wherever_they_are_mirrored() -> None:
    (found,) = recognised("gpu.nvidia.com", [MIG_MANAGER, running("dra", "plugin", f"mirror.example/{PLUGIN}:v0.5.0")])
    assert DriverSpec.model_validate(found.spec).nvidia_mig is not None
    assert found.spec["nvidiaMig"] == {
        "migManager": {"namespace": "gpu-operator", "name": "nvidia-mig-manager"},
        "config": "layouts",
        "plugin": {"namespace": "dra", "name": "plugin"},
    }


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ([MIG_MANAGER], f"no DaemonSet runs {PLUGIN}"),
        ([MIG_MANAGER, *(running("dra", f"plugin-{n}", PLUGIN) for n in (1, 2))], "dra/plugin-1, dra/plugin-2"),
    ],
)
def test_software_that_is_not_there_or_there_twice_is_not_guessed(sets: list[Words], why: str) -> None:
    with pytest.raises(LeftOut, match=why):
        recognised("gpu.nvidia.com", sets)


def test_of_the_example_driver_only_what_somebody_installed_under_that_name_is_a_base() -> None:
    facts, cluster = example_node(8, 2)
    (variant,) = BACKENDS[example.driver().type].compile(example.driver(), example.policy(4), facts, cluster).objects
    (found,) = recognised("gpu.example.com", [*cluster.daemon_sets, variant])
    assert found.spec["exampleDriver"]["daemonSet"]["name"] == example.BASE
    with pytest.raises(LeftOut, match=r"DRA driver gpu\.other\.com"):
        recognised("gpu.other.com", [*cluster.daemon_sets])


@pytest.mark.parametrize(
    ("name", "meta", "by"),
    [
        ("default-mig-parted-config", {}, "NVIDIA's GPU operator"),
        ("default-dcm-config", None, "AMD's GPU operator"),
        (
            "mine",
            {"ownerReferences": [{"kind": "ClusterPolicy", "name": "cluster-policy"}]},
            "ClusterPolicy cluster-policy",
        ),
        ("mine", {"annotations": {"meta.helm.sh/release-name": "dcm"}}, "Helm release dcm"),
        ("mine", {"annotations": {}}, ""),
        ("mine", None, ""),
    ],
)
def test_a_config_map_that_somebody_else_keeps_is_known(name: str, meta: Words | None, by: str) -> None:
    assert keeper(name, {"metadata": meta} if meta is not None else None) == by


# ----------------------------------------------------------------------------------------------------------------------- selectors

TYPE = "node.kubernetes.io/instance-type"
UNCUT = [{"name": "whole", **ALL, "type": "Whole"}]
KEPT = [{"name": "keep", **ALL, "type": "Keep"}]


def selectors(labels: Mapping[str, Mapping[str, str]], *mine: str, keys: Sequence[str] = LASTING) -> list[Any]:
    found, left = policies([Adopted(node, "d", UNCUT) for node in mine], labels, keys=keys)
    return [policy.body["spec"]["nodeSelector"] for policy in found] + ([left] if left else [])


def test_nodes_that_a_label_tells_from_all_others_are_selected_by_it() -> None:
    labels = {"n1": {HOSTNAME: "n1", TYPE: "p4d"}, "n2": {HOSTNAME: "n2", TYPE: "p5"}}
    assert selectors(labels, "n2") == [{"matchLabels": {TYPE: "p5"}}]
    expression = {"key": TYPE, "operator": "In", "values": ["p4d", "p5"]}
    assert selectors(labels, "n1", "n2") == [{"matchExpressions": [expression]}]


def test_nodes_that_share_the_label_with_another_one_are_listed() -> None:
    labels = {name: {HOSTNAME: name, TYPE: "p5"} for name in ("n1", "n2", "n3")}
    listed = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["n1", "n3"]}]}
    assert selectors(labels, "n3", "n1") == [listed]


def test_a_label_that_somebody_names_comes_first() -> None:
    labels = {"n1": {HOSTNAME: "n1", "lane": "a", TYPE: "p5"}, "n2": {HOSTNAME: "n2", "lane": "b"}}
    assert selectors(labels, "n1", keys=("lane", *LASTING)) == [{"matchLabels": {"lane": "a"}}]


def test_a_label_that_would_do_is_named_where_nodes_are_listed() -> None:
    labels = {
        name: {HOSTNAME: name, "lane": lane, "os": "linux"} for name, lane in (("n1", "a"), ("n2", "a"), ("n3", "b"))
    }
    (policy,), _ = policies([Adopted(node, "d", UNCUT) for node in ("n1", "n2")], labels)
    assert policy.instead == ("lane",)


def test_more_nodes_than_a_requirement_holds_get_several_policies() -> None:
    names = [f"n{number:03}" for number in range(MAX_VALUES + 1)]
    first, second = selectors({name: {HOSTNAME: name} for name in names}, *names)
    assert first["matchExpressions"][0]["values"] == names[:MAX_VALUES]
    assert second == {"matchLabels": {HOSTNAME: names[-1]}}


def test_a_node_that_nothing_tells_from_another_is_left() -> None:
    assert selectors({"n1": {HOSTNAME: "x"}, "n2": {HOSTNAME: "x"}}, "n1") == [["n1"]]


def test_nodes_that_enforcing_would_touch_are_only_observed_apart_from_the_others() -> None:
    labels = {name: {HOSTNAME: name} for name in ("n1", "n2", "n3")}
    mine = [Adopted("n1", "d", UNCUT), Adopted("n2", "d", UNCUT, "it is restarted"), Adopted("n3", "d", UNCUT)]
    found, _ = policies(mine, labels)
    told = [(policy.nodes, policy.body["spec"].get("mode"), policy.touched) for policy in found]
    assert told == [(("n1", "n3"), None, ""), (("n2",), "Observe", "it is restarted")]


def test_policies_are_named_after_driver_and_layouts_and_never_like_one_that_there_is() -> None:
    labels = {f"n{n}": {HOSTNAME: f"n{n}"} for n in (1, 2)}
    mine = [Adopted("n1", "d", UNCUT), Adopted("n2", "d", KEPT)]
    found, _ = policies(mine, labels, taken={"d-whole"})
    assert {policy.body["metadata"]["name"] for policy in found} == {"d-keep", "d-whole-2"}
    long, _ = policies([Adopted("n1", "d" * 60, UNCUT)], labels)
    assert len(long[0].body["metadata"]["name"]) <= 63
