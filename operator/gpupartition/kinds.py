"""The kinds of gpupartition.dev, as one asks an API server for them."""

from __future__ import annotations

from typing import Final

from gpupartition import names
from gpupartition.kube.kinds import Kind

DRIVERS: Final = Kind(names.API_VERSION, "gpupartitiondrivers", namespaced=False)
POLICIES: Final = Kind(names.API_VERSION, "gpupartitionpolicies", namespaced=False)
NODE_STATES: Final = Kind(names.API_VERSION, "gpupartitionnodestates", namespaced=False)
