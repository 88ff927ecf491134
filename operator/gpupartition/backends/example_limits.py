"""What dra-example-driver can publish: the exact pool for what it is told, and why a layout or an installation cannot be.

On a layout that the API refuses the driver stays up, keeps trying and may lose half of a pool, or all of it: so it is refused here, before
any node is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from gpupartition.api.v1alpha1 import Layout, LayoutType, SharingMode
from gpupartition.backends import plugin_template as plugin
from gpupartition.backends.plugin_template import Settings
from gpupartition.backends.slices import MAX_COUNTER_SETS, MAX_DEVICES
from gpupartition.domain.objects import Object
from gpupartition.domain.pool import Device, Pool
from gpupartition.domain.problem import Problem
from gpupartition.names import LAYOUT

MEMORY: Final = 80 * 1024**3  # bytes of every GPU that the driver simulates (internal/profiles/gpu/gpu.go, v0.4.0)
COMPUTE: Final = 100  # of which a part has its share, in the same file
GI: Final = 1024**3


@lru_cache(maxsize=256)
def published(told: Settings) -> Pool:
    """The pool that the driver publishes, device by device, in its order: the parts of a GPU before the whole."""
    if not told.parts:
        return Pool(devices=tuple(_device(f"gpu-{gpu}", told.shared) for gpu in range(told.gpus)))
    devices: list[Device] = []
    for gpu in range(told.gpus):
        devices += [
            _device(f"gpu-{gpu}-partition-{part}", told.shared, cut=told.parts, counters=f"gpu-{gpu}-counters")
            for part in range(told.parts)
        ]
        devices.append(_device(f"gpu-{gpu}-full", told.shared, counters=f"gpu-{gpu}-counters"))
    whole = {"memory": MEMORY, "compute": COMPUTE}
    return Pool(devices=tuple(devices), counters={f"gpu-{gpu}-counters": whole for gpu in range(told.gpus)})


def _device(name: str, shared: bool, *, cut: int = 1, counters: str = "") -> Device:
    size = {"memory": MEMORY // cut, "compute": COMPUTE // cut}
    return Device(name=name, capacity=size, costs={counters: size} if counters else {}, shared=shared)


def installation_problems(base: Object, at: str) -> Iterator[Problem]:
    """What is wrong with the DaemonSet that the driver was installed with; `at` names it."""
    template = base["spec"]["template"]
    if base["spec"].get("updateStrategy", {}).get("type") != "OnDelete":
        yield Problem(
            reason="BaseRollsItself",
            at=at,
            why="it replaces its pods by itself, on all nodes at its own pace",
            fix="set spec: {updateStrategy: {type: OnDelete}}",
        )
    if not plugin.exclusive(template):
        requirement = f"{{key: {LAYOUT}, operator: DoesNotExist}}"
        yield Problem(
            reason="BaseNotExclusive",
            at=at,
            why="its pods would run beside those of a layout on the same node",
            fix=f"add to every nodeSelectorTerm: matchExpressions: [{requirement}]; where there is none: spec: {{template: {{spec: "
            "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
            f"[{{matchExpressions: [{requirement}]}}]}}}}}}}}}}}}",
        )
    for unreadable in plugin.check(template):
        yield unreadable.problem(at)


def layout_problems(layouts: Sequence[Layout], gpus: int) -> Iterator[Problem]:
    """Why a policy's layouts cannot be published by a driver with so many GPUs on each node."""
    layout = layouts[0]
    at = "spec.layouts[0]"
    if len(layouts) > 1 or not layout.match.all:
        yield Problem(
            reason="LayoutNotUniform",
            at="spec.layouts" if len(layouts) > 1 else f"{at}.match",
            why="this driver cuts all GPUs of a node alike",
            fix="write exactly one layout, with match: {all: true}",
        )
    if layout.type not in (LayoutType.WHOLE, LayoutType.EQUAL):
        yield Problem(
            reason="LayoutTypeUnsupported",
            at=f"{at}.type",
            why=f"this driver cannot publish {layout.type}",
            fix="use Whole or Equal, or a driver of type Publish",
        )
    if layout.equal:
        yield from _part_problems(layout, gpus, at)
    if layout.sharing.capacity:
        yield Problem(
            reason="SharingCapacityUnsupported",
            at=f"{at}.sharing.capacity",
            why="sharing.capacity is for Publish: this driver chooses the bounds of a shared device itself (steps of 1Gi and of 1 compute)",
            fix="leave it out",
        )


def _part_problems(layout: Layout, gpus: int, at: str) -> Iterator[Problem]:
    if layout.equal is None:
        return
    parts = layout.equal.parts
    shared = layout.sharing.mode is SharingMode.SHARED
    if not layout.equal.offer_whole:
        yield Problem(
            reason="WholeAlwaysOffered",
            at=f"{at}.equal.offerWhole",
            why="this driver always offers the whole GPU beside its parts",
            fix="leave it out or set it to true",
        )
    # The driver puts all counter sets of a node into one slice, and all devices into another.
    if gpus > MAX_COUNTER_SETS:
        yield Problem(
            reason="TooManyGpus",
            at=f"{at}.equal.parts",
            why=f"{gpus} GPUs in parts need {gpus} counter sets in one slice, and the API takes {MAX_COUNTER_SETS}",
            fix=f"use type Whole on nodes with more than {MAX_COUNTER_SETS} GPUs, or a driver of type Publish",
        )
    elif gpus * (parts + 1) > MAX_DEVICES:
        yield Problem(
            reason="TooManyParts",
            at=f"{at}.equal.parts",
            why=f"{gpus} GPUs in {parts} parts and as a whole are {gpus * (parts + 1)} devices in one slice, and the API takes {MAX_DEVICES}",
            fix=_use(gpus, parts, shared=shared),
        )
    if shared and MEMORY % (parts * GI):
        yield Problem(
            reason="PartsNotWholeGi",
            at=f"{at}.equal.parts",
            why=f"shared devices are handed out in steps of 1Gi, and 80Gi in {parts} parts is {MEMORY // parts} bytes, no whole number of Gi",
            fix=_use(gpus, parts, shared=True),
        )


def _use(gpus: int, parts: int, *, shared: bool) -> str:
    fitting = [p for p in range(2, MAX_DEVICES // min(gpus, MAX_COUNTER_SETS)) if not (shared and MEMORY % (p * GI))]
    nearest = sorted(sorted(fitting, key=lambda p: (abs(p - parts), p))[:2])
    return f"use {' or '.join(str(p) for p in nearest)} parts"
