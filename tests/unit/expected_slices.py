"""The slices that a driver is expected to publish."""

from __future__ import annotations

from typing import Any

from gpupartition.api.v1alpha1 import DriverType
from gpupartition.backends import expected_slices
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.pool import Pool

Body = dict[str, Any]


def expected(kind: DriverType, then: Pool, now: Pool | None = None, on: NodeFacts | None = None) -> list[Body]:
    present = on.slices if on is not None else ()
    return expected_slices.expected_slices(
        kind, "gpu.example.com", "n1", "n1", now=now or Pool(), then=then, present=present
    )


def devices(bodies: list[Body]) -> list[Body]:
    return [device for body in bodies for device in body["spec"].get("devices", ())]
