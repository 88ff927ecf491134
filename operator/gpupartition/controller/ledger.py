"""The ledger of grants: `status.inFlight` of the driver, changed only by compare-and-swap, always read before what decides about it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from gpupartition.api.v1alpha1 import DriftBrake, DriverStatus, Grant, OnFailure, Phase, Purpose
from gpupartition.controller import clock
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Policy, unreadable_ledger
from gpupartition.controller.readiness import is_ready
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, Record, dump, new_record
from gpupartition.controller.scope import Scope, Standings, is_ignored, ledger_of
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.together import Together
from gpupartition.domain.admission import Admission, Rules, admit, resolve
from gpupartition.domain.drift import brake, brake_message
from gpupartition.domain.others import at_work
from gpupartition.domain.windows import announce, next_change
from gpupartition.domain.world import AT_REST
from gpupartition.kube import Client, Conflict, NotFound, Object

log = logging.getLogger(__name__)

_NOBODY = "gone"  # the UID of a policy that nobody can read any more: it is no policy's

PinFirst = Callable[[Scope], Awaitable[None]]
Prepare = Callable[[Scope, Sequence[str], bool], Awaitable[str]]
"""What has to be written before these nodes are taken, and whether nothing of the driver moves; returns why it cannot be yet, or ""."""


class Ledger:
    """Gives grants out and takes them back."""

    def __init__(
        self, client: Client, caches: Caches, standings: Standings, watches: Stopwatch, first_looks: timedelta
    ) -> None:
        self._client = client
        self._caches = caches
        self._standings = standings
        self._absence = standings.absence
        self._watches = watches
        self._first_looks = first_looks
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by driver
        self._returned: defaultdict[str, set[str]] = defaultdict(set)  # nodes, by driver
        self._together: Together[None] = Together()

    async def decide(
        self, scope: Scope, records: dict[str, Record], ledger: list[Grant], everybody: Iterable[Record]
    ) -> Admission:
        """Who may be touched now, by these records and this ledger."""
        policy = scope.policy
        if policy.spec is None or policy.observes:
            return Admission()
        if scope.problems and not scope.stopped and not policy.deleting:
            return Admission()
        bodies = self._caches.nodes
        nodes = await self._standings.of(
            scope, ((name, record, bodies.get(name)) for name, record in sorted(records.items()))
        )
        of_driver = [r for r in everybody if r.spec.driver == scope.driver.name]
        unseen = any(n.unseen for n in nodes)
        looked = self._watches.read((f"policy {policy.name}", "unseen"), policy.generation if unseen else None)
        rules = self.rules(scope, records, of_driver)
        rules = replace(rules, looks=max(self._first_looks - looked, timedelta(0)))
        others = self.others(scope, of_driver, ledger)
        mine = {g.node for g in ledger if g.policy == policy.name and g.purpose is Purpose.ROLL_OUT}
        return admit(nodes=nodes, others=others, ledger=ledger, rules=rules, vanished=mine - records.keys())

    def rules(self, scope: Scope, records: Mapping[str, Record], of_driver: Iterable[Record]) -> Rules:
        """What the policy and its driver allow; `records` are the policy's nodes, `of_driver` the records of all its driver's policies."""
        policy = scope.policy
        assert policy.spec is not None, policy
        absence = self._absence.of(policy)
        matched = len(scope.nodes) or len(records)
        everybody = {r.name for r in of_driver} | set(records)
        ignored = {n["metadata"]["name"] for n in self._caches.not_ready if is_ignored(n, absence)}
        counted = len((scope.nodes or records).keys() - ignored)
        rollout, now, freezing = policy.spec.rollout, clock.now(), self._caches.freezing
        spans = () if policy.problems else rollout.windows
        return Rules(
            max_unavailable=resolve(rollout.max_unavailable, counted),
            driver_max_unavailable=resolve(scope.driver.spec.max_unavailable, len(everybody - ignored)),
            max_initializing=resolve(rollout.max_initializing, counted),
            drift="" if policy.deleting else brake_message(self._brake(scope, records, matched, now)),
            limit=resolve(rollout.limit, matched),
            max_failed=resolve(rollout.max_failed, matched) if rollout.max_failed else 0,
            go_on=rollout.on_failure is OnFailure.CONTINUE,
            paused=policy.paused(now),
            frozen=str(freezing or ""),
            resumes=min((s.ends for s in (freezing, policy.suspension) if s and s.ends and s.holds(now)), default=None),
            stopped=scope.stopped,
            outside=announce(spans, now),
            turn=next_change(spans, now),
            pause=timedelta(seconds=rollout.pause_between_seconds),
            now=now,
        )

    @staticmethod
    def _brake(scope: Scope, records: Mapping[str, Record], matched: int, now: datetime) -> DriftBrake | None:
        states = {n: r.state for n, r in records.items()}
        policy = scope.policy
        return brake(states, before=policy.status.drift, asked=policy.accept_drift, matched=matched, now=now)

    def others(self, scope: Scope, of_driver: Iterable[Record], ledger: Iterable[Grant]) -> set[str]:
        """The nodes of the driver's other policies that are unavailable, but for new ones."""
        new = {grant.node for grant in ledger if grant.purpose is Purpose.INITIAL}
        return {
            r.name
            for r in of_driver
            if r.spec.policy_ref.uid != scope.policy.uid and r.name not in new and self._is_down(r)
        }

    async def admit(self, scope: Scope, before_grant: PinFirst, prepare: Prepare) -> Admission:
        """Decide from the caches; where that would grant something, decide again on live reads and write.

        The ledger is read first: whatever another operator grants after that makes the write fail.
        """
        ledger = ledger_of(scope.driver_body)
        admission = await self.decide(scope, scope.records, ledger, self._caches.records.values())
        vanished = any(g.policy == scope.policy.name and g.node not in scope.records for g in ledger)
        if not admission.grants and not vanished and not _lost(scope, ledger, scope.records):
            return admission
        async with self._writing[scope.driver.name]:
            return await self._grant(scope, before_grant, prepare)

    async def _grant(self, scope: Scope, before_grant: PinFirst, prepare: Prepare) -> Admission:
        body = await self._client.get(DRIVERS, scope.driver.name)
        ledger = ledger_of(body)
        live = {r.name: r for r in await self._caches.records_now()}
        mine = {n: r for n, r in live.items() if r.spec.policy_ref.uid == scope.policy.uid}
        admission = await self.decide(scope, mine, ledger, live.values())
        if admission.nodes:
            waits = await prepare(scope, admission.nodes, not moving(scope.driver.name, ledger, live.values()))
            admission = admission.until_written(waits) if waits else admission
        mine_in_ledger = [g for g in ledger if g.policy == scope.policy.name]
        await self._take_orphans(mine_in_ledger, live, driver=scope.driver.name, policy_uid=scope.policy.uid)
        now = clock.now()
        entries = _lost(scope, ledger, mine) + [
            Grant(
                node=n,
                uid=mine[n].spec.node_uid,
                policy=scope.policy.name,
                token=secrets.token_hex(8),
                since=now,
                purpose=purpose,
            )
            for n, purpose in admission.grants.items()
        ]
        if not entries:
            return admission
        if not await self._still_asks(scope):
            return Admission(reason="RollingOut", left=len(admission.nodes))
        await before_grant(scope)
        if not await self._write(body, [*ledger, *entries]):
            # What was written first may be a finalizer of our own, which tells nobody to look again.
            return Admission(reason="RollingOut", left=len(admission.nodes), until=now)
        for name, purpose in admission.grants.items():
            said = "to be verified again" if purpose is Purpose.RECOVERY else "admitted"
            log.info(said, extra={"node": name, "policy": scope.policy.name})
        return admission

    async def _still_asks(self, scope: Scope) -> bool:
        """Whether the policy, read after the ledger, is still the one that was decided about, and nothing is frozen by now.

        If not, an event is on its way.
        """
        if await self._caches.frozen_now():
            return False
        try:
            body = await self._client.get(POLICIES, scope.policy.name)
        except NotFound:
            return False
        asked, now = Policy.read(body), scope.policy
        same = (asked.uid, asked.generation, asked.deleting) == (now.uid, now.generation, now.deleting)
        return same and asked.suspension == now.suspension

    async def give_back(self, record: Record) -> None:
        """Remove a node's entry, while its record is at rest and still holds the token; in one write with those of others who ask meanwhile."""
        driver = record.spec.driver
        self._returned[driver].add(record.name)
        await self._together.read(driver, partial(self._take_back, driver))

    async def _take_back(self, driver: str) -> None:
        async with self._writing[driver]:
            nodes = self._returned.pop(driver, set())
            body = await self._client.get(DRIVERS, driver)
            found = await asyncio.gather(*(self._client.find(NODE_STATES, name) for name in nodes))
            states = {record.name: record.state for record in map(Record.read, filter(None, found))}
            at_rest = {name: state.token for name, state in states.items() if state.phase in AT_REST}
            ledger = ledger_of(body)
            kept = [g for g in ledger if at_rest.get(g.node) != g.token]
            if kept != ledger:
                await self._write(body, kept)

    async def _write(self, driver: Object, entries: list[Grant]) -> bool:
        status = DriverStatus.model_validate(driver.get("status", {})).model_copy(update={"in_flight": entries})
        try:
            await self._client.replace(DRIVERS, {**driver, "status": dump(status)}, subresource="status")
        except Conflict:
            return False
        return True

    async def sweep(self, policy: str) -> list[str]:
        """Have the entries of a policy that is gone given back; returns their nodes.

        A worker that was stopped between reading the policy and writing the grant may wake up after both the policy and its records
        are gone.
        """
        nodes: list[str] = []
        for driver in (await self._client.list(DRIVERS)).items:
            if unreadable_ledger(driver):
                continue  # it says so itself
            late = [g for g in ledger_of(driver) if g.policy == policy]
            if late:
                live = {b["metadata"]["name"] for b in (await self._client.list(NODE_STATES)).items}
                await self._take_orphans(late, live, driver=driver["metadata"]["name"], policy_uid=_NOBODY)
                nodes += [g.node for g in late]
        return nodes

    async def _take_orphans(
        self, ledger: Iterable[Grant], live: Collection[str], *, driver: str, policy_uid: str
    ) -> None:
        """An entry without a record leaves the ledger only through a record that takes its token first."""
        for grant in ledger:
            if grant.node in live:
                continue
            body = new_record(
                node=grant.node,
                node_uid=grant.uid,
                policy=grant.policy,
                policy_uid=policy_uid,
                driver=driver,
                token=grant.token,
            )
            try:
                await self._client.create(NODE_STATES, body)
            except Conflict:
                continue

    def _is_down(self, record: Record) -> bool:
        node = self._caches.nodes.get(record.name)
        moving = record.state.phase not in AT_REST
        if node is None or is_ignored(node, self._absence):
            return moving and not record.state.recovering
        return moving or not is_ready(node) or bool(at_work(node))


def moving(driver: str, ledger: Iterable[Grant], records: Iterable[Record]) -> set[str]:
    """Nodes that are being changed, or are about to be. With one that failed nothing is done until somebody asks."""
    mine = {r.name: r for r in records if r.spec.driver == driver}
    failed = {name for name, r in mine.items() if r.state.phase is Phase.FAILED and not r.unreadable}
    return ({g.node for g in ledger} | {name for name, r in mine.items() if r.state.phase not in AT_REST}) - failed


def _lost(scope: Scope, ledger: list[Grant], records: dict[str, Record]) -> list[Grant]:
    """Entries that the ledger should have: it is rebuilt from the records that are not at rest."""
    held = {(g.node, g.token) for g in ledger}
    return [
        Grant(
            node=r.name,
            uid=r.spec.node_uid,
            policy=scope.policy.name,
            token=r.state.token,
            since=r.state.since or clock.now(),
            purpose=Purpose.RECOVERY if r.state.recovering else Purpose.ROLL_OUT,
        )
        for r in sorted(records.values(), key=lambda r: r.name)
        if r.state.phase not in AT_REST and r.state.token and (r.name, r.state.token) not in held
    ]
