"""What people have declared: a policy and a driver, as they are now, or why they cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from gpupartition import names
from gpupartition.api.v1alpha1 import DriverSpec, DriverStatus, PolicySpec, PolicyStatus
from gpupartition.domain import windows
from gpupartition.domain.backend import Backend, Cluster
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.quiesce import Way
from gpupartition.domain.selector import matches
from gpupartition.domain.suspension import Suspension, of_policy
from gpupartition.kube import Kind, Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A GpuPartitionDriver as it is now, with the part of the cluster that it is about.

    `taint_rules`: the DeviceTaintRules that the cluster has; `quiesce`: how its nodes are kept from new claims, in attempts that begin now.
    """

    name: str
    uid: str
    spec: DriverSpec
    backend: Backend
    cluster: Cluster
    driver_name: str
    taint_rules: Kind | None = None
    quiesce: Way = "DeviceTaint"
    problems: tuple[Problem, ...] = ()
    # What compiling depends on, as far as all nodes share it.
    key: tuple[Any, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sets = tuple((d["metadata"]["uid"], d["metadata"].get("generation")) for d in self.cluster.daemon_sets)
        shared = {(d.namespace, d.name) for d in self.backend.documents(self.spec)}  # nothing is compiled from those
        about = [c["metadata"] for c in self.cluster.config_maps]
        maps = tuple((m["uid"], m["resourceVersion"]) for m in about if (m["namespace"], m["name"]) not in shared)
        kept = tuple(self.cluster.dropped)
        object.__setattr__(self, "key", (self.uid, self.spec.model_dump_json(), sets, maps, kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A GpuPartitionPolicy as it is now. `spec` None: it cannot be read, and `problems` says why."""

    name: str
    uid: str
    generation: int
    spec: PolicySpec | None
    status: PolicyStatus
    retry: str
    deleting: bool
    retry_nodes: Mapping[str, str] = field(default_factory=dict)
    suspension: Suspension | None = None
    accept_drift: str = ""
    abandoned: bool = False
    problems: tuple[Problem, ...] = ()

    def selects(self, node: Mapping[str, Any] | None) -> bool:
        """Whether it wants this node."""
        return self.spec is not None and node is not None and matches(self.spec.node_selector, labels(node))

    def gives_up(self, node: Mapping[str, Any] | None) -> bool:
        """Whether it does not want a node any more that it has. One that cannot be read says nothing of the kind."""
        return self.deleting or (self.spec is not None and not self.selects(node))

    def retry_of(self, node: str) -> str:
        """What asks to try a node again: what was written about all of them, and about it alone."""
        return " ".join(filter(None, (self.retry, self.retry_nodes.get(node, ""))))

    @property
    def observes(self) -> bool:
        """Whether it only says what would change. What is being deleted does not."""
        return self.spec is not None and self.spec.mode == "Observe" and not self.deleting

    def paused(self, now: datetime) -> str:
        """Why none of its nodes may begin and nobody is evicted; "" while it is not paused. What is being deleted is not."""
        if self.deleting or self.spec is None:
            return ""
        if self.spec.rollout.paused:
            return "spec.rollout.paused is true"
        return str(self.suspension) if self.suspension is not None and self.suspension.holds(now) else ""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Policy:
        """Read the object; never raises."""
        meta = body["metadata"]
        notes = meta.get("annotations", {})
        problems: tuple[Problem, ...] = ()
        spec = None
        try:
            spec = PolicySpec.model_validate(body.get("spec", {}))
            problems = tuple(windows.problems(spec.rollout.windows))
        except ValidationError as error:
            problems = tuple(invalid(error))
        try:
            status = PolicyStatus.model_validate(body.get("status", {}))
        except ValidationError:
            status = PolicyStatus()  # ours to write: whatever is in there is replaced
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            generation=meta.get("generation", 0),
            spec=spec,
            status=status,
            retry=notes.get(names.RETRY, ""),
            retry_nodes=pairs(notes.get(names.RETRY_NODES, "")),
            suspension=of_policy(body),
            accept_drift=notes.get(names.ACCEPT_DRIFT, ""),
            abandoned=bool(notes.get(names.ABANDON)),
            deleting="deletionTimestamp" in meta,
            problems=problems,
        )


def pairs(text: str) -> Mapping[str, str]:
    """`node-2=now,node-3=1` as people write it; what is no pair says nothing."""
    found = (part.strip().partition("=") for part in text.split(","))
    return {name: value for name, _, value in found if name and value}


def labels(node: Mapping[str, Any]) -> Mapping[str, str]:
    """The node's labels."""
    found: Mapping[str, str] = node["metadata"].get("labels", {})
    return found


def invalid(error: ValidationError) -> list[Problem]:
    """A spec that the CRD should have refused: an older or foreign CRD is installed."""
    return [
        Problem(
            reason="InvalidSpec",
            at="spec" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in e["loc"]),
            why=e["msg"],
            fix="apply the CRDs of this release and correct the field",
        )
        for e in error.errors()
    ]


def unreadable_ledger(driver: Object) -> Problem | None:
    """Why it cannot be said which nodes of a driver have a grant, so that none may be touched."""
    try:
        DriverStatus.model_validate(driver.get("status", {}))
    except ValidationError as error:
        first = invalid(error)[0]
        mend = f"kubectl edit gpupartitiondriver {driver['metadata']['name']} --subresource=status"
        return replace(
            first, reason="LedgerUnreadable", at=first.at.replace("spec", "status", 1), fix=f"correct it: {mend}"
        )
    return None


def readable(driver: Object) -> DriverSpec:
    """Its spec. Raises Refused where that cannot be read, or the ledger cannot."""
    try:
        spec = DriverSpec.model_validate(driver["spec"])
    except ValidationError as error:
        raise Refused(*invalid(error)) from error
    if wrong := unreadable_ledger(driver):
        raise Refused(wrong)
    return spec
