"""Which policy or node is meant by a name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gpupartition.cli.options import Unusable
from gpupartition.names import GROUP

POLICY: Final = f"gpupartitionpolicy.{GROUP}"
NODE: Final = f"gpupartitionnodestate.{GROUP}"
_KINDS: Final = {POLICY: POLICY, "policy": POLICY, "gpp": POLICY, NODE: NODE, "node": NODE, "gpn": NODE, "": ""}


def target(text: str, policies: Collection[str], nodes: Collection[str]) -> tuple[str, str]:
    """Which kind is meant by a name, with what stands before its slash, and the name. Raises Unusable where it is neither, or both."""
    before, _, name = text.rpartition("/")
    kind = _KINDS.get(before)
    if kind is None:
        raise Unusable(f"{text}: {before} is neither policy nor node; write policy/{name} or node/{name}")
    found = [k for k, known in ((POLICY, policies), (NODE, nodes)) if name in known and kind in {k, ""}]
    if not found:
        raise Unusable(
            f"there is neither a GpuPartitionPolicy nor a node of one that is called {name}; policies are: "
            f"{', '.join(sorted(policies)) or 'none'}; kubectl get gpn names the nodes"
        )
    if len(found) > 1:
        raise Unusable(f"{name} is a policy and a node; write policy/{name} or node/{name}")
    return found[0], name
