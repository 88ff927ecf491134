"""A policy with everything that is about it, read once at the start of a turn, and where each of its nodes stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpupartition.api.v1alpha1 import DrainMode, DriverStatus, Grant, NodeStateStatus, Phase
from gpupartition.controller import clock
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Driver, Policy, labels
from gpupartition.controller.intent import Intent, Intents
from gpupartition.controller.readiness import is_ready, since_ready
from gpupartition.controller.records import Record
from gpupartition.controller.remembered import Remembered
from gpupartition.domain.admission import Standing
from gpupartition.domain.destination import STRANDED
from gpupartition.domain.groups import Group
from gpupartition.domain.others import at_work, skips
from gpupartition.domain.problem import Problem, Turn
from gpupartition.domain.products import hint
from gpupartition.domain.recovery import restarted_since
from gpupartition.domain.rest import released_at, same_layout
from gpupartition.domain.world import AT_REST
from gpupartition.kube import Object
from gpupartition.kube.pauses import Pauses

FAILURES = frozenset({Phase.ROLLED_BACK, Phase.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """How long a node may not be Ready: `noticed` after so long, no longer counted on after so long."""

    noticed: timedelta
    ignored: timedelta

    def of(self, policy: Policy) -> Absence:
        """With what the policy says of it."""
        seconds = policy.spec.rollout.ignore_not_ready_after_seconds if policy.spec else None
        return self if seconds is None else replace(self, ignored=timedelta(seconds=seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """`nodes` are selected and nobody else's; `contested` are those that another policy has, or wants as much.

    `changes`: how often the copies had changed before it was read from them.
    """

    body: Object
    policy: Policy
    driver: Driver
    driver_body: Object
    nodes: dict[str, Object]
    contested: tuple[str, ...]
    rivals: tuple[str, ...]
    intents: dict[str, Intent]
    problems: tuple[Problem, ...]
    records: dict[str, Record]
    groups: dict[str, Group | None]
    changes: int

    @property
    def stopped(self) -> str:
        """What broke in the installation after the policy had been accepted; before that, it is simply not accepted."""
        cluster = [p for p in self.problems if p.turn is Turn.CLUSTER]
        if not cluster or self.policy.status.accepted_at is None or len(cluster) < len(self.problems):
            return ""
        return f"{cluster[0].reason}: {cluster[0]}"

    @property
    def hint(self) -> str:
        """What the policy says that no node of it is about; "" when all of it is."""
        return hint(intent.wanted for intent in self.intents.values() if intent.wanted is not None)

    def gives_up(self, node: str) -> bool:
        """Whether the policy no longer wants a node that it has a record of."""
        return self.policy.deleting or node not in self.nodes

    def reverts(self, record: Record) -> bool:
        """Whether a node that the policy gives up waits to be brought back to what it had before."""
        spec, state = self.policy.spec, record.state
        if not self.gives_up(record.name) or spec is None or spec.deletion_policy != "Revert":
            return False
        return state.original is not None and state.phase is Phase.PENDING and same_layout(state.target, state.original)


async def read_scope(
    body: Object,
    policy: Policy,
    driver: Driver,
    driver_body: Object,
    *,
    caches: Caches,
    intents: Intents,
    policies: dict[str, Object],
) -> Scope:
    """Read what the caches say about a policy."""
    changes, everybody, pauses = caches.changes, dict(caches.records.items()), Pauses()
    mine = (r for r in caches.records.by("policy", policy.name) if r.spec.policy_ref.uid == policy.uid)
    records = {r.name: r for r in mine}
    rivals = [Policy.read(b) for name, b in sorted(policies.items()) if name != policy.name]
    nodes: dict[str, Object] = {}
    contested: list[str] = []
    rivalry: set[str] = set()
    compiled: dict[str, Intent] = {}
    groups: dict[str, Group | None] = {}
    problems = list(policy.problems)
    for name, node in sorted(caches.nodes.items()):
        if pauses.due:
            await pauses.take()
        if policy.deleting or not policy.selects(node):
            continue
        holder = everybody.get(name)
        claimants = {r.name for r in rivals if r.selects(node) and not r.deleting} if rivals else set()
        if name not in records and (holder is not None or claimants):
            contested.append(name)
            rivalry |= _has(holder, policy) if holder is not None else claimants
            continue
        nodes[name] = node
        state = records[name].state if name in records else None
        groups[name] = intents.groups.of(driver, policy, node, state)
        intent = compiled[name] = intents.compile(driver, policy, node, state, groups[name])
        problems += [p for p in intent.problems if p not in problems]
    problems += [p for p in driver.problems if p not in problems]
    return Scope(
        body=body,
        policy=policy,
        driver=driver,
        driver_body=driver_body,
        nodes=nodes,
        contested=tuple(contested),
        rivals=tuple(sorted(rivalry)),
        intents=compiled,
        problems=tuple(problems),
        records=records,
        groups=groups,
        changes=changes,
    )


def _has(record: Record, policy: Policy) -> set[str]:
    """Who has a node that this policy has not, in words; nobody knows of a record that cannot be read."""
    name = record.spec.policy_ref.name
    return {f"{name} (the one that was deleted)" if name == policy.name else name} - {""}


class Standings:
    """Where the nodes of policies stand; remembered for each until something about it changes."""

    def __init__(self, caches: Caches, absence: Absence) -> None:
        self.absence = absence
        self._caches = caches
        self._known: Remembered[Standing] = Remembered()

    async def of(self, scope: Scope, nodes: Iterable[tuple[str, Record | None, Object | None]]) -> list[Standing]:
        """Where each of these nodes stands, by its name, its record and the Node."""
        policy = scope.policy
        facts = (policy.spec, policy.retry, policy.retry_nodes, policy.deleting, policy.status.first_accepted_at)
        common = self._known.common(policy.name, facts, nodes=len(self._caches.nodes.values()))
        found, pauses = [], Pauses()
        for name, record, node in nodes:
            found.append(self._of(scope, name, record, node, common))
            if pauses.due:
                await pauses.take()
        return found

    def _of(self, scope: Scope, name: str, record: Record | None, node: Object | None, common: object) -> Standing:
        def make() -> Standing:
            return standing(scope, name, record, node, absence=self.absence)

        intent = scope.intents.get(name)
        wanted = intent.wanted if intent is not None else None
        objects = (common, record, node, wanted, intent is None, name in scope.nodes)
        return self._known.of(name, objects, make, lasts=_is_ready)


def _is_ready(node: Standing) -> bool:
    """What a node that is not Ready counts as changes with the time alone."""
    return node.ready


def standing(scope: Scope, name: str, record: Record | None, node: Object | None, *, absence: Absence) -> Standing:
    """Where a node stands. A node in flight under a refused policy still goes to what was accepted before."""
    state = record.state if record else NodeStateStatus()
    intent = scope.intents.get(name)
    wanted = intent.wanted.fingerprint if intent and intent.wanted else ""
    target = state.target.fingerprint if state.target else ""
    aimed = wanted or (target if state.phase not in AT_REST else "")
    on_target = bool(aimed) and target == aimed
    former = state.previous.fingerprint if state.previous else ""
    stranded = bool(wanted) and former == wanted and (state.phase, state.reason) == (Phase.FAILED, STRANDED)
    uid = record.spec.node_uid if record else ""
    alive = node is not None and node["metadata"]["uid"] == uid
    retry = scope.policy.retry_of(name)
    asked_again = bool(retry) and retry != state.retry
    spec = scope.policy.spec
    when_idle = spec is None or spec.rollout.drain.mode is DrainMode.WHEN_IDLE
    reverts = record is not None and scope.reverts(record)
    skip = node is not None and skips(node)
    told = record is None or not record.unreadable
    group = scope.groups.get(name)
    shares = group is not None  # no kubelet wipes such a pool, and the other nodes go on
    follows = group is not None and group.leader != name  # it has what is wanted as soon as its group has
    apart = group is not None and group.leader == name and name not in group.names  # it leads, and has nothing itself
    return Standing(
        node=name,
        uid=uid,
        zone=labels(node).get("topology.kubernetes.io/zone", "") if node else "",
        phase=state.phase,
        at_target=not reverts
        if intent is None
        else state.phase is Phase.UP_TO_DATE and on_target and alive and not apart,
        unseen=alive and bool(wanted) and not on_target and state.phase in AT_REST and told,
        startable=alive
        and not skip
        and (reverts or (bool(wanted) and on_target and state.phase is not Phase.SKIPPED))
        and not (apart and state.phase is Phase.UP_TO_DATE)
        and not follows,
        halted=state.phase in FAILURES and (on_target or stranded) and not asked_again,
        blocked=bool(state.blockers) and state.phase is Phase.PENDING and when_idle,
        leaving=scope.gives_up(name),
        holders=len(state.blockers),
        ready=is_ready(node),
        ignored=is_ignored(node, absence.of(scope.policy)),
        initial=alive and not scope.gives_up(name) and not state.blockers and _is_new(scope, state, node),
        lost=_lost(state, node, absence) if alive and not skip and not scope.gives_up(name) and not shares else None,
        recovering=state.recovering,
        at_work=at_work(node) if node is not None else "",
        attempts=state.attempts,
        released=released_at(state),
    )


def is_ignored(node: Object | None, absence: Absence) -> bool:
    """Whether a node has not been Ready for so long that nobody counts on it."""
    since = since_ready(node, ready=False)
    return since is not None and clock.now() - since > absence.ignored


def _is_new(scope: Scope, state: NodeStateStatus, node: Object | None) -> bool:
    """Whether a node came after its policy had been accepted, and has never been verified."""
    accepted, created = scope.policy.status.first_accepted_at, node and node["metadata"].get("creationTimestamp")
    if state.current is not None or accepted is None or not created:
        return False
    return datetime.fromisoformat(str(created)) > accepted


def _lost(state: NodeStateStatus, node: Object | None, absence: Absence) -> datetime | None:
    """When a verified node counts as lost, at the latest now for one that was restarted; None while there is nothing wrong."""
    if state.phase is not Phase.UP_TO_DATE or state.token or node is None:
        return None
    boot = str(node.get("status", {}).get("nodeInfo", {}).get("bootID", ""))
    since = since_ready(node, ready=False)
    if restarted_since(state.boot_id, boot):
        return datetime.min.replace(tzinfo=UTC)
    return None if since is None else since + absence.noticed


def ledger_of(driver: Object) -> list[Grant]:
    """The grants of a driver."""
    return DriverStatus.model_validate(driver.get("status", {})).in_flight
