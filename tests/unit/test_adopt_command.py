"""`gpupartition adopt`: which nodes go into which policies, who is left out and why, and that what is printed is taken as it is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from testbed.nodes import DRIVER_NAMESPACE
from tests.unit.fleet import Fleet, policy

from gpupartition.__main__ import main
from gpupartition.cli import adopt, documents
from gpupartition.cli.planned import plans_for
from gpupartition.cli.survey import Adoption, survey
from gpupartition.controller.records import DRIVERS
from gpupartition.domain.plan import Fate
from gpupartition.kube import DAEMON_SETS, NODES, RESOURCE_SLICES
from gpupartition.settings import Settings


def found(fleet: Fleet, *labels: str) -> Adoption:
    return asyncio.run(survey(fleet.client, Settings(), labels))


def selected(adoption: Adoption) -> dict[str, tuple[str, ...]]:
    return {each.body["metadata"]["name"]: each.nodes for each in adoption.policies}


def nodes(fleet: Fleet) -> dict[str, Any]:
    return {body["metadata"]["name"]: body for body in fleet.objects[NODES]}


def test_a_driver_that_the_cluster_has_no_object_for_is_printed_before_its_policies() -> None:
    fleet = Fleet(2)
    fleet.objects[DRIVERS] = []
    driver, only = yaml.safe_load_all(adopt.as_yaml(found(fleet)))
    assert driver["spec"]["exampleDriver"]["daemonSet"]["namespace"] == DRIVER_NAMESPACE
    assert only["spec"]["driver"] == driver["metadata"]["name"] == "example"
    assert only["spec"]["layouts"] == [{"name": "whole", "match": {"all": True}, "type": "Whole"}]


def test_a_driver_that_is_there_is_named_and_not_printed_again() -> None:
    adoption = found(Fleet(2))
    assert adoption.drivers == []
    assert selected(adoption) == {"example-whole": ("node-1", "node-2")}


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_is_printed_can_be_planned_with_and_changes_nothing(form: str, tmp_path: Any) -> None:
    fleet = Fleet(70)
    fleet.objects[DRIVERS] = []
    fleet.not_ready("node-07")
    path = tmp_path / "printed"
    path.write_text(adopt.FORMS[form](found(fleet)))
    plans = asyncio.run(plans_for(fleet.client, Settings(), documents.read([str(path)])))
    assert sum(len(plan.nodes) for plan in plans) == 69
    assert {node.fate for plan in plans for node in plan.nodes} == {Fate.UP_TO_DATE}


def test_nodes_that_have_a_policy_are_told_apart_from_those_that_cannot_have_one() -> None:
    fleet = Fleet(3)
    nodes(fleet)["node-1"]["metadata"]["labels"]["lane"] = "old"
    fleet.apply(policy(selector={"lane": "old"}))
    fleet.not_ready("node-2")
    adoption = found(fleet)
    assert selected(adoption) == {"example-whole": ("node-3",)}
    assert list(adopt.told(adoption)) == [
        "left out: node-2: it is not Ready",
        "has a policy: node-1: GpuPartitionPolicy inference has it",
    ]


def test_half_of_what_a_node_publishes_is_not_adopted() -> None:
    fleet = Fleet(2)
    fleet.objects[RESOURCE_SLICES][0]["spec"]["pool"]["resourceSliceCount"] += 1
    adoption = found(fleet)
    assert adoption.left_out == {"node-1": "what it publishes is not complete: 1 of 2 slices of generation 1 are there"}


def test_a_node_whose_driver_publishes_nothing_is_told() -> None:
    fleet = Fleet(2)
    fleet.objects[RESOURCE_SLICES] = [s for s in fleet.objects[RESOURCE_SLICES] if s["spec"]["nodeName"] != "node-1"]
    assert found(fleet).left_out == {"node-1": "it publishes nothing"}


def test_a_node_that_has_its_layout_from_another_config_is_only_observed_and_that_is_said() -> None:
    fleet = Fleet(2)
    fleet.publish("node-1", parts=2)
    adoption = found(fleet)
    (halves,) = [each for each in adoption.policies if each.nodes == ("node-1",)]
    assert (halves.body["spec"]["mode"], adoption.left_out) == ("Observe", {})
    assert [line.partition(", which")[0] for line in adopt.told(adoption)] == [
        "only observed: node-1: nothing is assigned to them"
    ]
    assert "# only observed: nothing is assigned to them" in adopt.as_yaml(adoption)


def test_devices_of_a_driver_that_nobody_knows_are_told_and_known_to_be_no_gpus_are_not() -> None:
    fleet = Fleet(2)
    fleet.objects[RESOURCE_SLICES][0]["spec"]["driver"] = "gpu.strange.com"
    fleet.objects[RESOURCE_SLICES].append(other(fleet, "compute-domain.nvidia.com"))
    adoption = found(fleet)
    assert "DRA driver gpu.strange.com: no GpuPartitionDriver is for it" in adoption.left_out["node-1"]
    assert selected(adoption) == {"example-whole": ("node-2",)}
    assert adoption.beside == {}


def test_of_a_node_with_two_drivers_one_is_adopted_and_the_other_is_told() -> None:
    fleet = Fleet(2)
    fleet.objects[RESOURCE_SLICES].append(other(fleet, "nic.strange.com"))
    adoption = found(fleet)
    assert selected(adoption) == {"example-whole": ("node-1", "node-2")}
    assert adoption.left_out == {}
    assert "nic.strange.com" in adoption.beside["node-2"]


def other(fleet: Fleet, driver: str) -> Any:
    """What another driver publishes on node-2."""
    (body,) = [s for s in fleet.objects[RESOURCE_SLICES] if s["spec"]["nodeName"] == "node-2"]
    return {"metadata": {**body["metadata"], "name": driver}, "spec": {**body["spec"], "driver": driver}}


def test_an_installation_that_the_operator_would_refuse_is_told_with_what_to_do() -> None:
    fleet = Fleet(2)
    fleet.objects[DAEMON_SETS][0]["spec"]["updateStrategy"] = {"type": "RollingUpdate"}
    adoption = found(fleet)
    assert adoption.policies == []
    assert set(adoption.left_out) == {"node-1", "node-2"}
    (line,) = adopt.told(adoption)
    assert line.endswith("set spec: {updateStrategy: {type: OnDelete}}")


def test_nodes_are_selected_by_a_label_that_somebody_names() -> None:
    fleet = Fleet(2)
    assert "selected by name; --by-label pool or --by-label type would select them too" in adopt.as_yaml(found(fleet))
    (only,) = found(fleet, "pool").policies
    assert only.body["spec"]["nodeSelector"] == {"matchLabels": {"pool": "gpu"}}


def test_who_keeps_a_config_map_is_told_before_it_is_written_into() -> None:
    adoption = replace(found(Fleet(1)), kept={"mig": "NVIDIA's GPU operator keeps it"})
    assert list(adopt.told(adoption)) == ["beware: mig: NVIDIA's GPU operator keeps it"]
    assert "# beware: mig: NVIDIA's GPU operator keeps it" in adopt.as_yaml(adoption)


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029"])
def test_what_a_node_publishes_never_becomes_a_document_of_its_own(end: str) -> None:
    adoption = found(Fleet(2))
    evil = f"H100{end}---{end}kind: ClusterRoleBinding{end}"
    told = replace(
        adoption, left_out={"node-9": f"no policy can say {evil}"}, beside={"node-8": evil}, governed={"node-7": evil}
    )
    kinds = [each["kind"] for each in yaml.safe_load_all(adopt.as_yaml(told)) if each]
    assert kinds == ["GpuPartitionPolicy"]
    assert all(line.startswith(("left out", "not all", "has a")) for line in "\n".join(adopt.told(told)).splitlines())


def test_the_list_of_json_is_what_kubectl_takes() -> None:
    printed = json.loads(adopt.FORMS["json"](found(Fleet(1))))
    assert (printed["apiVersion"], printed["kind"], len(printed["items"])) == ("v1", "List", 1)


@pytest.mark.parametrize("label", ["nvidia.com/mig.config", "gpupartition.dev/layout", "not a label"])
def test_a_label_that_a_policy_cannot_select_by_is_wrong_usage(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["adopt", "--by-label", label])
    assert ended.value.code == 2
    assert label in capsys.readouterr().err


def test_without_a_kubeconfig_nothing_can_be_adopted(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert "no kubeconfig at" in capsys.readouterr().err


def test_names_are_those_that_kubectl_takes() -> None:
    fleet = Fleet(1)
    fleet.objects[DRIVERS].clear()
    documents = json.loads(adopt.FORMS["json"](found(fleet)))["items"]
    told = adopt.FORMS["name"](found(fleet)).splitlines()
    assert told == [f"{each['kind'].lower()}.gpupartition.dev/{each['metadata']['name']}" for each in documents]
    assert len(told) == 2
