"""What was read of one node becomes all that one turn of it may depend on, and what it may write."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpupartition.api.v1alpha1 import DrainMode, Grant, NodeStateStatus, Phase, Rollout
from gpupartition.controller.caches import Caches
from gpupartition.controller.durations import Durations
from gpupartition.controller.facts import (
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
from gpupartition.controller.intent import NOTHING, Driver, Intent, Intents, Policy, known, revert
from gpupartition.controller.occupants import EVICTING, Occupants, Seen
from gpupartition.controller.records import Record
from gpupartition.controller.trimmed import condition, since_ready, trim_node
from gpupartition.domain.ahead import ahead
from gpupartition.domain.backend import Config, Kept, NodeFacts, Observation
from gpupartition.domain.destination import in_vain
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
from gpupartition.kube import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEVICE_TAINT_RULES,
    PODS,
    Client,
    Object,
)

_BEFORE = frozenset({Phase.ADMITTED, Phase.QUIESCING, Phase.DRAINING})  # nothing of the node has been changed yet
NOBODY = Observation(assignment=None, step="", running="", ready=False, pool=Pool())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What there is of a node beside its record, and who has its pool."""

    node: Object | None
    group: Group | None
    slices: Kept
    pods: list[Object]
    rule: Object | None
    held: tuple[Holder, ...]
    elsewhere: str = ""
    former: NodeStateStatus | None = None


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
class Reading:
    """One node, read: the record as the server has it, everything decisions depend on, and what may be written.

    `versions` None: it was read from the copies, and nothing is decided by it.
    """

    body: Object
    record: Record
    world: World
    subject: Subject
    intent: Intent
    driver: Driver
    policy: Policy | None
    leaving: bool
    node: Object | None
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

    async def reading(
        self,
        *,
        body: Object,
        record: Record,
        ledger: list[Grant],
        driver: Driver,
        policy: Policy | None,
        found: Found,
        versions: Versions | None,
    ) -> Reading:
        """One node as it was found; with `versions` it was read after its record, so that things may be decided."""
        live = versions is not None
        name, state, now = record.name, record.state, datetime.now(UTC)
        node, group = found.node, found.group
        rule = found.rule if found.rule is not None and is_ours(found.rule) else None
        alive = node is not None and node["metadata"]["uid"] == record.spec.node_uid
        facts = (
            NodeFacts(node=node, slices=found.slices, pods=found.pods, known=known(state), group=group)
            if node is not None and alive
            else None
        )
        observed = driver.backend.observe(driver.spec, facts, driver.cluster) if facts else NOBODY
        if policy is not None and policy.uid != record.spec.policy_ref.uid:
            policy = None
        leaving = policy is None or policy.deleting or not policy.selects(node if alive else None)
        intent = self._intent(driver, policy, record, node if alive else None, group, observed, leaving=leaving)
        way_back, no_way_back = way_back_of(driver, facts, observed, state)
        held = await self._holders(driver, record, observed, intent, found.held, live=live)
        # Once it is on record, the way back is not made anew from what a node is on its way through.
        back = way_back if state.phase in _BEFORE else None
        configs = await self._configs(intent, back, live=live and state.phase not in AT_REST)
        touched, youngest = last_touched(configs, now), last_written(configs)
        if state.phase in AT_REST:
            configs = configs_known(intent, driver)
        rollout = policy.spec.rollout if policy is not None and policy.spec is not None else Rollout()
        seen = Seen(holders=held)
        if live and self._occupants is not None and rollout.drain.mode is DrainMode.EVICT and state.phase in EVICTING:
            seen = await self._occupants.read(held, observed, state, policy, now)
        since = since_ready(node, ready=False)
        closed_by = holds(state, node if alive else None, rule)
        watched = self._durations.closed(name, in_force(closed_by), live=live)
        world = World(
            now=now,
            fresh=secrets.token_hex(8),
            node_is_there=alive,
            node_ready=node is not None and condition(node, "Ready") == "True",
            boot_id=str(node["status"].get("nodeInfo", {}).get("bootID", "")) if node else "",
            wanted=intent.wanted,
            refused=intent.refused,
            left_out=intent.left_out,
            not_ours="" if state.phase is Phase.UP_TO_DATE else self._not_ours(driver, name, group, found.rule, intent),
            revision=policy.status.revision if policy else "",
            grant=grant_of(ledger, name),
            grant_stands=stands(grant_of(ledger, name), record),
            way_back=way_back,
            no_way_back=no_way_back,
            config_touched=touched,
            observed=observed,
            quiesce=quiesce(closed_by, watched),
            quiesce_by=driver.quiesce,
            holders=seen.holders,
            idle=self._durations.idle(record, seen.holders, live=live),
            matched=self._durations.matched(record, observed, live=live),
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
            occupants=seen.occupants,
            monitors=seen.monitors,
            no_eviction=seen.no_eviction,
            away=now - since if since is not None else timedelta(0),
            ready_since=since_ready(node),
            at_work=at_work(node) if node is not None else "",
            skip=node is not None and skips(node),
            abandoned=is_abandoned(policy, node),
            config_written=youngest,
            elsewhere=found.elsewhere,
            former=found.former if alive else None,
            last_to_know=group is not None and group.former == name and policy is not None and not policy.deleting,
            live=driver.backend.live(driver.spec, driver.cluster),
            in_use=self._in_use(record, observed, found.held),
        )
        subject = Subject(
            node_name=name,
            node_uid=record.spec.node_uid,
            driver=driver.spec,
            driver_name=driver.driver_name,
            backend=driver.backend,
            facts=facts,
            rule=rule,
            taint_rules=(driver.taint_rules or DEVICE_TAINT_RULES).api_version,
            configs=configs,
            group=group,
        )
        return Reading(
            body=body,
            record=record,
            world=world,
            subject=subject,
            intent=intent,
            driver=driver,
            policy=policy,
            leaving=leaving,
            node=node if alive else None,
            versions=versions,
        )

    def _intent(
        self,
        driver: Driver,
        policy: Policy | None,
        record: Record,
        node: Object | None,
        group: Group | None,
        observed: Observation,
        *,
        leaving: bool,
    ) -> Intent:
        if node is None:
            return NOTHING
        if not leaving and policy is not None:
            return self._intents.compile(driver, policy, trim_node(node), record.state, group)
        state = record.state
        may_be = state.phase is Phase.FAILED or in_vain(state)
        if state.reason == ABANDONED or (may_be and is_abandoned(policy, node)):
            return NOTHING
        wants_revert = policy is not None and policy.spec is not None and policy.spec.deletion_policy == "Revert"
        original = revert(record.state.original) if wants_revert else None
        if original is None or is_back(original, observed, record):
            return NOTHING
        return Intent(wanted=original)

    async def _holders(
        self,
        driver: Driver,
        record: Record,
        observed: Observation,
        intent: Intent,
        held: tuple[Holder, ...],
        *,
        live: bool,
    ) -> tuple[Holder, ...]:
        can = driver.backend.live(driver.spec, driver.cluster)
        change = ahead(record.state, observed, intent.wanted, driver.backend.disturbs, live=can)
        if change is None:
            return ()
        if live and change.change == "Restart":
            held = await self._mark_terminating(held)
        return change.blocked_by(held)

    def _not_ours(self, driver: Driver, name: str, group: Group | None, rule: Object | None, intent: Intent) -> str:
        """What of somebody else is where only this node's own may be, in words."""
        if rule is not None and not is_ours(rule) and driver.quiesce in TAINTS:
            return f"DeviceTaintRule {rule['metadata']['name']} has the name of the one that would close it"
        return self._intents.not_ours(driver, name, group, intent.wanted)

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

    async def _configs(
        self, intent: Intent, way_back: Config | None, *, live: bool
    ) -> list[tuple[Object, Object | None]]:
        if not live:
            return []
        wanted = [*(intent.wanted.objects if intent.wanted else ()), *(way_back.objects if way_back else ())]
        bodies = {identity(b): b for b in wanted}
        kinds = [CONFIG_MAPS if is_entry(b) else DAEMON_SETS for b in bodies.values()]
        found = await asyncio.gather(
            *(
                self._client.find(kind, name, namespace=space)
                for kind, (space, name, _) in zip(kinds, bodies, strict=True)
            )
        )
        return [(dict(body), present) for body, present in zip(bodies.values(), found, strict=True)]
