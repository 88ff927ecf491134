"""What NVIDIA's MIG manager and DRA driver cannot do together: how they have to be installed, and why a layout cannot be on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpupartition.api.v1alpha1 import Layout, LayoutType, NvidiaMigSpec, Reboot
from gpupartition.backends.by_label import Software, missing
from gpupartition.backends.gpu_by_gpu import cut_each, insist, unsupported
from gpupartition.backends.installed import env, offered
from gpupartition.backends.nvidia_gpus import COUNT, PRODUCT, Cut, Cuts, Gpus, MigGpu, Table, numbers
from gpupartition.domain.backend import Cluster
from gpupartition.domain.mig import model_of
from gpupartition.domain.mig_wanted import wanted
from gpupartition.domain.objects import Object
from gpupartition.domain.problem import Problem, Turn

_PLUGIN_APP: Final = "nvidia-device-plugin"
DEPLOYED: Final = "nvidia.com/gpu.deploy.device-plugin"  # by this label of a node the GPU operator's own chooses it
_DYNAMIC: Final = "DynamicMIG=true"


# ----------------------------------------------------------------------------------------------------------------- installation


def installation_problems(spec: NvidiaMigSpec, has: Software, cluster: Cluster) -> Iterator[Problem]:
    """What is wrong with the installation, each with what to write where."""
    yield from has.problems(
        cluster,
        agent=missing(
            has.agent,
            reason="MigManagerMissing",
            at="spec.nvidiaMig.migManager",
            fix="install the GPU operator with a ClusterPolicy and migManager: {enabled: true} (a GPUCluster deploys no MIG manager, so it "
            "has to give way to a ClusterPolicy and the DRA driver's own chart)",
        ),
        plugin=missing(
            has.plugin,
            reason="PluginMissing",
            at="spec.nvidiaMig.plugin",
            fix="install the chart dra-driver-nvidia-gpu with gpuResourcesEnabledOverride=true there",
        ),
        wire=f"write migManager: {{config: {{name: {has.file.name}}}}} in the ClusterPolicy",
    )
    mig_manager = cluster.daemon_set(has.agent.namespace, has.agent.name)
    if spec.reboot is Reboot.REFUSE and mig_manager is not None and "true" in env(mig_manager, "WITH_REBOOT"):
        yield Problem(
            reason="WouldReboot",
            at=f"DaemonSet {has.agent.namespace}/{has.agent.name}",
            why="its WITH_REBOOT is true, so it reboots a node whose GPUs cannot be reset",
            fix="set WITH_REBOOT to false in the ClusterPolicy's migManager.env, or write reboot: Allow in the driver",
        )
    plugin = cluster.daemon_set(has.plugin.namespace, has.plugin.name)
    if plugin is not None and any(_DYNAMIC in value.replace(" ", "") for value in env(plugin, "FEATURE_GATES")):
        yield Problem(
            reason="DynamicMigOn",
            at=f"DaemonSet {has.plugin.namespace}/{has.plugin.name}",
            why="its feature gate DynamicMIG is on, so it makes and destroys partitions itself",
            fix="set featureGates.DynamicMIG=false in the values of its chart",
        )
    for other in cluster.daemon_sets:
        if _is_device_plugin(other) and DEPLOYED not in _chooses_by(other):
            yield Problem(
                reason="DevicePluginPresent",
                at=f"DaemonSet {other['metadata']['namespace']}/{other['metadata']['name']}",
                why="it offers the same GPUs as nvidia.com/... resources, behind the back of the DRA driver",
                fix="write devicePlugin: {enabled: false} in the ClusterPolicy",
            )


def _is_device_plugin(daemon_set: Object) -> bool:
    labels = {
        **daemon_set["metadata"].get("labels", {}),
        **daemon_set["spec"]["template"].get("metadata", {}).get("labels", {}),
    }
    return any(str(labels.get(k, "")).startswith(_PLUGIN_APP) for k in ("app", "app.kubernetes.io/name"))


def _chooses_by(daemon_set: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = daemon_set["spec"]["template"]["spec"].get("nodeSelector", {})
    return found


def device_plugin_problems(node: Object, cluster: Cluster) -> Iterator[Problem]:
    """Whether a device plugin offers the node's GPUs too, or is about to."""
    names = offered(node, "nvidia.com/gpu", "nvidia.com/mig-")
    label = node["metadata"].get("labels", {}).get(DEPLOYED)
    chosen = any(_is_device_plugin(d) and _chooses_by(d).get(DEPLOYED) == label for d in cluster.daemon_sets) and label
    if names or chosen:
        yield Problem(
            reason="DevicePluginPresent",
            at=f"node {node['metadata']['name']}",
            why=f"a device plugin offers its GPUs as {names[0] if names else 'nvidia.com/gpu'}, "
            "so pods get them behind the back of the DRA driver",
            fix=f"write devicePlugin: {{enabled: false}} in the ClusterPolicy, or label the node {DEPLOYED}=false",
            turn=Turn.CLUSTER,
            of_node=True,
        )


# ---------------------------------------------------------------------------------------------------------------------- layouts


TYPES: Final = (LayoutType.PROFILES, LayoutType.WHOLE, LayoutType.KEEP)
_SHARING: Final = "whether a partition serves several claims is a setting of NVIDIA's DRA driver as a whole"


def cuts_for(layouts: Sequence[Layout], gpus: Gpus, table: Table) -> Cuts:
    """How the policy cuts each of these GPUs. Raises Refused with everything that cannot be."""
    insist([*unsupported(layouts, TYPES, "MIG cannot cut GPUs", _SHARING)])
    by_number = numbers(gpus)
    products = {number: table.product(gpu.product) for number, gpu in by_number.items()}
    cuts, problems = cut_each(layouts, products, lambda n, layout, at: _cut(layout, by_number[n], n, table, at))
    insist(problems)
    by_name = {by_number[number].name: cut for number, cut in cuts.items()}
    return tuple(by_name[gpu.name] for gpu in gpus)


def _cut(layout: Layout, gpu: MigGpu, number: int, table: Table, at: str) -> Cut:
    if layout.type is LayoutType.WHOLE:
        return Cut()
    whom = f"GPU {number} ({gpu.product})"
    model = table.model(gpu.product) or model_of(gpu.product, table.models, whom)
    meant = wanted(model, layout.profiles or (), whom, at)
    return Cut.of(meant.counts, enabled=meant.mig_enabled)


def no_inventory(node: Object) -> Problem:
    """The refusal of a node of which nothing says which GPUs it has."""
    return Problem(
        reason="NoInventory",
        at=f"node {node['metadata']['name']}",
        why=f"it publishes no GPU, and its labels {PRODUCT} and {COUNT} do not say which it has",
        fix="see why its DRA driver publishes nothing, or let GPU feature discovery write the labels",
        turn=Turn.CLUSTER,
    )
