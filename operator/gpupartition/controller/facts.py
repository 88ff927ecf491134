"""What single objects tell about a node: its grant, its way back, its config, and what people have asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpupartition import names
from gpupartition.api.v1alpha1 import Grant
from gpupartition.controller.declared import Driver, Policy
from gpupartition.controller.intent import Intent, revert
from gpupartition.controller.records import Record
from gpupartition.domain.backend import Config, NodeFacts, Observation
from gpupartition.domain.entries import used, written
from gpupartition.domain.leading import led
from gpupartition.domain.problem import Refused
from gpupartition.domain.retiring import published
from gpupartition.domain.world import AT_REST, State
from gpupartition.kube import Object

Configs = Sequence[tuple[Object, Object | None]]
"""Config objects, each as it must be, and as it is; None: it is not there."""


def held_back(policy: Policy | None, now: datetime, *, frozen: bool) -> bool:
    """Whether no node may begin: a grant that was decided on before that may have come after it."""
    return frozen or (policy is not None and (bool(policy.paused(now)) or policy.observes))


def is_abandoned(policy: Policy | None, node: Object | None) -> bool:
    """Whether somebody asked, on the node or on its policy, to let go of what cannot be brought back."""
    on_node = node is not None and bool(node["metadata"].get("annotations", {}).get(names.ABANDON))
    return on_node or (policy is not None and policy.abandoned)


def grant_of(ledger: list[Grant], node: str) -> Grant | None:
    """The ledger's entry for a node: there is one for each name, whichever node of that name it was made for."""
    return next((g for g in ledger if g.node == node), None)


def stands(grant: Grant | None, record: Record) -> bool:
    """Whether the entry was made for the record's very node, by the record's policy."""
    return grant is not None and (grant.uid, grant.policy) == (record.spec.node_uid, record.spec.policy_ref.name)


def way_back_of(
    driver: Driver, facts: NodeFacts | None, observed: Observation, state: State
) -> tuple[Config | None, str]:
    """What brings a node back to what it is now, and why there is nothing that does."""
    if facts is None:
        return None, "the node is gone"
    current = state.current if facts.group is None or led(state) == facts.group.name else None
    if current is not None and observed.running != current.fingerprint:
        restored = driver.backend.repair(driver.spec, facts, published(state, current), None, state.generation)
        if restored is not None:  # slices of our own were wiped or edited: back is where they would be restored to
            return revert(current), ""
    try:
        return driver.backend.way_back(driver.spec, facts, driver.cluster), ""
    except Refused as refused:
        accepted = names.ACCEPT_NO_ROLLBACK in facts.node["metadata"].get("annotations", {})
        if current is not None and observed.assignment != current.assignment:
            return revert(current), ""  # somebody else wrote the assignment: back is what was verified
        if accepted:
            return Config(fingerprint="", assignment=observed.assignment, pool=observed.pool), ""
        return None, str(refused)


def is_back(original: Config, observed: Observation, record: Record) -> bool:
    """Whether a node at rest has what it had before anybody wanted anything of it."""
    return (
        record.state.phase in AT_REST
        and observed.assignment == original.assignment
        and observed.ready
        and observed.pool.equals(original.pool)
    )


def configs_known(intent: Intent, driver: Driver) -> Configs:
    """The config objects of what is wanted, and whether they are there, as far as the caches know: creating one twice is a conflict."""
    objects = intent.wanted.objects if intent.wanted else ()
    present = [driver.cluster.present(body) for body in objects]
    return [(dict(body), dict(has) if has is not None else None) for body, has in zip(objects, present, strict=True)]


def last_touched(configs: Configs, now: datetime) -> datetime | None:
    """When the config object that was left alone for longest was last touched; None when one is missing."""
    if not configs:
        return now
    times = [used(body, present) for body, present in configs]
    return None if None in times else min(t for t in times if t is not None)


def last_written(configs: Configs) -> datetime | None:
    """When the youngest entry of shared config was written."""
    return max((t for body, present in configs if (t := written(body, present)) is not None), default=None)
