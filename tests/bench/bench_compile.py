"""How long it takes to compile a policy for 5,000 nodes of five models, each with eight GPUs, from what they publish.

The operator's own compiling, with its memory, from an empty memory. Half of the nodes are cut already; the bound is CPU time of this process.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING, Any, Final

from testbed import nodes
from testbed.drivers import amd_slices, gpus, nvidia_slices
from testbed.drivers.amd_gpus import read_spec, set_compute
from testbed.drivers.gpus import Gpu
from tests.bench.figures import Figure
from tests.unit.fleet import READY, Fleet, policy

from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Policy
from gpupartition.controller.intent import Intents
from gpupartition.controller.probe import Probe
from gpupartition.controller.scope import read_scope
from gpupartition.domain.mig import model_of, preset
from gpupartition.kube import DAEMON_SETS, NODES, RESOURCE_SLICES
from gpupartition.names import API_VERSION
from gpupartition.tables import mig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpupartition.kube import Object

COUNT: Final = 5_000
GPUS: Final = 8
ROUNDS: Final = 5
BOUND: Final = 1.0  # seconds: what the first look after a start may take of it
NVIDIA: Final = (
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H200",
    "NVIDIA B200",
)
AMD: Final = tuple(f"AMD_Instinct_{name}_OAM" for name in ("MI300X", "MI325X", "MI350X", "MI355X", "MI300A"))


def measure() -> list[Figure]:
    """Seconds of CPU: for static MIG, each model balanced, and for AMD's modes, each GPU in as many parts as it has dies."""
    return asyncio.run(_measure())


async def _measure() -> list[Figure]:
    balanced = [_layout(n, product, "all-balanced") for n, product in enumerate(NVIDIA)]
    mig_fleet = _fleet("NvidiaMig", [_cut_nvidia(product) for product in NVIDIA], balanced)
    small = {"name": "small", "match": {"all": True}, "type": "Mode", "mode": {"compute": "CPX", "memory": "NPS1"}}
    amd_fleet = _fleet("AmdDcm", [_cut_amd(product) for product in AMD], [small])
    return [await _figure("MIG", mig_fleet), await _figure("AMD's modes", amd_fleet)]


async def _figure(name: str, fleet: Fleet) -> Figure:
    caches = Caches(fleet.client, namespace="", on_node=lambda _: None, on_all=lambda: None)
    await caches.read()
    seconds = [await _once(fleet, caches) for _ in range(ROUNDS)]
    how = f"{COUNT} nodes of five models, {GPUS} GPUs each, half of them cut; best of {ROUNDS}"
    return Figure(name=f"compile: {name}", value=min(seconds), unit="s CPU", bound=BOUND, how=how, rounds=seconds)


async def _once(fleet: Fleet, caches: Caches) -> float:
    ((kind, (driver_body,)),) = [(k, v) for k, v in fleet.objects.items() if k.plural == "gpupartitiondrivers"]
    ((_, (body,)),) = [(k, v) for k, v in fleet.objects.items() if k.plural == "gpupartitionpolicies"]
    assert kind.plural
    intents = Intents(caches, Probe(fleet.client, dry_runs=False))
    driver, owner = await intents.driver(driver_body), Policy.read(body)
    gc.collect()
    begun = time.process_time()
    scope = await read_scope(body, owner, driver, driver_body, caches=caches, intents=intents, policies={})
    took = time.process_time() - begun
    assert not scope.problems, scope.problems
    assert len(scope.intents) == COUNT
    return round(took, 3)


def _layout(number: int, product: str, preset_name: str) -> Object:
    match = {"products": [product]}
    return {"name": f"l{number}", "match": match, "type": "Profiles", "profiles": [{"name": preset_name, "count": 1}]}


def _cut_nvidia(product: str) -> tuple[Sequence[Object], Sequence[Object]]:
    model = model_of(product, mig.builtin(), "")
    cut = gpus.create(Gpu(product=product, mig=True, pending=True), preset(model, "all-balanced", "").counts)
    whole = [Gpu(product=product)] * GPUS
    return nvidia_slices.draw("n", whole), nvidia_slices.draw("n", [cut] * GPUS)


def _cut_amd(product: str) -> tuple[Sequence[Object], Sequence[Object]]:
    whole = cut = read_spec(f"{GPUS}x {product}")
    for index in range(GPUS):
        cut = set_compute(cut, index, "CPX", {})
    return amd_slices.draw(whole), amd_slices.draw(cut)


def _fleet(kind: str, drawn: Sequence[tuple[Sequence[Object], Sequence[Object]]], layouts: Sequence[Object]) -> Fleet:
    fleet = Fleet(0)
    made = nodes.nvidia() if kind == "NvidiaMig" else nodes.amd()
    sets = [body for each, body in made if each is DAEMON_SETS]
    for body in sets:
        body["metadata"] |= {"uid": body["metadata"]["name"], "generation": 1, "resourceVersion": "1"}
    fleet.objects[DAEMON_SETS] = sets
    for number in range(COUNT):
        name = f"node-{number}"
        body = nodes.node(name, zone="a")
        body["metadata"] |= {"uid": name, "resourceVersion": "1"}
        body["status"]["conditions"] = READY
        fleet.objects[NODES].append(body)
        contents = drawn[number % len(drawn)][number // len(drawn) % 2]
        pool = {"name": name, "generation": 1, "resourceSliceCount": len(contents)}
        for place, content in enumerate(contents):
            spec = {"driver": DRIVERS[kind], "nodeName": name, "pool": pool, **content}
            fleet.objects[RESOURCE_SLICES].append(
                {"metadata": {"name": f"{name}-{place}", "resourceVersion": "1"}, "spec": spec}
            )
    fleet.apply(_driver(kind))
    fleet.apply(policy("inference", *layouts))
    return fleet


DRIVERS: Final[Mapping[str, str]] = {"NvidiaMig": nvidia_slices.DRIVER, "AmdDcm": amd_slices.DRIVER}


def _driver(kind: str) -> Object:
    specs: dict[str, dict[str, Any]] = {
        "NvidiaMig": {
            "nvidiaMig": {
                "migManager": {"namespace": "gpu-operator", "name": "nvidia-mig-manager"},
                "config": "mig-parted-config",
                "plugin": {"namespace": "dra-driver-nvidia-gpu", "name": "dra-driver-nvidia-gpu-kubelet-plugin"},
            }
        },
        "AmdDcm": {
            "amdDcm": {
                "configManager": {"namespace": "kube-amd-gpu", "name": "default-device-config-manager"},
                "config": "config-manager-config",
                "plugin": {"namespace": "k8s-gpu-dra-driver", "name": "k8s-gpu-dra-driver-kubeletplugin"},
            }
        },
    }
    body = {"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": {"name": "example"}}
    return {**body, "spec": {"type": kind, **specs[kind]}}
