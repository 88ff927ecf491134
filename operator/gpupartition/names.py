"""Every name that other programs, manifests and people rely on, in one place. A name in here is for ever."""

from __future__ import annotations

import hashlib
from typing import Final

GROUP: Final = "gpupartition.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

OPERATOR_NAMESPACE: Final = "gpupartition-system"
FREEZE_CONFIG_MAP: Final = "gpupartition-freeze"
FIELD_MANAGER: Final = "gpupartition"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"  # label of what the operator makes; its value is the field manager

# Labels: what a node or an object is assigned to.
LAYOUT: Final = f"{GROUP}/layout"
DRIVER: Final = f"{GROUP}/driver"

# Annotations that the operator writes.
STEP: Final = f"{GROUP}/step"
FINGERPRINT: Final = f"{GROUP}/fingerprint"
DRAWING: Final = f"{GROUP}/drawing"
LAST_USED: Final = f"{GROUP}/last-used"
ENTRIES: Final = f"{GROUP}/entries"
FULL_NODE_NAME: Final = f"{GROUP}/node"
CORDONED: Final = f"{GROUP}/cordoned"

# Annotations and labels by which people ask for something. Any new value asks anew; the operator never removes one.
RETRY: Final = f"{GROUP}/retry"
RETRY_NODES: Final = f"{GROUP}/retry-nodes"  # node=value, separated by commas
PAUSED: Final = f"{GROUP}/paused"
PAUSED_BY: Final = f"{GROUP}/paused-by"
PAUSED_REASON: Final = f"{GROUP}/paused-reason"
PAUSED_UNTIL: Final = f"{GROUP}/paused-until"
ACCEPT_NO_ROLLBACK: Final = f"{GROUP}/accept-no-rollback"
SKIP: Final = f"{GROUP}/skip"
DO_NOT_DISRUPT: Final = f"{GROUP}/do-not-disrupt"
ACCEPT_DRIFT: Final = f"{GROUP}/accept-drift"
ABANDON: Final = f"{GROUP}/abandon"

FINALIZER: Final = f"{GROUP}/in-flight"

# The taint of devices that nobody shall be given any more: those of a node that is being changed, and those that a layout has retired.
TAINT_KEY: Final = f"{GROUP}/repartitioning"

# The taint that a node can be born with: no pod is scheduled to it before its first layout is verified.
STARTUP_TAINT: Final = f"{GROUP}/not-ready"


TAINT_RULES: Final = "gpp-"  # their names begin so, which admission rules hold them to


def taint_rule(node: str, uid: str) -> str:
    """Name of the one DeviceTaintRule that may exist for a node: fixed, so that creating it twice is a conflict.

    The UID keeps a node that came back under its old name apart from the one before. The whole node name stands in the annotation
    `gpupartition.dev/node`, because it may be cut off here.
    """
    return f"{TAINT_RULES}{node[:40].rstrip('-.')}-{hashlib.sha256(uid.encode()).hexdigest()[:10]}"
