"""What NVIDIA's MIG manager and DRA driver cannot do together: how they have to be installed, and why a layout cannot be on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpupartition.api.v1alpha1 import Layout, LayoutType, NvidiaMigSpec, Reboot, SharingMode
from gpupartition.backends.installed import config_problems, env, mounts, offered
from gpupartition.backends.mig_parted import document
from gpupartition.backends.nvidia_gpus import COUNT, PRODUCT, Cut, Cuts, Gpus, MigGpu, Table, numbers
from gpupartition.domain.backend import Cluster, Object, Problem, Refused, Turn
from gpupartition.domain.mig import model_of
from gpupartition.domain.mig_wanted import wanted
from gpupartition.domain.products import means, nothing_cut

_PLUGIN_APP: Final = "nvidia-device-plugin"
DEPLOYED: Final = "nvidia.com/gpu.deploy.device-plugin"  # by this label of a node the GPU operator's own chooses it
_DYNAMIC: Final = "DynamicMIG=true"


# ----------------------------------------------------------------------------------------------------------------- installation


def installation_problems(spec: NvidiaMigSpec, cluster: Cluster) -> Iterator[Problem]:
    """What is wrong with the installation, each with what to write where."""
    mig_manager = cluster.daemon_set(spec.mig_manager.namespace, spec.mig_manager.name)
    plugin = cluster.daemon_set(spec.plugin.namespace, spec.plugin.name)
    if mig_manager is None:
        yield Problem(
            reason="MigManagerMissing",
            at="spec.nvidiaMig.migManager",
            why=f"there is no DaemonSet {spec.mig_manager.name} in namespace {spec.mig_manager.namespace}",
            fix="install the GPU operator with a ClusterPolicy and migManager: {enabled: true}, or name its DaemonSet; "
            "a GPUCluster deploys no MIG manager, so it has to give way to a ClusterPolicy and the DRA driver's own chart",
        )
    if plugin is None:
        yield Problem(
            reason="PluginMissing",
            at="spec.nvidiaMig.plugin",
            why=f"there is no DaemonSet {spec.plugin.name} in namespace {spec.plugin.namespace}",
            fix="install the chart dra-driver-nvidia-gpu with gpuResourcesEnabledOverride=true there, or name its DaemonSet",
        )
    if mig_manager is not None:
        yield from _mig_manager_problems(spec, mig_manager)
    if plugin is not None and any(_DYNAMIC in value.replace(" ", "") for value in env(plugin, "FEATURE_GATES")):
        yield Problem(
            reason="DynamicMigOn",
            at=f"DaemonSet {spec.plugin.namespace}/{spec.plugin.name}",
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
    yield from config_problems(document(spec.mig_manager.namespace, spec.config), cluster)


def _mig_manager_problems(spec: NvidiaMigSpec, mig_manager: Object) -> Iterator[Problem]:
    at = f"DaemonSet {spec.mig_manager.namespace}/{spec.mig_manager.name}"
    if not mounts(mig_manager, spec.config):
        yield Problem(
            reason="ConfigNotWired",
            at=at,
            why=f"it does not mount ConfigMap {spec.config}, into which layouts are written",
            fix=f"write migManager: {{config: {{name: {spec.config}}}}} in the ClusterPolicy",
        )
    if spec.reboot is Reboot.REFUSE and "true" in env(mig_manager, "WITH_REBOOT"):
        yield Problem(
            reason="WouldReboot",
            at=at,
            why="its WITH_REBOOT is true, so it reboots a node whose GPUs cannot be reset",
            fix="set WITH_REBOOT to false in the ClusterPolicy's migManager.env, or write reboot: Allow in the driver",
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


def cuts_for(layouts: Sequence[Layout], gpus: Gpus, table: Table) -> Cuts:
    """How the policy cuts each of these GPUs. Raises Refused with everything that cannot be; equal GPUs are told of once."""
    problems = [p for place, layout in enumerate(layouts) for p in _type_problems(layout, f"spec.layouts[{place}]")]
    if problems:
        raise Refused(*problems)
    cuts: dict[MigGpu, Cut | None] = {}
    refused: dict[tuple[str, int], Refused] = {}
    for number, gpu in numbers(gpus).items():
        place = next(
            (n for n, layout in enumerate(layouts) if means(layout.match, table.product(gpu.product), number)), None
        )
        cuts[gpu] = None
        if place is None or layouts[place].type is LayoutType.KEEP or (gpu.product, place) in refused:
            continue
        try:
            cuts[gpu] = _cut(layouts[place], gpu, number, table, f"spec.layouts[{place}]")
        except Refused as problem:
            refused[gpu.product, place] = problem
    problems = [p for each in refused.values() for p in each.problems]
    if not problems and not any(cuts.values()):
        problems = [nothing_cut(layouts, [table.product(gpu.product) for gpu in gpus])]
    if problems:
        raise Refused(*problems)
    return tuple(cuts[gpu] for gpu in gpus)


def _type_problems(layout: Layout, at: str) -> Iterator[Problem]:
    if layout.type not in (LayoutType.WHOLE, LayoutType.PROFILES, LayoutType.KEEP):
        yield Problem(
            reason="LayoutTypeUnsupported",
            at=f"{at}.type",
            why=f"MIG cannot cut GPUs as {layout.type}",
            fix="use Profiles (or Whole, or Keep), or a driver of type Publish",
        )
    if layout.sharing.mode is not SharingMode.EXCLUSIVE:
        yield Problem(
            reason="SharingUnsupported",
            at=f"{at}.sharing.mode",
            why="whether a partition serves several claims is a setting of NVIDIA's DRA driver as a whole",
            fix="leave sharing out",
        )


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
