"""What manifests/ installs: taken by a real API server, run with the least rights, and shown by examples that work."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from tests.e2e.harness import eventually
from tests.e2e.helm import documents

from gpupartition.api.v1alpha1 import DriverSpec, PolicySpec
from gpupartition.kube import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, PODS, Client, Conflict, Forbidden, Object
from gpupartition.names import GROUP, OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic import BaseModel
    from testbed.controlplane import ControlPlane
    from tests.e2e.harness import Cluster

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
EXAMPLES: Final = sorted((MANIFESTS / "examples").rglob("*.yaml"))
ACCOUNT: Final = f"system:serviceaccount:{OPERATOR_NAMESPACE}:gpupartition"
READERS: Final = {"gpupartition-view", "gpupartition-plan"}  # roles of people, which may only read
ON_DUTY: Final = "gpupartition-operate"  # roles of people, who may also pause, retry and freeze
SPECS: Final[dict[str, type[BaseModel]]] = {"GpuPartitionDriver": DriverSpec, "GpuPartitionPolicy": PolicySpec}

# group/resource[/subresource]                  verbs                                         namespace (-: of the cluster)
MAY: Final = """
/nodes                                        get list watch patch                          -
/pods                                         get                                           default
resource.k8s.io/resourceclaims                list watch                                    default
resource.k8s.io/resourceslices                list watch create update delete               -
resource.k8s.io/devicetaintrules              get list watch create update delete           -
gpupartition.dev/gpupartitiondrivers          get list watch patch                          -
gpupartition.dev/gpupartitionpolicies         get list watch patch                          -
gpupartition.dev/gpupartitiondrivers/status   update                                        -
gpupartition.dev/gpupartitionpolicies/status  update                                        -
gpupartition.dev/gpupartitionnodestates       get list watch create update delete           -
/events                                       create                                        default
apps/daemonsets                               get list watch create patch delete            gpu-driver
apps/controllerrevisions                      list watch                                    gpu-driver
/pods                                         list watch delete                             gpu-driver
coordination.k8s.io/leases                    create                                        gpupartition-system
"""
MAY_NOT: Final = """
/nodes                                        create update delete                          -
/nodes/status                                 update patch                                  -
/pods                                         list watch create update patch delete         default
/pods/eviction                                create                                        kube-system
/pods/eviction                                create                                        default
/pods/exec                                    create get                                    gpu-driver
/secrets                                      get list watch create update patch delete     gpu-driver
/secrets                                      get list watch create update patch delete     gpupartition-system
/configmaps                                   get list create update patch delete           gpupartition-system
/serviceaccounts/token                        create                                        gpupartition-system
apps/daemonsets                               get create patch delete                       kube-system
apps/deployments                              get create update patch delete                gpupartition-system
coordination.k8s.io/leases                    get list watch update patch delete            gpupartition-system
coordination.k8s.io/leases                    get create update                             kube-system
resource.k8s.io/resourceclaims                get create update patch delete                default
resource.k8s.io/resourceclaims/status         update patch                                  default
resource.k8s.io/deviceclasses                 create update patch delete                    -
gpupartition.dev/gpupartitiondrivers          create update delete                          -
gpupartition.dev/gpupartitionpolicies         create update delete                          -
rbac.authorization.k8s.io/clusterroles        create update patch escalate bind             -
"""


def rights(table: str) -> list[tuple[str, str, str]]:
    rows = (row.split() for row in table.strip().splitlines())
    return [(resource, verb, namespace.strip("-")) for resource, *verbs, namespace in rows for verb in verbs]


@pytest.fixture(scope="module")
async def installed(controlplane: ControlPlane) -> ControlPlane:
    await controlplane.install_operator()
    return controlplane


@pytest.fixture(scope="module")
async def client(installed: ControlPlane) -> AsyncIterator[Client]:
    async with installed.client() as client:
        yield client


async def allowed(client: Client, resource: str, verb: str, namespace: str, name: str = "") -> bool:
    group, plural, *subresource = resource.split("/")
    asked = {
        "group": group,
        "resource": plural,
        "subresource": "".join(subresource),
        "verb": verb,
        "namespace": namespace,
        "name": name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": asked},
    }
    answer = await client.raw("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=review)
    return bool(answer["status"]["allowed"])


async def test_the_operator_may_do_what_it_does(client: Client) -> None:
    asked = rights(MAY)
    answers = await asyncio.gather(*(allowed(client, *right) for right in asked))
    assert [right for right, yes in zip(asked, answers, strict=True) if not yes] == []


async def test_the_operator_may_do_nothing_else(client: Client) -> None:
    asked = rights(MAY_NOT)
    answers = await asyncio.gather(*(allowed(client, *right) for right in asked))
    assert [right for right, yes in zip(asked, answers, strict=True) if yes] == []


async def test_of_all_config_maps_the_operator_sees_only_its_brake(client: Client) -> None:
    assert await allowed(client, "/configmaps", "watch", OPERATOR_NAMESPACE, "gpupartition-freeze")
    assert not await allowed(client, "/configmaps", "watch", OPERATOR_NAMESPACE, "another")


async def test_of_all_leases_the_operator_holds_only_its_own(client: Client) -> None:
    for verb in ("get", "update"):
        assert await allowed(client, "coordination.k8s.io/leases", verb, OPERATOR_NAMESPACE, "gpupartition")
        assert not await allowed(client, "coordination.k8s.io/leases", verb, OPERATOR_NAMESPACE, "another")


async def test_the_roles_name_no_right_beyond_the_table_above(installed: ControlPlane) -> None:
    named = set()
    for each in yaml.safe_load_all(await installed.kubectl("kustomize", str(MANIFESTS))):
        if each["kind"] not in {"ClusterRole", "Role"} or each["metadata"]["name"] in READERS | {ON_DUTY}:
            continue
        for rule in each["rules"]:
            if rule.get("resourceNames"):
                continue
            named |= {
                (f"{group}/{resource}", verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    assert named == {(resource, verb) for resource, verb, _ in rights(MAY)}


async def test_the_roles_of_those_who_only_look_hold_no_right_to_write(installed: ControlPlane) -> None:
    objects = list(yaml.safe_load_all(await installed.kubectl("kustomize", str(MANIFESTS))))
    roles = [each for each in objects if each["metadata"]["name"] in READERS]
    assert {each["metadata"]["name"] for each in roles} == READERS
    verbs = {verb for each in roles for rule in each["rules"] for verb in rule["verbs"]}
    assert verbs <= {"get", "list", "watch"}


async def test_the_roles_of_those_on_duty_write_the_brake_and_beside_policies_and_nothing_else(
    installed: ControlPlane,
) -> None:
    objects = list(yaml.safe_load_all(await installed.kubectl("kustomize", str(MANIFESTS))))
    rules = [rule for each in objects if each["metadata"]["name"] == ON_DUTY for rule in each["rules"]]
    written = {
        (resource, verb, *rule.get("resourceNames", ()))
        for rule in rules
        for resource in rule["resources"]
        for verb in set(rule["verbs"]) - {"get", "list"}
    }
    brake = {("configmaps", verb, "gpupartition-freeze") for verb in ("patch", "delete")}
    assert written == {("gpupartitionpolicies", "patch"), ("configmaps", "create"), *brake}


async def test_what_monitors_it_is_put_together_for_prometheus_and_grafana(installed: ControlPlane) -> None:
    made = {
        each["kind"]: each for each in documents(await installed.kubectl("kustomize", str(MANIFESTS / "monitoring")))
    }
    assert made.keys() == {"PodMonitor", "PrometheusRule", "ConfigMap"}
    assert {each["metadata"]["namespace"] for each in made.values()} == {OPERATOR_NAMESPACE}
    assert made["ConfigMap"]["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert yaml.safe_load(made["ConfigMap"]["data"]["gpupartition.json"])["uid"] == "gpupartition"


async def test_an_operator_with_these_rights_starts_and_is_refused_nothing(cluster: Cluster) -> None:
    def watched() -> set[str]:
        mine = cluster.audit(user=ACCOUNT)
        return {each["objectRef"]["resource"] for each in mine if each["verb"] == "watch"}

    await cluster.start_operator(env={"GPUPARTITION_PORT": "0", "GPUPARTITION_HOST": "127.0.0.1"})
    await eventually(lambda: watched() >= {"nodes", "configmaps", "gpupartitionpolicies", "gpupartitiondrivers"})
    codes = {each["requestURI"]: each["responseStatus"]["code"] for each in cluster.audit(user=ACCOUNT)}
    assert {uri for uri, code in codes.items() if code in {401, 403}} == set()


async def test_the_operators_pod_is_taken_by_a_namespace_that_takes_no_privileged_pods(client: Client) -> None:
    deployment = await client.get(DEPLOYMENTS, "gpupartition", namespace=OPERATOR_NAMESPACE)
    template = deployment["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trial", "namespace": OPERATOR_NAMESPACE},
        "spec": template["spec"],
    }
    made = await client.create(PODS, pod, dry_run=True)
    (container,) = made["spec"]["containers"]
    assert container["command"][-1] == "run"


async def test_evictions_take_components_that_grant_nothing_else(installed: ControlPlane, tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS / "components", tmp_path / "components")
    (tmp_path / "mine").mkdir()
    components = ["../components/evict", "../components/force-delete"]
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "components": components,
    }
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    printed = await installed.kubectl("kustomize", str(tmp_path / "mine"))
    roles = [each for each in documents(printed) if each["kind"] == "ClusterRole"]
    named = {
        each["metadata"]["name"]: {
            (f"{group}/{resource}", verb)
            for rule in each["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for each in roles
    }
    assert named == {
        "gpupartition-evict": {("/pods/eviction", "create"), ("policy/poddisruptionbudgets", "list")},
        "gpupartition-force-delete": {("/pods", "delete")},
    }
    await installed.kubectl("create", "--dry-run=server", "-f", "-", stdin=printed)


async def test_a_second_drivers_namespace_gets_the_same_rights_from_the_same_component(
    installed: ControlPlane, tmp_path: Path
) -> None:
    shutil.copytree(MANIFESTS / "components", tmp_path / "components")
    (tmp_path / "mine").mkdir()
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "my-driver",
        "components": ["../components/driver-namespace"],
    }
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    role, binding = yaml.safe_load_all(await installed.kubectl("kustomize", str(tmp_path / "mine")))
    assert (role["metadata"]["namespace"], binding["metadata"]["namespace"]) == ("my-driver", "my-driver")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gpupartition", "namespace": OPERATOR_NAMESPACE}]


@pytest.mark.parametrize("components", [("nvidia-mig",), ("amd-dcm",), ("nvidia-mig", "amd-dcm")], ids="+".join)
async def test_components_that_write_config_maps_install_alone_and_together_and_let_only_layouts_be_written(
    installed: ControlPlane, client: Client, tmp_path: Path, components: tuple[str, ...]
) -> None:
    for folder in ("manifests", "crds"):
        shutil.copytree(MANIFESTS.parent / folder, tmp_path / folder)
    (tmp_path / "mine").mkdir()
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../manifests"],
        "components": [f"../manifests/components/{name}" for name in components],
    }
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    bodies = documents(await installed.kubectl("kustomize", str(tmp_path / "mine")))
    writers = [each for each in bodies if CREATES in each.get("rules", ()) and each["metadata"]["name"] != ON_DUTY]
    places = sorted(each["metadata"]["namespace"] for each in writers)
    assert places == sorted(PLACES[name] for name in components)
    granted = [e for e in bodies if e["kind"] in {"Role", "RoleBinding"} and e["metadata"]["namespace"] in HERE]
    for namespace in {each["metadata"]["namespace"] for each in granted}:
        with contextlib.suppress(Conflict):
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for each in bodies:
        if each["kind"] == "Deployment":
            each["spec"]["replicas"] = 0  # as the testbed installs it: the operator is a process of this machine
    await installed.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(bodies))
    try:
        async with Client.connect(installed.files.kubeconfig("operator"), user_agent="intruder") as operator:
            for place in places:
                await eventually(partial(only_layouts, operator, place))
    finally:
        await installed.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(granted))


CREATES: Final = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
PLACES: Final = {"nvidia-mig": "gpu-operator", "amd-dcm": "kube-amd-gpu"}  # where layouts are written
HERE: Final = {*PLACES.values(), "dra-driver-nvidia-gpu", "k8s-gpu-dra-driver"}


def config_map(namespace: str, **notes: str) -> Object:
    annotations = {f"{GROUP}/{name}": value for name, value in notes.items()}
    metadata = {"name": "gpupartition-trial", "namespace": namespace, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def only_layouts(operator: Client, namespace: str) -> bool:
    layouts = await refusal(operator, config_map(namespace, entries="{}"))
    return not layouts and "only ConfigMaps of layouts" in await refusal(operator, config_map(namespace))


async def refusal(client: Client, body: Object) -> str:
    try:
        await client.create(CONFIG_MAPS, body, dry_run=True)
    except Forbidden as refused:
        return refused.message
    return ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_an_example_is_taken_by_the_api_server_and_understood_by_the_operator(
    installed: ControlPlane, path: Path
) -> None:
    printed = await installed.kubectl("create", "--dry-run=server", "-o", "yaml", "-f", str(path))
    for made in documents(printed):
        for each in made.get("items", [made]):
            if model := SPECS.get(each["kind"]):
                model.model_validate(each["spec"])


def test_admission_rules_say_their_scope() -> None:
    """Where one does not, the API server writes it, and `kubectl apply` finds the list changed whenever it is run."""
    found = [
        each for path in MANIFESTS.rglob("*.yaml") for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    policies = [each for each in found if each and each.get("kind") == "ValidatingAdmissionPolicy"]
    assert policies
    rules = [rule for each in policies for rule in each["spec"]["matchConstraints"]["resourceRules"]]
    assert [rule for rule in rules if "scope" not in rule] == []


def test_all_examples_can_be_applied_together() -> None:
    objects = [each for path in EXAMPLES for each in documents(path.read_text())]
    drivers = {each["metadata"]["name"] for each in objects if each["kind"] == "GpuPartitionDriver"}
    policies = [each for each in objects if each["kind"] == "GpuPartitionPolicy"]
    assert policies
    assert {each["spec"]["driver"] for each in policies} <= drivers
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert sorted(set(names)) == sorted(names)
