"""What was read of one node becomes all that one turn of it may depend on, and what it may write."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpupartition.api.v1alpha1 import DrainMode, Grant, NodeStateStatus, Phase, Rollout
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Driver, Policy
from gpupartition.controller.durations import Durations
from gpupartition.controller.facts import (
    Configs,
    configs_known,
    grant_of,
    held_back,
    is_abandoned,
    is_back,
    last_touched,
    last_written,
    stands,
    way_back_of,
)
from gpupartition.controller.intent import NOTHING, Intent, Intents, known, revert
from gpupartition.controller.occupants import EVICTING, Occupants, Seen
from gpupartition.controller.readiness import is_ready, since_ready
from gpupartition.controller.records import Record
from gpupartition.controller.trimmed import trim_node
from gpupartition.domain.backend import Config, Kept, NodeFacts, Observation
from gpupartition.domain.destination import in_vain
from gpupartition.domain.disturbance import disturbance
from gpupartition.domain.effects import DeleteSlice, SliceWrite
from gpupartition.domain.entries import identity, is_entry
from gpupartition.domain.groups import Group
from gpupartition.domain.holders import Holder
from gpupartition.domain.others import at_work, skips
from gpupartition.domain.phases import ABANDONED
from gpupartition.domain.pool import Pool
from gpupartition.domain.quiesce import TAINTS, holds, in_force, is_ours, quiesce
from gpupartition.domain.retiring import retired
from gpupartition.domain.world import AT_REST, Limits, World
from gpupartition.domain.writes import Subject
from gpupartition.kube import CONFIG_MAPS, DAEMON_SETS, DEVICE_TAINT_RULES, PODS, Client, Object

_BEFORE = frozenset({Phase.ADMITTED, Phase.QUIESCING, Phase.DRAINING})  # nothing of the node has been changed yet
NOBODY = Observation(assignment=None, step="", running="", ready=False, pool=Pool())


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What may be written. `slices`: those of the pool by name; None: they decide nothing now, and are not written."""

    node: str
    rule: str
    group: str
    slices: Mapping[str, str] | None

    def stand(self, later: Versions) -> bool:
        """Whether nothing has changed until then."""
        same = (self.node, self.rule, self.group) == (later.node, later.rule, later.group)
        return same and (later.slices is None or self.slices == later.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was read of one node until `now`: its record, as `body` too, who wants what of it, what there is of it, and who has its pool.

    `versions` None: it was read from the copies, and nothing is decided by it; else after its record.
    """

    now: datetime
    body: Object
    record: Record
    ledger: list[Grant]
    driver: Driver
    policy: Policy | None
    node: Object | None
    group: Group | None
    slices: Kept
    pods: list[Object]
    rule: Object | None
    held: tuple[Holder, ...]
    versions: Versions | None
    elsewhere: str = ""
    former: NodeStateStatus | None = None

    @property
    def live(self) -> bool:
        """Whether things may be decided by it."""
        return self.versions is not None

    @property
    def rollout(self) -> Rollout:
        """What the policy says of roll-outs; defaults where there is none, or it cannot be read."""
        return self.policy.spec.rollout if self.policy is not None and self.policy.spec is not None else Rollout()

    def facts(self) -> NodeFacts | None:
        """The node as backends look at it; None when the one that the record is about is gone."""
        node, record = self.node, self.record
        if node is None or node["metadata"]["uid"] != record.spec.node_uid:
            return None
        return NodeFacts(node=node, slices=self.slices, pods=self.pods, known=known(record.state), group=self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One node, read: the record as the server has it, everything decisions depend on, and what may be written.

    `versions` as in Found.
    """

    body: Object
    record: Record
    world: World
    subject: Subject
    intent: Intent
    driver: Driver
    policy: Policy | None
    leaving: bool
    versions: Versions | None


def written(reading: Reading, effect: SliceWrite, metadata: Object) -> Reading:
    """The same after one of the pool's slices was written, which the server has with this metadata; {} once it is deleted."""
    subject, driver, versions = reading.subject, reading.driver, reading.versions
    assert subject.facts is not None and versions is not None and versions.slices is not None, effect  # noqa: PT018
    name = effect.name if isinstance(effect, DeleteSlice) else metadata["name"]
    slices = [each for each in subject.facts.slices if each["metadata"]["name"] != name]
    of_pool = {other: version for other, version in versions.slices.items() if other != name}
    if not isinstance(effect, DeleteSlice):
        slices.append({**effect.body, "metadata": metadata})
        of_pool[name] = metadata["resourceVersion"]
    facts = replace(subject.facts, slices=slices)
    observed = driver.backend.observe(driver.spec, facts, driver.cluster)
    return replace(
        reading,
        subject=replace(subject, facts=facts),
        world=replace(reading.world, observed=observed),
        versions=replace(versions, slices=of_pool),
    )


class Assembly:
    """Puts Readings together. Without `occupants` nobody is ever evicted by what is read."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        intents: Intents,
        durations: Durations,
        limits: Limits,
        occupants: Occupants | None,
    ) -> None:
        self._client = client
        self._caches = caches
        self._intents = intents
        self._durations = durations
        self._limits = limits
        self._occupants = occupants

    async def reading(self, found: Found) -> Reading:
        """One node as it was found."""
        record = replace(found.record, state=self._durations.dated(found.record, found.now))
        found, driver = replace(found, record=record), found.driver
        if found.policy is not None and found.policy.uid != record.spec.policy_ref.uid:
            found = replace(found, policy=None)
        facts, policy = found.facts(), found.policy
        observed = driver.backend.observe(driver.spec, facts, driver.cluster) if facts else NOBODY
        node = found.node if facts else None
        leaving = policy is None or policy.gives_up(node)
        intent = self._intent(found, node, observed, leaving=leaving)
        back = way_back_of(driver, facts, observed, record.state)
        configs = await self._configs(found, intent, back[0])
        seen = await self._holders(found, observed, intent)
        subject = Subject(
            node_name=record.name,
            node_uid=record.spec.node_uid,
            driver=driver.spec,
            driver_name=driver.driver_name,
            backend=driver.backend,
            facts=facts,
            rule=found.rule if found.rule is not None and is_ours(found.rule) else None,
            taint_rules=(driver.taint_rules or DEVICE_TAINT_RULES).api_version,
            configs=configs_known(intent, driver) if record.state.phase in AT_REST else configs,
            group=found.group,
        )
        return Reading(
            body=found.body,
            record=record,
            world=self._world(found, subject, observed, intent, back, configs, seen),
            subject=subject,
            intent=intent,
            driver=driver,
            policy=policy,
            leaving=leaving,
            versions=found.versions,
        )

    def _world(
        self,
        found: Found,
        subject: Subject,
        observed: Observation,
        intent: Intent,
        back: tuple[Config | None, str],
        configs: Configs,
        seen: Seen,
    ) -> World:
        name, record, driver, policy, node = found.record.name, found.record, found.driver, found.policy, found.node
        now, state, group, rollout = found.now, record.state, found.group, found.rollout
        grant = grant_of(found.ledger, name)
        closed_by = holds(state, subject.node, subject.rule)
        not_ready_since = since_ready(node, ready=False)
        return World(
            now=now,
            fresh=secrets.token_hex(8),
            node_is_there=subject.node is not None,
            node_ready=is_ready(node),
            boot_id=str(node["status"].get("nodeInfo", {}).get("bootID", "")) if node else "",
            wanted=intent.wanted,
            refused=intent.refused,
            left_out=intent.left_out,
            not_ours=self._not_ours(found, intent),
            revision=policy.status.revision if policy else "",
            grant=grant,
            grant_stands=stands(grant, record),
            way_back=back[0],
            no_way_back=back[1],
            config_touched=last_touched(configs, now),
            config_written=self._durations.written(name, last_written(configs), now),
            observed=observed,
            quiesce=quiesce(closed_by, self._durations.closed(name, in_force(closed_by), live=found.live)),
            quiesce_by=driver.quiesce,
            holders=seen.holders,
            occupants=seen.occupants,
            monitors=seen.monitors,
            no_eviction=seen.no_eviction,
            in_use=self._in_use(record, observed, found.held),
            idle=self._durations.idle(record, seen.holders, live=found.live),
            matched=self._durations.matched(record, observed, live=found.live),
            differs=self._durations.differs(record, observed, node),
            told=self._durations.told(record),
            plugin_seen=self._durations.plugin(record, observed),
            retry=policy.retry_of(name) if policy else "",
            drain=rollout.drain,
            limits=self._limits.standing_still(rollout.min_ready_seconds).of_driver(
                driver.backend.applying(driver.spec), seen_late=bool(driver.backend.documents(driver.spec))
            ),
            on_failure=rollout.on_failure,
            held_back=held_back(policy, now, frozen=self._caches.freezing is not None),
            away=now - not_ready_since if not_ready_since is not None else timedelta(0),
            ready_since=since_ready(node),
            at_work=at_work(node) if node is not None else "",
            skip=node is not None and skips(node),
            abandoned=is_abandoned(policy, node),
            elsewhere=found.elsewhere,
            former=found.former if subject.node is not None else None,
            last_to_know=group is not None and group.former == name and policy is not None and not policy.deleting,
            live=driver.backend.live(driver.spec, driver.cluster),
        )

    def _intent(self, found: Found, node: Object | None, observed: Observation, *, leaving: bool) -> Intent:
        record, state, policy = found.record, found.record.state, found.policy
        if node is None:
            return NOTHING
        if not leaving and policy is not None:
            return self._intents.compile(found.driver, policy, trim_node(node), state, found.group)
        may_be = state.phase is Phase.FAILED or in_vain(state)
        if state.reason == ABANDONED or (may_be and is_abandoned(policy, node)):
            return NOTHING
        wants_revert = policy is not None and policy.spec is not None and policy.spec.deletion_policy == "Revert"
        original = revert(state.original) if wants_revert else None
        if original is None or is_back(original, observed, record):
            return NOTHING
        return Intent(wanted=original)

    async def _holders(self, found: Found, observed: Observation, intent: Intent) -> Seen:
        """The holders of what is about to change, and the pods of those that may be evicted now."""
        backend, cluster, state = found.driver.backend, found.driver.cluster, found.record.state
        live = backend.live(found.driver.spec, cluster)
        change = disturbance(state, observed, intent.wanted, backend.disturbs, live=live)
        if change is None:
            return Seen(holders=())
        held = found.held
        if found.live and change.change == "Restart":
            held = await self._mark_terminating(held)
        blocking = change.blocked_by(held)
        evicts = found.rollout.drain.mode is DrainMode.EVICT and state.phase in EVICTING
        if not found.live or self._occupants is None or not evicts:
            return Seen(holders=blocking)
        return await self._occupants.read(blocking, observed, state, found.policy, found.now)

    def _not_ours(self, found: Found, intent: Intent) -> str:
        """What of somebody else is where only this node's own may be, in words."""
        rule, driver = found.rule, found.driver
        if found.record.state.phase is Phase.UP_TO_DATE:  # it has all that is its own
            return self._intents.astray(driver, found.record.name, found.group)
        if rule is not None and not is_ours(rule) and driver.quiesce in TAINTS:
            return f"DeviceTaintRule {rule['metadata']['name']} has the name of the one that would close it"
        return self._intents.not_ours(driver, found.record.name, found.group, intent.wanted)

    def _in_use(self, record: Record, observed: Observation, held: tuple[Holder, ...]) -> frozenset[str] | None:
        """Those of the retired devices of a node at rest that somebody has; None until that can be told."""
        settled = self._durations.retired(record, observed) >= self._limits.settle
        if record.state.phase not in AT_REST or not record.state.retiring or not settled:
            return None
        return retired(record.state).names & {holder.device for holder in held}

    async def _mark_terminating(self, held: tuple[Holder, ...]) -> tuple[Holder, ...]:
        ending = set()
        for pod in sorted({p for h in held for p in h.pods}):
            namespace, _, name = pod.partition("/")
            body = await self._client.find(PODS, name, namespace=namespace)
            if body is not None and "deletionTimestamp" in body["metadata"]:
                ending.add(pod)
        return tuple(replace(h, terminating=h.terminating or bool(ending & set(h.pods))) for h in held)

    async def _configs(self, found: Found, intent: Intent, way_back: Config | None) -> Configs:
        state = found.record.state
        if not found.live or state.phase in AT_REST:
            return []
        # Once it is on record, the way back is not made anew from what a node is on its way through.
        ways = (intent.wanted, way_back if state.phase in _BEFORE else None)
        bodies = {identity(body): body for way in ways if way is not None for body in way.objects}
        kinds = [CONFIG_MAPS if is_entry(b) else DAEMON_SETS for b in bodies.values()]
        present = await asyncio.gather(
            *(
                self._client.find(kind, name, namespace=space)
                for kind, (space, name, _) in zip(kinds, bodies, strict=True)
            )
        )
        return [(dict(body), has) for body, has in zip(bodies.values(), present, strict=True)]
