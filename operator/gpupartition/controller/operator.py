"""Puts the pieces together and runs them: caches, a loop for each queue, kopf for our own kinds, and the page for probes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from gpupartition.controller.driver import DriverLoop
from gpupartition.controller.events import Recorder
from gpupartition.controller.evictor import Evictor
from gpupartition.controller.handlers import watch
from gpupartition.controller.intent import Intents
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.metrics import FAILED_TURNS, LAG, LEADING, TURNS, Snapshot
from gpupartition.controller.node import NodeLoop
from gpupartition.controller.occupants import Occupants
from gpupartition.controller.planner import Observer, Planner
from gpupartition.controller.policy import PolicyLoop
from gpupartition.controller.probe import Probe
from gpupartition.controller.queues import Queues
from gpupartition.controller.records import DRIVERS, POLICIES
from gpupartition.controller.refusals import Refusals
from gpupartition.controller.scope import Absence, Standings
from gpupartition.controller.serving import Page
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.summary import Summary
from gpupartition.controller.world import Reader
from gpupartition.kube import ApiError, Client, Conflict, Object
from gpupartition.kube.lease import Elector
from gpupartition.kube.pauses import unhurried
from gpupartition.kube.reflector import Reflector
from gpupartition.kube.workqueue import WorkQueue
from gpupartition.settings import Settings

log = logging.getLogger(__name__)

BEAT = 0.05  # seconds between two feelings of the event loop's pulse
LEASE = "gpupartition"  # its name, in the operator's namespace
POLICY_WORKERS = 2  # a policy that waits for a slow answer must not hold up the others


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
        self._queues = queues = Queues(client, namespace=settings.namespace)
        caches, kinds = queues.caches, queues.kinds
        self._ready = asyncio.Event()
        self._leading = asyncio.Event()
        self._probe = probe = Probe(client, dry_runs=not settings.read_only)
        intents = Intents(caches, probe)
        recorder, watches, refusals = Recorder(client, posts=not settings.read_only), Stopwatch(), Refusals()
        absence = Absence(noticed=settings.limits.not_ready, ignored=settings.ignore_not_ready)
        standings = Standings(caches, absence)
        ledger = Ledger(client, caches, standings, watches, settings.limits.first_looks)
        occupants = Occupants(client, refusals, namespace=settings.namespace)
        reader = Reader(client, caches, intents, watches, settings.limits, occupants=occupants)
        planner = Planner(caches, reader, ledger, absence=absence)
        summary = Summary(client, caches, standings, recorder, settings, Observer(planner), kinds.policies)
        self._node_loop = NodeLoop(
            client,
            caches,
            reader,
            recorder,
            watches,
            ledger,
            Evictor(client, occupants, recorder, refusals),
            policies=kinds.policies,
            drivers=kinds.drivers,
            on_progress=queues.policy_progressed,
            on_refused=probe.refused,
        )
        snapshot = Snapshot(caches, kinds.policies, kinds.drivers, known=self._ready.is_set)
        self._page = Page(snapshot, leading=self._leading, ready=self._ready)
        self._driver_loop = DriverLoop(client, intents, holds=not settings.read_only)
        self._policy_loop = PolicyLoop(
            client,
            caches,
            intents,
            ledger,
            summary,
            probe,
            policies=kinds.policies,
            on_node=queues.nodes.add,
        )

    async def run(self) -> None:
        """Run until cancelled; a mistake of ours ends it, with everything it started. Raises Lost when another one may lead."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._page.serve(self._settings.host, self._settings.port), name="probes and metrics")
            tasks.create_task(_feel_lag(), name="lag")
            await (self._lead() if self._elector is None else self._elector.run(self._lead))

    async def _lead(self) -> None:
        queues, caches, kinds = self._queues, self._queues.caches, self._queues.kinds
        self._leading.set()
        LEADING.set(1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(caches.run(self._ready), name="caches")
            with unhurried():
                await self._ready.wait()
            for kind, bodies, changed in (
                (POLICIES, kinds.policies, queues.policy_changed),
                (DRIVERS, kinds.drivers, queues.driver_changed),
            ):
                there = Reflector(self._client, kind, _uid, partial(_forget_gone, bodies, changed))
                await there.read()
                bodies.update({b["metadata"]["name"]: b for b in (await self._client.list(kind)).items})
                tasks.create_task(there.run(), name=f"reflector of {kind}")
            # Some may be left over, whether or not there is a driver.
            await caches.read_rules(await self._probe.taint_rules())
            queues.everything()
            for _ in range(self._settings.workers):
                tasks.create_task(self._work("node", queues.nodes, self._node_loop.reconcile))
            for _ in range(POLICY_WORKERS):
                tasks.create_task(self._work("policy", queues.policies, self._look_at_policy))
            tasks.create_task(self._work("driver", queues.drivers, self._driver_loop.reconcile))
            tasks.create_task(self._resync(), name="resync")
            tasks.create_task(watch(self._client, kinds, on_start=self._on_start), name="kopf")
            log.info("watching %d policies and %d nodes", len(kinds.policies), len(caches.nodes.values()))

    async def _work(self, loop: str, queue: WorkQueue, reconcile: Callable[[str], Awaitable[timedelta | None]]) -> None:
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

    async def _look_at_policy(self, name: str) -> timedelta | None:
        begun = time.monotonic()
        again = await self._policy_loop.reconcile(name)
        self._queues.looked_at_policy(name, time.monotonic() - begun)
        return again

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync.total_seconds())
            self._queues.everything()


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])


def _forget_gone(
    bodies: dict[str, Object], changed: Callable[[str], None], name: str, was: str | None, _: str | None
) -> None:
    """Forget a copy whose object is gone: of what is deleted while kopf lists anew it never hears."""
    if was is not None and name in bodies and _uid(bodies[name]) == was:
        del bodies[name]
        changed(name)


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
