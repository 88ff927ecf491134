"""What the charts say, as the real Helm renders them: what manifests/ says, and nothing that no value means."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from testbed.controlplane import ROOT, ControlPlane
from testbed.programs import TestbedError
from tests.e2e.helm import CHART, POLICIES_CHART, RELEASE, STATUSES, Helm, by_name, documents, real_helm
from tests.e2e.rollout import KINDS, equal, policy

from gpupartition.names import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from gpupartition.kube import Object

MONITORED: Final = ("--set", "prometheus.enabled=true,grafana.enabled=true")
KEEP: Final = {"helm.sh/resource-policy": "keep"}


@pytest.fixture(scope="module")
async def helm(controlplane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return await real_helm(controlplane, tmp_path_factory.mktemp("helm"))


# ── the same as manifests/ ────────────────────────────────────────────────────────────────────────────────────────────

COMPONENTS: Final = {
    "none": ([], []),
    "driver-namespace": (["driver-namespace"], ["driverNamespaces={gpu-driver}"]),
    "evict": (["evict"], ["evict=true"]),
    "force-delete": (["force-delete"], ["forceDelete=true"]),
    "nvidia-mig": (["nvidia-mig"], ["nvidiaMig.enabled=true"]),
    "amd-dcm": (["amd-dcm"], ["amdDcm.enabled=true"]),
}


async def test_with_the_example_drivers_namespace_the_chart_is_what_the_manifests_are(helm: Helm) -> None:
    theirs = documents(await helm.controlplane.kubectl("kustomize", str(ROOT / "manifests")))
    assert comparable(await helm.rendered("--set", "driverNamespaces={gpu-driver}")) == comparable(theirs)


@pytest.mark.parametrize("name", COMPONENTS)
async def test_each_component_is_a_value_and_nothing_more(helm: Helm, tmp_path: Path, name: str) -> None:
    components, values = COMPONENTS[name]
    assert {each.name for each in (ROOT / "manifests/components").iterdir()} == COMPONENTS.keys() - {"none"}
    theirs = documents(await kustomized(helm.controlplane, tmp_path, *components))
    ours = await helm.rendered(*(f"--set={value}" for value in values))
    assert comparable(ours) == comparable(theirs)


async def test_every_drivers_namespace_gets_the_rights_of_the_component(helm: Helm) -> None:
    ours = await helm.rendered("--set", "driverNamespaces={one,two}")
    theirs = documents(await helm.controlplane.kubectl("kustomize", str(ROOT / "manifests")))
    theirs, component = ([o for o in theirs if in_driver(o) is there] for there in (False, True))
    for namespace in ("one", "two"):
        theirs += [{**o, "metadata": {**o["metadata"], "namespace": namespace}} for o in component]
    assert comparable(ours) == comparable(theirs)


def in_driver(body: Object) -> bool:
    return bool(body["metadata"].get("namespace") == "gpu-driver")


async def test_what_all_values_together_say_stands_where_it_belongs(helm: Helm) -> None:
    said = {
        "image": {"repository": "registry.example/gpus", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "pull"}],
        "replicas": 2,
        "settings": {"RESYNC_SECONDS": 60},
        "resources": {"limits": {"memory": "2Gi"}},
        "nodeSelector": {"role": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "crds": False,
    }
    printed = await helm("template", RELEASE, CHART, "--namespace", "elsewhere", values=said)
    assert OPERATOR_NAMESPACE not in yaml.safe_dump_all(documents(printed))
    objects = by_name(documents(printed))
    assert {kind for kind, *_ in objects} & {"CustomResourceDefinition"} == set()
    spec = objects["Deployment", "elsewhere", "gpupartition"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert container["image"] == "registry.example/gpus:1.2.3"
    assert {"name": "GPUPARTITION_RESYNC_SECONDS", "value": "60"} in container["env"]
    assert container["resources"]["limits"] == {"memory": "2Gi"}
    assert {key: pod[key] for key in said if key in pod} == {
        key: said[key] for key in ("imagePullSecrets", "nodeSelector", "tolerations")
    }


async def test_what_monitors_it_is_what_the_manifests_have(helm: Helm) -> None:
    folders = (ROOT / "manifests", ROOT / "manifests/monitoring")
    theirs = [
        each for folder in folders for each in documents(await helm.controlplane.kubectl("kustomize", str(folder)))
    ]
    assert comparable(await helm.rendered(*MONITORED, "--set", "driverNamespaces={gpu-driver}")) == comparable(theirs)


async def test_what_monitors_it_has_the_labels_and_the_place_by_which_it_is_found(helm: Helm) -> None:
    said = {
        "prometheus": {"enabled": True, "labels": {"release": "stack"}},
        "grafana": {
            "enabled": True,
            "labels": {"grafana_dashboard": "yes", "team": "gpus"},
            "annotations": {"grafana_folder": "GPUs"},
            "namespace": "grafana",
        },
    }
    objects = by_name(documents(await helm("template", RELEASE, CHART, "--namespace", OPERATOR_NAMESPACE, values=said)))
    own = {"app.kubernetes.io/name": "gpupartition"}
    for kind in ("PodMonitor", "PrometheusRule"):
        assert objects[kind, OPERATOR_NAMESPACE, "gpupartition"]["metadata"]["labels"] == {**own, "release": "stack"}
    dashboard = objects["ConfigMap", "grafana", "gpupartition-dashboard"]["metadata"]
    assert dashboard["labels"] == {**own, "grafana_dashboard": "yes", "team": "gpus"}
    assert dashboard["annotations"] == {"grafana_folder": "GPUs"}
    without_rules = await helm.rendered(*MONITORED, "--set", "prometheus.rules=false")
    assert {"PodMonitor", "PrometheusRule"} & {each["kind"] for each in without_rules} == {"PodMonitor"}


def comparable(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    """The objects by name, but for the namespace, which Helm has made before, and for what keeps CRDs when a release goes."""
    named = by_name([each for each in objects if each["kind"] != "Namespace"])
    for each in named.values():
        if each["kind"] == "CustomResourceDefinition":
            assert each["metadata"].pop("annotations", KEEP) == KEEP
    return named


async def kustomized(controlplane: ControlPlane, folder: Path, *components: str) -> str:
    for each in ("manifests", "crds"):
        shutil.copytree(ROOT / each, folder / each)
    (folder / "mine").mkdir()
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../crds", "../manifests/base", "../manifests/admission"],
        "components": [f"../manifests/components/{each}" for each in components],
    }
    (folder / "mine/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return await controlplane.kubectl("kustomize", str(folder / "mine"))


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chart", [CHART, POLICIES_CHART], ids=lambda path: path.name)
async def test_helm_finds_nothing_to_complain_about(helm: Helm, chart: Path) -> None:
    assert "0 chart(s) failed" in await helm("lint", "--strict", chart)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("evictions=true", "evictions"),
        ("image.name=gpupartition", "name"),
        ("nvidiaMig.enable=true", "enable"),
        ("nvidiaMig.enabled=true,nvidiaMig.namespace=null", "'/nvidiaMig': missing property 'namespace'"),
        ("image=null", "missing property 'image'"),
        ("image.repository=null", "'/image': missing property 'repository'"),
        ("image.repository=Not A Name", "/image/repository"),
        ("image.tag=latest@sha256:0123", "/image/tag"),
        ("replicas=two", "/replicas"),
        ("settings.PORT=9000", "PORT"),
        ("settings.RESINC_SECONDS=60", "RESINC_SECONDS"),
        ("settings.RESYNC_SECONDS=-1", "/settings/RESYNC_SECONDS"),
        ("settings.WORKERS=1000", "/settings/WORKERS"),
        ("prometheus=true", "/prometheus"),
        ("prometheus.labels.app\\.kubernetes\\.io/name=another", "/prometheus/labels/app.kubernetes.io~1name"),
        ("grafana.labels.grafana_dashboard=1", "/grafana/labels/grafana_dashboard"),
        ("grafana.namespace=Not_A_Name", "/grafana/namespace"),
        ("driverNamespaces={Not_A_Name}", "/driverNamespaces/0"),
        ("readOnly=true,evict=true", "/evict"),
        ("readOnly=true,forceDelete=true", "/forceDelete"),
        ("readOnly=true,replicas=2", "/replicas"),
    ],
)
async def test_a_value_that_means_nothing_is_refused_by_its_name(helm: Helm, value: str, told: str) -> None:
    with pytest.raises(TestbedError, match=rf"(?s)don't meet the specifications.*{told}"):
        await helm.rendered("--set", value)


SPEC: Final = policy("", "some", equal(2))["spec"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"policys": {}}, "'policys' not allowed"),
        ({"policies": [SPEC]}, "'/policies': got array, want object"),
        ({"policies": {"Not_A_Name": SPEC}}, "'/policies': additional properties 'Not_A_Name' not allowed"),
        ({"policies": {"n" * 64: SPEC}}, "'/policies': additional properties 'nnn"),
        ({"policies": {"own": {"metadata": {}, "spec": SPEC}}}, "'/policies/own': missing properties 'driver'"),
        ({"policies": {"own": {**SPEC, "layouts": []}}}, "'/policies/own/layouts': minItems"),
        ({"policies": {"own": {**SPEC, "rollout": {"onFailuer": "Halt"}}}}, "'/policies/own/rollout': .* 'onFailuer'"),
        ({"policies": {"own": {**SPEC, "rollout": {"paused": "no"}}}}, "'/policies/own/rollout/paused': got string"),
        ({"drivers": {"own": {"type": "Nvidia"}}}, "'/drivers/own/type': value must be one of"),
    ],
)
async def test_a_policy_or_driver_that_cannot_be_is_refused_before_another_one_of_the_release_is_written(
    helm: Helm, values: Object, told: str
) -> None:
    with pytest.raises(TestbedError, match=rf"(?s)don't meet the specifications.*{told}"):
        await helm("template", "own", POLICIES_CHART, values=values)


async def test_every_example_of_a_driver_and_of_a_policy_can_be_a_value(helm: Helm) -> None:
    examples = [each for file in (ROOT / "manifests/examples").glob("*.yaml") for each in documents(file.read_text())]
    values: Object = {"drivers": {}, "policies": {"0123": SPEC}}  # a number, if it is not quoted
    for each in examples:
        if each["kind"] in {"GpuPartitionDriver", "GpuPartitionPolicy"}:
            values[KINDS[each["kind"]].plural.removeprefix("gpupartition")][each["metadata"]["name"]] = each["spec"]
    objects = by_name(documents(await helm("template", "own", POLICIES_CHART, values=values)))
    told: Object = {plural: {} for plural in values}
    for (kind, _, name), each in objects.items():
        told[KINDS[kind].plural.removeprefix("gpupartition")][name] = each["spec"]
    assert told == values


# ── read-only ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "values",
    ["readOnly=true", "readOnly=true,nvidiaMig.enabled=true", "readOnly=true,amdDcm.enabled=true"],
)
async def test_a_read_only_operator_has_no_right_to_write_but_statuses(helm: Helm, values: str) -> None:
    objects = by_name(await helm.rendered("--set", values))
    for binding in (o for (kind, *_), o in objects.items() if kind in {"RoleBinding", "ClusterRoleBinding"}):
        namespace = binding["metadata"].get("namespace", "")
        for rule in objects[binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"]]["rules"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch"} or set(rule["resources"]) == STATUSES, rule
