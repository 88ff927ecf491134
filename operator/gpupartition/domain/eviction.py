"""Whom a drain may evict: pods that hold a device which would change, unless a rule of the table spares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gpupartition import names
from gpupartition.api.v1alpha1 import Drain, DrainMode
from gpupartition.domain.holders import Holder
from gpupartition.domain.objects import controller_of
from gpupartition.domain.selector import fits, matches

Pod = Mapping[str, Any]

KUBE_SYSTEM: Final = "kube-system"
BLOCKED: Final = "EvictionBlocked"  # by a disruption budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the last eviction of a pod was refused, by which disruption budgets, and for how long it is still left alone."""

    reason: str
    budgets: tuple[str, ...] = ()
    resting: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A pod that uses a claim which is in the way, as read live. `protected`: it is of the operator or the driver, or runs where they do."""

    body: Pod
    protected: bool = False
    refusal: Refusal | None = None

    @property
    def name(self) -> str:
        """Its namespace/name, as holders call it."""
        return f"{self.body['metadata']['namespace']}/{self.body['metadata']['name']}"

    @property
    def resting(self) -> timedelta:
        """For how long it is left alone after a refusal."""
        return self.refusal.resting if self.refusal else timedelta(0)

    @property
    def kept(self) -> bool:
        """Whether a disruption budget refuses it now, as far as is known: once it has rested, that may have changed, and it is asked anew."""
        return self.refusal is not None and self.refusal.reason == BLOCKED and bool(self.resting)


Rule = Callable[[Occupant, Drain], bool]


def _is_terminating(pod: Occupant, _: Drain) -> bool:
    return "deletionTimestamp" in pod.body["metadata"]


def _is_over(pod: Occupant, _: Drain) -> bool:
    return pod.body.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def _is_protected(pod: Occupant, _: Drain) -> bool:
    return pod.protected or pod.body["metadata"]["namespace"] == KUBE_SYSTEM


def _is_mirror(pod: Occupant, _: Drain) -> bool:
    return "kubernetes.io/config.mirror" in pod.body["metadata"].get("annotations", {})


def _is_of_daemon_set(pod: Occupant, _: Drain) -> bool:
    return controller_of(pod.body).get("kind") == "DaemonSet"


def _asks_for_peace(pod: Occupant, _: Drain) -> bool:
    return bool(pod.body["metadata"].get("annotations", {}).get(names.DO_NOT_DISRUPT) == "true")


def _is_to_complete(pod: Occupant, drain: Drain) -> bool:
    chosen = drain.wait_for_completion
    return chosen is not None and matches(chosen, pod.body["metadata"].get("labels", {}))


def _has_no_controller(pod: Occupant, drain: Drain) -> bool:
    return not drain.force and not controller_of(pod.body)


def _has_empty_dir(pod: Occupant, drain: Drain) -> bool:
    volumes = pod.body.get("spec", {}).get("volumes", ())
    return not drain.delete_empty_dir and any("emptyDir" in volume for volume in volumes)


# In this order; the name is the blocker's reason. Whoever is spared is waited for.
SPARED: Final[Mapping[str, Rule]] = {
    "Terminating": _is_terminating,
    "Completed": _is_over,
    "Protected": _is_protected,
    "MirrorPod": _is_mirror,
    "DaemonSetPod": _is_of_daemon_set,
    "DoNotDisrupt": _asks_for_peace,
    "WaitForCompletion": _is_to_complete,
    "NoController": _has_no_controller,
    "EmptyDir": _has_empty_dir,
}


def spared(pod: Occupant, drain: Drain) -> str:
    """Why a pod is not evicted; "" when it may be."""
    return next((reason for reason, rule in SPARED.items() if rule(pod, drain)), "")


def is_monitor(pod: Occupant, drain: Drain) -> bool:
    """Whether a pod of a DaemonSet may be evicted as the last: it would never end by itself, and only looks on (admin access)."""
    others = (rule for reason, rule in SPARED.items() if reason not in {"DaemonSetPod", "Terminating"})
    return _is_of_daemon_set(pod, drain) and pod.refusal is None and not any(rule(pod, drain) for rule in others)


def monitoring(held: Iterable[Holder], occupants: Sequence[Occupant], drain: Drain) -> tuple[Holder, ...]:
    """Those holders that have nothing but admin access, for pods of DaemonSets alone."""
    known = {pod.name: pod for pod in occupants}
    return tuple(
        h for h in held if h.admin and h.pods and all(p in known and is_monitor(known[p], drain) for p in h.pods)
    )


def next_to_go(occupants: Iterable[Occupant], drain: Drain, *, forced: bool = False) -> Occupant | None:
    """The pod to be ended now. One that was refused rests first; `forced`: not one that a disruption budget keeps."""
    may_go = (pod for pod in occupants if not spared(pod, drain))
    return next((pod for pod in may_go if not pod.resting or (forced and pod.kept)), None)


def rests(occupants: Iterable[Occupant], drain: Drain) -> timedelta | None:
    """When to try again, if somebody is left alone only for a while."""
    return min((p.resting for p in occupants if p.resting and not spared(p, drain)), default=None)


def standing_of(holder: Holder, occupants: Sequence[Occupant], drain: Drain, *, quiet: bool) -> tuple[str, str, str]:
    """Pod, reason and budgets to name for a holder: of its pods the one that is waited for longest. `quiet`: nobody is evicted now."""
    pods = [pod for pod in occupants if pod.name in holder.pods]
    if drain.mode is not DrainMode.EVICT or not pods:
        return holder.pods[0] if holder.pods else "", holder.reason, ""
    told = [(pod, _reason(pod, drain, quiet=quiet)) for pod in pods]
    pod, reason = next((each for each in told if each[1] not in {"Evicting", "Terminating"}), told[0])
    return pod.name, reason, ", ".join(pod.refusal.budgets) if pod.refusal and reason == pod.refusal.reason else ""


def _reason(pod: Occupant, drain: Drain, *, quiet: bool) -> str:
    if _is_terminating(pod, drain):
        return "Terminating"
    if pod.refusal:
        return pod.refusal.reason
    return spared(pod, drain) or ("Allocated" if quiet else "Evicting")


def budgets_of(pod: Pod, budgets: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The disruption budgets (policy/v1, of its namespace) that are about a pod: those that allow nothing now, else all of them."""
    labels = pod["metadata"].get("labels", {})
    about = [b for b in budgets if _selects(b["spec"].get("selector"), labels)]
    shut = [b for b in about if b.get("status", {}).get("disruptionsAllowed", 0) <= 0]
    return tuple(sorted(f"{b['metadata']['namespace']}/{b['metadata']['name']}" for b in shut or about))


def _selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """As policy/v1 has it: no selector selects nothing, an empty one everything."""
    if selector is None:
        return False
    required = ((r["key"], r["operator"], r.get("values", [])) for r in selector.get("matchExpressions", ()))
    return fits(selector.get("matchLabels", {}), required, labels)
