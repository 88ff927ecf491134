"""How each driver is configured and what it publishes: the backend of each driver type, all of them behind domain/backend.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpupartition.api.v1alpha1 import DriverType
from gpupartition.backends.amd_dcm import AmdDcm
from gpupartition.backends.example import ExampleDriver
from gpupartition.backends.nvidia_mig import NvidiaMig
from gpupartition.backends.publish import Publish
from gpupartition.domain.backend import Backend

BACKENDS: Final[Mapping[DriverType, Backend]] = {
    DriverType.EXAMPLE_DRIVER: ExampleDriver(),
    DriverType.PUBLISH: Publish(),
    DriverType.NVIDIA_MIG: NvidiaMig(),
    DriverType.AMD_DCM: AmdDcm(),
}
