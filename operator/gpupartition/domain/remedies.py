"""What would free a node: a sentence for each reason why one is where it is, and for each kind of holder.

The reasons are those of docs/reference.md, which says what they mean; here stands what leads on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gpupartition.domain.plan import Fate
from gpupartition.domain.reports import NodeReport
from gpupartition.domain.retiring import RETIRING
from gpupartition.domain.rollout import UNREADABLE

_ENDS: Final = "ends when the pod does"
_EVICT: Final = "drain.mode: Evict in the policy would have it evicted"

HOLDERS: Final[Mapping[str, str]] = {
    "Allocated": f"{_ENDS}; {_EVICT}",
    "AllocatedUnreserved": "a pod uses the claim and ends, or the claim is deleted",
    "Terminating": "it is ending; if it hangs, its node's kubelet knows why",
    "AdminAccess": "ends when the pod does that looks on with admin access",
    "Evicting": "it is evicted next",
    "EvictionBlocked": "the disruption budget allows it, or the pod ends; more replicas, or a budget that allows one to be missing",
    "EvictionForbidden": "the right to evict: manifests/components/evict; or the admission policy that refused lets it",
    "NamespaceTerminating": "goes with its namespace, which is being deleted",
    "Completed": "its claim is freed in a moment; if not, delete the pod",
    "Protected": f"{_ENDS}; it is never evicted",
    "MirrorPod": "its file is taken off the node",
    "DaemonSetPod": "its DaemonSet no longer wants it on this node",
    "DoNotDisrupt": "ends when the pod does, or its annotation gpupartition.dev/do-not-disrupt is removed",
    "WaitForCompletion": "the job is done; drain.waitForCompletion in the policy spares it",
    "NoController": "ends when the pod does; drain.force in the policy would have it evicted, and nobody would make it anew",
    "EmptyDir": "ends when the pod does; drain.deleteEmptyDir in the policy would have it evicted, and what is in there lost",
}

_RETRY: Final = "kubectl gpp retry {node}"
_MENDED: Final = f"mend what the message names: it opens when its former layout is back, or ask to try again: {_RETRY}"

REASONS: Final[Mapping[str, str]] = {
    UNREADABLE: "do with its record what the message says",
    "NoWayBack": "kubectl annotate node {node} gpupartition.dev/accept-no-rollback=true, if it may change without a way back",
    "Drift": "it is repaired by itself when it is idle",
    "DriftUnrepaired": f"find out who changes it, then ask to try again: {_RETRY}",
    "AssignmentContested": f"stop whoever else writes its assignment (the message names it), then ask to try again: {_RETRY}",
    "HardwareDegraded": "get its GPUs back (a reset, a reboot, a repair); then it goes on by itself",
    "DevicePluginPresent": "switch off what the message names; then it goes on by itself",
    "TwoOwners": "switch off what the message names; then it goes on by itself",
    "Retiring": "nothing is to be done: they go when the pods that have them end",
    "NameTaken": "find out whose it is, and delete what the message names",
    "SkipRequested": "kubectl label node {node} gpupartition.dev/skip-",
    "ForeignMaintenance": "its turn comes when the others are done; kubectl uncordon {node}, if it was forgotten",
    "ConfigLate": "let the operator write the config of its driver {driver}: its rights, an object that cannot be changed, an admission policy",
    "Abandoned": "nothing leads on: it was let go of as it is",
    "QuiesceUnconfirmed": "switch on the feature gate DRADeviceTaintRules, or write quiesce: Cordon in the driver {driver}",
    "ApplyingFailed": f"mend what the message names, then ask to try again: {_RETRY}",
    "VerifyingFailed": f"mend what the message names, then ask to try again: {_RETRY}",
    "RollingBackFailed": _MENDED,
    "Stranded": f"{_MENDED}; where no policy wants it any more, let go of it as it is: "
    "kubectl annotate node {node} gpupartition.dev/abandon=true",
    "DrainingFailed": f"have its holders end, then ask to try again: {_RETRY}",
}

_BY_ITSELF: Final = "nothing is to be done: it goes on by itself"

PHASES: Final[Mapping[str, str]] = {
    "Admitted": _BY_ITSELF,
    "Quiescing": _BY_ITSELF,
    "Draining": "it goes on when its holders have ended",
    "Applying": _BY_ITSELF,
    "Verifying": _BY_ITSELF,
    "Releasing": _BY_ITSELF,
    "Aborting": _BY_ITSELF,
    "RollingBack": "nothing is to be done: the former layout is being restored",
    "Failed": f"ask to try again: {_RETRY}",
    "RolledBack": f"ask to try again: {_RETRY}",
    "Skipped": "the message says what keeps it",
}

GOES_ON: Final = frozenset({"RollingBack", "Releasing", "Aborting"})  # with a reason that is about what was before

FATES: Final[Mapping[str, str]] = {
    Fate.UP_TO_DATE: "nothing is to be done: it has what is wanted",
    Fate.STARTS: "nothing is to be done: its turn comes",
    Fate.BLOCKED: "its turn comes when those who are in the way have ended",
    Fate.WAITS: "its turn comes when that is over",
    Fate.NOT_READY: "its turn comes when the node is Ready",
    Fate.REFUSED: "do what the message says; then it goes on by itself",
    Fate.CONTESTED: "narrow one of the policies' selectors",
}

ENFORCE: Final = "mode: Enforce in policy {policy}, which only observes: nothing happens to the node"


def advice(node: NodeReport | None, fate: Fate | None, names: Mapping[str, str]) -> str:
    """What would free a node; the most exact sentence that there is. `names`: what {node}, {policy} and {driver} are."""
    return next(_sentences(node, fate), "").format(**names)


def _sentences(node: NodeReport | None, fate: Fate | None) -> Iterator[str]:
    tables: list[tuple[Mapping[str, str], str]] = []
    if node is not None and (fate is not Fate.UP_TO_DATE or node.reason == RETIRING):
        of_node = [(REASONS, node.reason), (PHASES, node.phase)]
        tables += of_node if node.phase not in GOES_ON else of_node[::-1]
    if fate is not None:
        tables.append((FATES, fate))
    yield from (table[key] for table, key in tables if key in table)


def remedy(reason: str) -> str:
    """What would free a device of a holder of this kind; "" for one that is not known."""
    return HOLDERS.get(reason, "")
