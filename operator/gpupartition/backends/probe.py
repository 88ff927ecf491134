"""Whether an API server keeps what this operator would publish.

A server whose feature gate is off drops fields without a word (ResourceSlice strategy, dropDisabledFields). Partitions would then no longer
draw on their GPU's counters and be sold beside the whole. A dry run of some slices shows it without publishing anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpupartition.api.v1alpha1 import DriverSpec
from gpupartition.backends.slices import Target, skips
from gpupartition.domain.fingerprint import Json
from gpupartition.domain.pool import Device, Pool

_NODE = "gpupartition-probe"


def probe(driver: DriverSpec) -> list[dict[str, Any]]:
    """Slices that use every feature that this operator relies on, to be created as a dry run: counters, and devices that draw on them."""
    if driver.publish is None:
        return []
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
        driver=driver.publish.driver_name,
        pool_name=f"{driver.publish.driver_name}/{_NODE}",
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
