"""Whether an API server keeps what this operator would publish.

A server whose feature gate is off drops fields without a word (ResourceSlice strategy, dropDisabledFields). Partitions would then no longer
draw on their GPU's counters and be sold beside the whole. A dry run of some slices shows it without publishing anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpupartition.api.v1alpha1 import DriverSpec
from gpupartition.backends.slices import Target, skips
from gpupartition.domain.fingerprint import Json
from gpupartition.domain.pool import Device, Pool
from gpupartition.domain.problem import Problem, Turn

_DRIVER: Final = "probe.gpupartition.dev"
_NODE: Final = "gpupartition-probe"
# Feature gate: the fields that are dropped while it is off (ResourceSlice strategy, dropDisabledFields).
_GATES: Final[Mapping[str, Sequence[str]]] = {
    "DRAPartitionableDevices": ("sharedCounters", "consumesCounters"),
    "DRAConsumableCapacity": ("allowMultipleAllocations", "requestPolicy"),
}


def gate_off(why: str, fix: str) -> Problem:
    """What of slices this API server loses, so that none like them may be published."""
    return Problem(reason="FeatureGateOff", at="API server", why=why, fix=fix, turn=Turn.CLUSTER)


def losses(pool: Pool, dropped: Sequence[str]) -> Iterator[Problem]:
    """Why a pool cannot be published, by whomever, where these fields are dropped."""
    needs = {
        "DRAPartitionableDevices": bool(pool.counters),
        "DRAConsumableCapacity": any(d.shared for d in pool.devices),
    }
    for gate, fields in _GATES.items():
        lost = [path for path in dropped if path.rpartition(".")[2] in fields]
        if needs[gate] and lost:
            yield gate_off(
                f"it drops {', '.join(lost)} of slices, and this driver's layout cannot be without",
                f"switch on the feature gate {gate} (it is on by default from Kubernetes 1.36)",
            )


def probe(driver: DriverSpec) -> list[dict[str, Any]]:
    """Slices that use every feature that this operator relies on, to be created as a dry run: counters, and devices that draw on them."""
    name = driver.publish.driver_name if driver.publish is not None else _DRIVER
    size = {"memory": 8 * 1024**3}
    device = Device(
        name="gpu-0-full",
        capacity=size,
        costs={"gpu-0": size},
        shared=True,
        attributes={"index": {"int": 0}},
        request_policy={"memory": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}},
        retired=True,
    )
    target = Target(
        driver=name,
        pool_name=f"{name}/{_NODE}",
        nodes=[{"metadata": {"name": _NODE, "uid": ""}}],
        pool=Pool(devices=(device,), counters={"gpu-0": size}),
        assignment=None,
        skips=skips(driver),
    )
    bodies = target.bodies(1, "")
    for body in bodies:
        del body["metadata"]["ownerReferences"], body["metadata"]["annotations"]  # nobody refuses it for what it loses
    return bodies


def dropped(sent: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """Paths of the fields of `spec` that were sent and did not come back: `spec.devices[0].consumesCounters`. What was added is no loss."""
    return list(_dropped(sent["spec"], got.get("spec"), "spec"))


def _dropped(sent: Json, got: Json, at: str) -> Iterator[str]:
    if isinstance(sent, Mapping):
        for name, value in sent.items():
            if not isinstance(got, Mapping) or name not in got:
                yield f"{at}.{name}"
            else:
                yield from _dropped(value, got[name], f"{at}.{name}")
    elif isinstance(sent, list):
        for number, value in enumerate(sent):
            if not isinstance(got, list) or number >= len(got):
                yield f"{at}[{number}]"
            else:
                yield from _dropped(value, got[number], f"{at}[{number}]")
