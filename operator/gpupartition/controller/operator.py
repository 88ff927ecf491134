"""Puts the pieces together and runs them: caches, three loops with their queues, kopf for our own kinds, and a page for probes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import kopf

from gpupartition.controller.caches import Caches
from gpupartition.controller.driver import DriverLoop
from gpupartition.controller.events import Recorder
from gpupartition.controller.evictor import Evictor
from gpupartition.controller.forecast import Forecast, Observer
from gpupartition.controller.handlers import Kinds, registry
from gpupartition.controller.intent import Intents, Policy
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.metrics import FAILED_TURNS, LAG, LEADING, TURNS, Snapshot
from gpupartition.controller.node import NodeLoop
from gpupartition.controller.occupants import Occupants
from gpupartition.controller.policy import PolicyLoop
from gpupartition.controller.probe import Probe
from gpupartition.controller.records import DRIVERS, POLICIES
from gpupartition.controller.refusals import Refusals
from gpupartition.controller.scope import Absence, Standings
from gpupartition.controller.serving import Page
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.summary import Summary
from gpupartition.controller.world import Reader
from gpupartition.domain.world import AT_REST
from gpupartition.kube import ApiError, Client, Conflict, Object
from gpupartition.kube.lease import Elector
from gpupartition.kube.pauses import unhurried
from gpupartition.kube.reflector import Reflector
from gpupartition.kube.workqueue import WorkQueue
from gpupartition.settings import Settings

log = logging.getLogger(__name__)

BEAT = 0.05  # seconds between two feelings of the event loop's pulse
GATHER = 0.1  # seconds in which events about one policy are gathered into one look at it
GATHER_MORE = 3  # times the last look at it, where that is longer: looks at a large policy take a quarter of the time
GATHER_MOST = 2  # seconds
LEASE = "gpupartition"  # its name, in the operator's namespace
KOPF_ENDS = 5  # seconds that kopf's tasks are given to end
POLICY_WORKERS = 2  # a policy that waits for a slow answer must not hold up the others


class Deaf(Exception):  # noqa: N818  (reads as what happened)
    """kopf watches policies and drivers no longer: started anew, the operator goes on where it was."""


class Operator:
    """One running operator. Handlers and reflectors only put names on queues; the loops do the rest.

    `on_start` is called when kopf begins: it takes SIGTERM and SIGINT for itself, and would give our loops five seconds.
    """

    def __init__(self, client: Client, settings: Settings, *, on_start: Callable[[], None]) -> None:
        self._elector = elector = _elector(client, settings) if settings.leader_election else None
        if elector is not None:
            # Stopped for a while in the middle of something, we may wake up when another one leads.
            client = client.only_while(lambda: elector.leading)
        self._client = client
        self._settings = settings
        self._on_start = on_start
        self._kinds = Kinds(policies={}, drivers={}, on_policy=self._policy_changed, on_driver=self._driver_changed)
        self._nodes: WorkQueue[str] = WorkQueue(longest_retry=60)
        self._policies: WorkQueue[str] = WorkQueue(longest_retry=60)
        self._drivers: WorkQueue[str] = WorkQueue(longest_retry=60)
        self._ledgers: dict[str, tuple[object, dict[str, tuple[str, str]]]] = {}  # of drivers, as last heard of
        self._selecting: dict[str, tuple[Object, Policy]] = {}  # policies, read from these very copies
        self._took: dict[str, float] = {}  # seconds of the last look at each policy
        self._ready = asyncio.Event()
        self._leading = asyncio.Event()
        self._caches = Caches(
            client,
            namespace=settings.namespace,
            on_node=self._node_changed,
            on_all=self._everything_changed,
            on_relabelled=self._tell_policies_of,
        )
        self._probe = probe = Probe(client, dry_runs=not settings.read_only)
        intents = Intents(self._caches, probe)
        recorder, watches, refusals = Recorder(client, posts=not settings.read_only), Stopwatch(), Refusals()
        absence = Absence(noticed=settings.limits.not_ready, ignored=settings.ignore_not_ready)
        standings = Standings(self._caches, absence)
        ledger = Ledger(client, self._caches, standings, watches, settings.limits.first_looks)
        occupants = Occupants(client, refusals, namespace=settings.namespace)
        reader = Reader(client, self._caches, intents, watches, settings.limits, occupants=occupants)
        forecast = Forecast(self._caches, reader, ledger, absence=absence)
        summary = Summary(client, self._caches, standings, recorder, settings, Observer(forecast), self._kinds.policies)
        self._node_loop = NodeLoop(
            client,
            self._caches,
            reader,
            recorder,
            watches,
            ledger,
            Evictor(client, occupants, recorder, refusals),
            policies=self._kinds.policies,
            drivers=self._kinds.drivers,
            on_progress=self._policy_progressed,
            on_refused=probe.refused,
        )
        snapshot = Snapshot(self._caches, self._kinds.policies, self._kinds.drivers, known=self._ready.is_set)
        self._page = Page(snapshot, leading=self._leading, ready=self._ready)
        self._driver_loop = DriverLoop(client, intents, holds=not settings.read_only)
        self._policy_loop = PolicyLoop(
            client,
            self._caches,
            intents,
            ledger,
            summary,
            probe,
            policies=self._kinds.policies,
            on_node=self._nodes.add,
        )

    # ------------------------------------------------------------------------------------------------ who is to be looked at

    def _node_changed(self, name: str) -> None:
        self._nodes.add(name)
        record, node = self._caches.records.get(name), self._caches.nodes.get(name)
        if record is not None:
            self._policy_progressed(record.spec.policy_ref.name)
        else:
            self._tell_policies_of(node)

    def _tell_policies_of(self, node: Object | None) -> None:
        """Have those look again that select a node, as it is or as it was."""
        before = self._selecting
        self._selecting = {
            name: known if (known := before.get(name)) and known[0] is body else (body, Policy.read(body))
            for name, body in self._kinds.policies.items()
        }
        for name, (_, policy) in self._selecting.items():
            if policy.selects(node):
                self._policy_progressed(name)

    def _policy_progressed(self, name: str) -> None:
        self._policies.add_after(name, max(GATHER, min(GATHER_MORE * self._took.get(name, 0), GATHER_MOST)))

    async def _look_at_policy(self, name: str) -> timedelta | None:
        begun = time.monotonic()
        again = await self._policy_loop.reconcile(name)
        self._took[name] = time.monotonic() - begun
        if name not in self._kinds.policies:
            del self._took[name]
        return again

    def _policy_changed(self, name: str) -> None:
        self._policies.add(name)
        for driver in self._kinds.drivers:
            self._drivers.add(driver)
        for record in self._caches.records.by("policy", name):
            self._nodes.add(record.name)
        for other in self._kinds.policies:  # a selector that moved may contest a node, or no longer
            self._policy_progressed(other)

    def _driver_changed(self, name: str) -> None:
        for policy in self._kinds.policies:
            self._policy_progressed(policy)
        body = self._kinds.drivers.get(name, {})
        meta = body.get("metadata", {})
        asked = meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp")
        grants = {g["node"]: (g["token"], g["policy"]) for g in body.get("status", {}).get("inFlight", ())}
        asked_before, before = self._ledgers.get(name, (None, {}))
        self._ledgers[name] = asked, grants
        if asked != asked_before or grants == before or not grants:
            self._drivers.add_after(name, GATHER)  # that a ledger was written says nothing of the driver itself
        for node in grants.keys() | before.keys():
            if grants.get(node) != before.get(node):  # nobody else has to hear of it: a ledger is written for each node
                self._nodes.add(node)
        for policy in {policy for _, policy in grants.values()} - self._kinds.policies.keys():
            self._policies.add(policy)
        if asked != asked_before:
            for record in self._caches.records.values():
                if record.spec.driver == name and (record.state.token or record.state.phase not in AT_REST):
                    self._nodes.add(record.name)

    def _everything_changed(self) -> None:
        for driver in self._kinds.drivers:
            self._drivers.add_after(driver, GATHER)
        for policy in self._kinds.policies:
            self._policy_progressed(policy)
        for record in self._caches.records.values():
            if record.state.phase not in AT_REST:
                self._nodes.add(record.name)

    # ------------------------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Run until cancelled; a mistake of ours ends it, with everything it started. Raises Lost when another one may lead."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._page.serve(self._settings.host, self._settings.port), name="probes and metrics")
            tasks.create_task(_feel_lag(), name="lag")
            await (self._lead() if self._elector is None else self._elector.run(self._lead))

    async def _lead(self) -> None:
        self._leading.set()
        LEADING.set(1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._caches.run(self._ready), name="caches")
            with unhurried():
                await self._ready.wait()
            for kind, bodies, changed in (
                (POLICIES, self._kinds.policies, self._policy_changed),
                (DRIVERS, self._kinds.drivers, self._driver_changed),
            ):
                there = Reflector(self._client, kind, _uid, partial(_forget_gone, bodies, changed))
                await there.read()
                bodies.update({b["metadata"]["name"]: b for b in (await self._client.list(kind)).items})
                tasks.create_task(there.run(), name=f"reflector of {kind}")
            # Some may be left over, whether or not there is a driver.
            await self._caches.read_rules(await self._probe.taint_rules())
            self._everything_at_once()
            for _ in range(self._settings.workers):
                tasks.create_task(self._work("node", self._nodes, self._node_loop.reconcile))
            for _ in range(POLICY_WORKERS):
                tasks.create_task(self._work("policy", self._policies, self._look_at_policy))
            tasks.create_task(self._work("driver", self._drivers, self._driver_loop.reconcile))
            tasks.create_task(self._resync(), name="resync")
            tasks.create_task(self._watch_our_kinds(), name="kopf")
            log.info("watching %d policies and %d nodes", len(self._kinds.policies), len(self._caches.nodes.values()))

    async def _work(
        self, loop: str, queue: WorkQueue[str], reconcile: Callable[[str], Awaitable[timedelta | None]]
    ) -> None:
        while True:
            name = await queue.get()
            try:
                with TURNS.labels(loop=loop).time():
                    again = await reconcile(name)
            except Conflict as error:
                queue.failed(name)  # somebody wrote first: the ordinary way in which two writers find out, and no news
                log.debug("%s; looking again", error, extra={loop: name})
                continue
            except ApiError as error:
                FAILED_TURNS.labels(loop=loop).inc()
                pause = queue.failed(name)
                log.warning("%s; looking again in %.1f s", error, pause, extra={loop: name})
                continue
            except Exception:
                FAILED_TURNS.labels(loop=loop).inc()
                # One object that nobody foresaw must not stop all the others; it is tried again, ever less often.
                pause = queue.failed(name)
                log.exception("a mistake of the operator; looking again in %.1f s", pause, extra={loop: name})
                continue
            queue.done(name)
            if again is not None:
                queue.add_after(name, again.total_seconds()) if again else queue.add(name)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync.total_seconds())
            self._everything_at_once()

    def _everything_at_once(self) -> None:
        for driver in self._kinds.drivers:
            self._drivers.add(driver)
        for policy in self._kinds.policies:
            self._policies.add(policy)
        for record in self._caches.records.values():
            self._nodes.add(record.name)

    async def _watch_our_kinds(self) -> None:
        """Let kopf watch until one of its tasks ends, as all do together. Raises Deaf: nobody can ask kopf to end.

        kopf gives a watch up for good when a list is refused (a token expired between two pages, a right taken away for a moment), and to end
        by itself it would cancel every task of this process, and wait for them.
        """
        handlers = registry(self._client, self._kinds)
        tasks = await kopf.spawn_tasks(registry=handlers, clusterwide=True, standalone=True, memo=kopf.Memo())
        self._on_start()  # at once: no signal has reached kopf yet
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end_kopf()
        errors = [task.exception() for task in done if not task.cancelled()]
        error = next(filter(None, errors), None)
        why = error or f"{', '.join(sorted(task.get_name() for task in done))} ended without a word"
        raise Deaf(f"kopf watches policies and drivers no longer: {why}") from error


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])


def _forget_gone(
    bodies: dict[str, Object], changed: Callable[[str], None], name: str, was: str | None, _: str | None
) -> None:
    """Forget a copy whose object is gone: of what is deleted while kopf lists anew it never hears."""
    if was is not None and name in bodies and _uid(bodies[name]) == was:
        del bodies[name]
        changed(name)


async def _end_kopf() -> None:
    """Cancel all that kopf runs until it is gone: a watch of its swallows being cancelled once, and the process would wait for it for ever."""
    home = Path(kopf.__file__).parent
    until = time.monotonic() + KOPF_ENDS
    while left := [t for t in asyncio.all_tasks() if home in Path(_code(t)).parents]:
        if time.monotonic() > until:
            log.error("%d tasks of kopf do not end", len(left))
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.2)


def _code(task: asyncio.Task[Any]) -> str:
    """The file in which a task's coroutine is written."""
    return str(getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", ""))


def _elector(client: Client, settings: Settings) -> Elector:
    """Each run is another candidate, the name of its pod in front, where people look for it."""
    identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"
    return Elector(client, namespace=settings.namespace, name=LEASE, identity=identity)


async def _feel_lag() -> None:
    """Note how late the loop comes to a task, as long as it runs: whatever holds it up holds up probes, leases and all nodes."""
    while True:
        due = time.monotonic() + BEAT
        await asyncio.sleep(BEAT)
        LAG.observe(time.monotonic() - due)
