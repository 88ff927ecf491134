"""Which policy or node is meant by a name, and what is said of one that is not there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from gpupartition.cli.options import Unusable
from gpupartition.names import GROUP

POLICY: Final = f"gpupartitionpolicy.{GROUP}"
DRIVER: Final = f"gpupartitiondriver.{GROUP}"
NODE: Final = f"gpupartitionnodestate.{GROUP}"
_KINDS: Final = {POLICY: POLICY, "policy": POLICY, "gpp": POLICY, NODE: NODE, "node": NODE, "gpn": NODE, "": ""}


def must_be_there(policies: Iterable[str], known: Collection[str], *, hint: str = "") -> None:
    """Raises Unusable for those of the policies that are not known; `hint`: what could be done instead."""
    there = ", ".join(sorted(known)) or "none"
    if missing := [name for name in policies if name not in known]:
        raise Unusable(*(f"there is no GpuPartitionPolicy {name}; there are: {there}" for name in missing), hint=hint)


def no_node(name: str) -> Unusable:
    """What is said of a node that is not there."""
    return Unusable(f"there is no node {name}; kubectl get nodes names those that there are")


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
