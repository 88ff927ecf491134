"""What Device Config Manager and AMD's DRA driver cannot do together: how they have to be installed, and why a layout cannot be on a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from gpupartition.api.v1alpha1 import Layout, LayoutType
from gpupartition.backends.amd_gpus import AmdGpu, Cut, Cuts, Gpus, automatic
from gpupartition.backends.by_label import Software, missing
from gpupartition.backends.dcm import services
from gpupartition.backends.gpu_by_gpu import cut_each, insist, unsupported
from gpupartition.backends.installed import containers, offered
from gpupartition.domain.amd_modes import WHOLE, AmdModel, Mode, known_mode, model_of
from gpupartition.domain.backend import Cluster
from gpupartition.domain.objects import Object
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused, Turn
from gpupartition.domain.products import Product

_AUTO: Final = "AutoPartition=true"


# ----------------------------------------------------------------------------------------------------------------- installation


def installation_problems(has: Software, cluster: Cluster) -> Iterator[Problem]:
    """What is wrong with the installation, each with what to write where."""
    enable = "in the DeviceConfig of AMD's GPU operator"
    yield from has.problems(
        cluster,
        agent=missing(
            has.agent,
            reason="ConfigManagerMissing",
            at="spec.amdDcm.configManager",
            fix=f"write configManager: {{enable: true}} {enable}",
        ),
        plugin=missing(
            has.plugin,
            reason="PluginMissing",
            at="spec.amdDcm.plugin",
            fix=f"write draDriver: {{enable: true}} {enable}",
        ),
        wire=f"write configManager: {{config: {{name: {has.file.name}}}}} in the DeviceConfig",
    )
    plugin = cluster.daemon_set(has.plugin.namespace, has.plugin.name)
    if plugin is not None and _is_automatic(plugin):
        yield _two_owners(f"DaemonSet {has.plugin.namespace}/{has.plugin.name}", "its feature gate AutoPartition is on")
    names = services(cluster.config_map(has.file.namespace, has.file.name))
    if names:
        yield Problem(
            reason="StopsServices",
            at=f"ConfigMap {has.file.namespace}/{has.file.name}",
            why=f"its gpuClientSystemdServices has {names[0]}, which Device Config Manager would stop on every node at each edit",
            fix="leave gpuClientSystemdServices out, and keep services that use GPUs off these nodes",
        )


def _is_automatic(plugin: Object) -> bool:
    told = [str(e.get("value", "")) for c in containers(plugin) for e in c.get("env", ())]
    told += [word for c in containers(plugin) for word in (*c.get("command", ()), *c.get("args", ()))]
    return any(_AUTO in text.replace(" ", "") for text in told)


def _two_owners(at: str, why: str, *, of_node: bool = False) -> Problem:
    return Problem(
        reason="TwoOwners",
        at=at,
        why=f"{why}, so the DRA driver cuts GPUs itself when they are claimed, and Device Config Manager would cut them too",
        fix="drain the nodes and switch AutoPartition off, or leave these nodes to it",
        turn=Turn.CLUSTER,
        of_node=of_node,
    )


def node_problems(node: Object, pool: Pool) -> Iterator[Problem]:
    """Whether somebody else cuts the node's GPUs, or offers them."""
    name = node["metadata"]["name"]
    device = automatic(pool)
    if device:
        yield _two_owners(f"node {name}", f"it publishes {device}", of_node=True)
    names = offered(node, "amd.com/")
    if names:
        yield Problem(
            reason="DevicePluginPresent",
            at=f"node {name}",
            why=f"a device plugin offers its GPUs as {names[0]}, so pods get them behind the back of the DRA driver",
            fix="write devicePlugin: {enableDevicePlugin: false} in the DeviceConfig",
            turn=Turn.CLUSTER,
            of_node=True,
        )


def no_inventory(node: Object) -> Problem:
    """The refusal of a node of which nothing says which GPUs it has."""
    return Problem(
        reason="NoInventory",
        at=f"node {node['metadata']['name']}",
        why="it publishes no GPU",
        fix="see why its DRA driver publishes nothing",
        turn=Turn.CLUSTER,
    )


# ---------------------------------------------------------------------------------------------------------------------- layouts


TYPES: Final = (LayoutType.MODE, LayoutType.WHOLE, LayoutType.KEEP)
_SHARING: Final = "AMD's DRA driver gives a partition to one claim"


def cuts_for(layouts: Sequence[Layout], gpus: Gpus, now: Cuts, models: Sequence[AmdModel]) -> Cuts:
    """How the policy cuts each of these GPUs, which are cut as `now` says. Raises Refused with everything that cannot be."""
    insist([*unsupported(layouts, TYPES, "AMD's GPUs cannot be cut", _SHARING), *_memory_problems(layouts)])
    products = {number: product_of(gpu, models) for number, gpu in enumerate(gpus)}
    cuts, problems = cut_each(
        layouts, products, lambda n, layout, at: _cut(gpus[n], n, now[n], _mode(layout) or WHOLE, models, at)
    )
    wanted = tuple(cuts.values())
    insist([*problems, *_kept_problems(gpus, now, wanted)])
    return wanted


@lru_cache(maxsize=1024)
def product_of(gpu: AmdGpu, models: Sequence[AmdModel]) -> Product:
    """What the GPU is sold as, with its model."""
    return Product.of(gpu.product, model_of(gpu.product, models))


def _mode(layout: Layout) -> Mode | None:
    """What a layout says; None: to leave GPUs as they are."""
    if layout.type is LayoutType.WHOLE:
        return WHOLE
    return Mode(layout.mode.compute, layout.mode.memory) if layout.mode is not None else None


def _cut(gpu: AmdGpu, number: int, has: Cut | None, mode: Mode, models: Sequence[AmdModel], at: str) -> Cut:
    whom = f"{at}: GPU {number} ({gpu.product})"
    known = known_mode(gpu.product, mode, models, whom)
    if has is None:
        raise Refused(
            Problem(
                reason="NotPartitionable",
                at=whom,
                why="it publishes no partitionProfile, so its driver does not say that it has modes",
                fix="leave it to a layout of type Keep, or update its driver",
            )
        )
    return Cut(known.mode, known.partitions)


def _memory_problems(layouts: Sequence[Layout]) -> Iterator[Problem]:
    """The memory mode is that of all GPUs of a node, so that two layouts of a policy never differ in it."""
    said = [(n, layout, mode) for n, layout in enumerate(layouts) if (mode := _mode(layout)) is not None]
    for (_, one, first), (place, other, then) in pairwise(said):
        if first.memory != then.memory:
            yield Problem(
                reason="MemoryModesDiffer",
                at=f"spec.layouts[{place}].mode.memory",
                why=f"layout {one.name} has {first.memory} and layout {other.name} has {then.memory}, and a node has one memory mode",
                fix="write the same in both, or make a policy for other nodes",
            )


def _kept_problems(gpus: Gpus, now: Cuts, cuts: Sequence[Cut | None]) -> Iterator[Problem]:
    """A GPU that is left as it is would get the memory mode of the others all the same."""
    wanted = next((cut.mode.memory for cut in cuts if cut is not None), None)
    for number, (gpu, has, cut) in enumerate(zip(gpus, now, cuts, strict=True)):
        if cut is None and has is not None and wanted is not None and has.mode.memory != wanted:
            yield Problem(
                reason="KeptMemoryMode",
                at=f"GPU {number} ({gpu.product})",
                why=f"it is to be left as it is ({has.mode.told}), and the others are to get {wanted}, which is a mode of the whole node",
                fix=f"write {has.mode.memory} for the others, or a layout for this one",
            )
            return
