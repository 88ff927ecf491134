"""One round of chaos: users, nodes, drivers, control plane, the way to it, clocks and operators misbehave at once, then all calm down.

Users, and who watches what comes of it, have an API server of their own, which nobody touches: all the others have the one that crashes.

What each of them does, and when, is drawn from the round's seed. How it interleaves is up to the machine, so that a seed that has failed
fails again often, not always.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from testbed import nodes as simulated
from testbed.build import RELEASES, release
from testbed.faultproxy import FaultProxy, Injury, Rule, To
from tests.e2e import off_clock
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, POLL_SECONDS, eventually
from tests.e2e.history import Watcher
from tests.e2e.invariants import Scene, Violation, judge, line
from tests.e2e.outages import NEAR, OFF, Outages
from tests.e2e.rollout import (
    annotate,
    apply,
    asks,
    at_rest,
    condition,
    devices,
    equal,
    fast,
    fault,
    granting,
    policy,
    says,
    whole,
)

from gpupartition.kube import NAMESPACES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, ApiError, NotFound
from gpupartition.names import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from testbed.programs import Program
    from tests.e2e.harness import Cluster
    from tests.e2e.history import Change
    from tests.e2e.rollout import Site

    from gpupartition.kube import Object

LEAST_SECONDS: Final = 6.0
MOST_SECONDS: Final = 40.0
"""Twice as many where there are outages, in which all stand still."""
ENOUGH: Final = 10
"""Chaos goes on until so many steps were taken: a round in which nothing is under way proves nothing."""
CALM_SECONDS: Final = 90.0
"""In which all must come to rest. An idle machine needs a sixth of it."""
RETRIES: Final = 12
A_LOOK: Final = 2.0  # seconds; nobody answers sooner what two operators with different clocks may say in turn
USERS: Final = 3
PARTS: Final = (0, 2, 4)
NAME: Final = "chaos"

# Long enough for what goes well, short enough that what hangs is given up within a round. `settle` is longer than any scheduler's delay.
PACE: Final = {
    "settle": 1.0,
    "admitted": 5.0,
    "quiescing": 8.0,
    "draining_wait": 10.0,
    "draining_when_idle": 6.0,
    "draining_evict": 10.0,
    "applying": 6.0,
    "verifying": 6.0,
    "drift": 1.0,
    "resync": 3.0,
}

OPERATOR: Final = f"system:serviceaccount:{OPERATOR_NAMESPACE}:"

BAD_LINE: Final = (
    Rule(injury=Injury.LATE, to=To.WRITES, share=0.06, seconds=(0.5, 4)),
    Rule(injury=Injury.LOST, to=To.WRITES, share=0.05),
    Rule(injury=Injury.CONFLICT, to=To.WRITES, share=0.05),
    Rule(injury=Injury.BUSY, to=To.WRITES, share=0.03),
    Rule(injury=Injury.BROKEN, to=To.WRITES, share=0.03),
    Rule(injury=Injury.HANG, to=To.WRITES, share=0.02, seconds=(0.2, 2)),
    Rule(injury=Injury.SLOW, to=To.READS, share=0.08, seconds=(0.1, 1)),
    Rule(injury=Injury.HANG, to=To.READS, share=0.02, seconds=(0.2, 2)),
    Rule(injury=Injury.BROKEN, to=To.READS, share=0.02),
    Rule(injury=Injury.EXPIRED, to=To.READS, share=0.01),
    Rule(injury=Injury.CUT, to=To.WATCHES, share=0.3, seconds=(0.2, 5)),
    Rule(injury=Injury.EXPIRED, to=To.WATCHES, share=0.2, seconds=(0.2, 5)),
)

FAULTS: Final = (
    "slow-start=2",
    "never-ready@partitions={}",
    "crash-loop@partitions={}",
    "publishes-nothing@partitions={}",
    "wrong-layout@partitions={}",
    "wrong-layout=parts@partitions={}",
    "loses-slices-after=1@partitions={}",
)


@dataclass(kw_only=True)
class Round:
    """One round on a site. `chance` decides everything."""

    cluster: Cluster
    site: Site
    seed: int
    folder: Path
    diary: list[str] = field(default_factory=list)
    """What was done, in order, for whoever reads a failure."""
    told: str = ""
    """After a violation: everything that led to it."""
    summary: str = ""
    """What the round came to, in one line: a round in which little happened proves little."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - keeps no secret, and can be replayed
        self.operators = 1 + (self.seed % 3 == 0)
        self.bad_line = self.seed % 4 != 1
        self.has_outages = self.seed % 7 > 2
        taints = release() == next(iter(RELEASES))  # an earlier one serves no rules: what needs them is refused there
        self.quiesce = {2: "Cordon", 3: "Both" if taints else "Auto"}.get(self.seed % 5, "Auto")
        self.allowed = self.chance.choice((1, 2))
        self._numbers = itertools.count(1)
        self._most = MOST_SECONDS * (1 + self.has_outages)
        self._began = 0.0
        self._wanted = 0
        self._evicts = False

    async def play(self) -> list[Violation]:
        """Play it; returns what was violated. Raises AssertionError when it does not come to rest."""
        account = self.cluster.controlplane.files.kubeconfig("operator")
        # The admission policy keeps claims from tolerating a quiesced node's taint; a namespace can be let out.
        label = {"metadata": {"labels": {"gpupartition.dev/may-tolerate": "true"}}}
        await self.cluster.client.patch(NAMESPACES, self.site.user, label)
        async with (
            granting(self.cluster, "evict"),
            Watcher(self.cluster) as self._history,
            FaultProxy(account, self.folder, seed=self.seed) as self.proxy,
        ):
            self._outages = Outages(
                controlplane=self.cluster.controlplane,
                proxy=self.proxy,
                folder=self.folder,
                chance=self.chance,
                off=OFF if self.operators == 1 else NEAR,
                note=self.note,
            )
            history = self._history
            await self.cluster.client.patch(DRIVERS, self.site.driver, {"spec": {"quiesce": self.quiesce}})
            await self._edit()
            for _ in range(self.operators):
                await self._start()
            self.proxy.rules = BAD_LINE if self.bad_line else ()
            try:
                await self._misbehave()
            finally:
                await self._calm()
            try:
                await self._rests()
                await history.caught_up()
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.report(history)}") from error
            finally:
                for each in self._living():
                    await each.stop()
        self.summary = self._sum_up(history)
        scene = Scene(policy=NAME, driver=self.site.driver, driver_name=self.site.base.driver)
        found = judge(history.instants(), scene) + self._evictions()
        self.told = self.report(history, found[0]) if found else ""
        return found

    def _evictions(self) -> list[Violation]:
        """Of all pods, operators delete only the driver's, and evict only users', and only where a policy has ever said so."""
        base = self.site.base
        deleted: set[tuple[str, str]] = set()
        evicted: set[tuple[str, str]] = set()
        for each in self.cluster.audit(user=OPERATOR):
            about = each.get("objectRef", {})
            if about.get("resource") == "pods" and each["verb"] in {"delete", "create"}:
                (deleted if each["verb"] == "delete" else evicted).add((about["namespace"], about["name"]))
        foreign = [pod for pod in sorted(deleted) if pod[0] != base.namespace or not pod[1].startswith(base.daemon_set)]
        unasked = [pod for pod in sorted(evicted) if pod[0] != self.site.user or not self._evicts]
        return [
            *(Violation("only driver pods are deleted", f"an operator deleted {pod}", None) for pod in foreign),
            *(
                Violation("only holders are evicted, and if asked", f"an operator evicted {pod}", None)
                for pod in unasked
            ),
        ]

    def note(self, what: str) -> None:
        """Write into the diary."""
        self.diary.append(f"{_clock():.2f} {what}")

    def report(self, history: Watcher, about: Violation | None = None) -> str:
        """What a person needs: what was done, what was injected, and the last changes before it went wrong."""
        until = about.by.version if about and about.by else 2**63
        changes = [line(each) for now in history.instants() if (each := now.change) and each.version <= until]
        injected = [str(each) for each in self.proxy.log]
        return "\n".join(
            [
                f"seed {self.seed}: {self.operators} operators, bad line: {self.bad_line}, outages: {self.has_outages}",
                *(f"  {each}" for each in self.diary[-40:]),
                "injected:",
                *(f"  {each}" for each in injected[-20:]),
                "changes:",
                *(f"  {each}" for each in changes[-60:]),
                f"replay: make chaos ROUNDS=1 SEED={self.seed}",
            ]
        )

    def _sum_up(self, history: Watcher) -> str:
        phases = Counter(phase for node in self.site.nodes for phase in history.phases(node))
        reached = ", ".join(f"{phases[phase]} {phase}" for phase in ("Applying", "UpToDate", "RolledBack", "Failed"))
        served = {
            each.name
            for each in history.changes(RESOURCE_CLAIMS)
            if each.body.get("status", {}).get("allocation") and each.body["metadata"]["namespace"] == self.site.user
        }
        injured = Counter(str(each.injury) for each in self.proxy.log)
        told = {"outages": self._outages.had, "injected": injured}
        had = "; ".join(
            f"{what} {', '.join(f'{n} {kind}' for kind, n in sorted(of.items())) or '-'}" for what, of in told.items()
        )
        return f"seed {self.seed}: {self.operators} operators; {reached}; {len(served)} claims; {had}"

    # ------------------------------------------------------------------------------------------------------- the actors

    async def _misbehave(self) -> None:
        actors: list[tuple[Callable[[], Awaitable[None]], int, int, float]] = [
            # who acts when so many records were written (a node takes ten writes from Pending to UpToDate), or so many seconds later?
            (self._edit, 25, 90, 14),
            *[(self._use, 1, 10, 4)] * USERS,
            (self._break_driver, 3, 15, 4),
            (self._replace_node, 20, 80, 12),
            (self._kill, 10, 50, MOST_SECONDS),  # it is given the time to do something
            (self._pause, 1, 20, MOST_SECONDS),
            (self._start_missing, 1, 5, 2),  # as the kubelet does
        ]
        if self.has_outages:
            actors.append((self._outages.one, 5, 25, 6))
        self._began = _clock()
        async with asyncio.TaskGroup() as tasks:
            for act, least, most, patience in actors:
                tasks.create_task(self._again(act, least, most, patience))

    async def _again(self, act: Callable[[], Awaitable[None]], least: int, most: int, patience: float) -> None:
        """Act, again and again, whenever something has gone on: so it hits every step of the way, on any machine.

        What was begun is finished: an operator that was stopped must not stay so.
        """
        while self._goes_on():
            until, began = len(self._turns()) + self.chance.randint(least, most), _clock()
            while self._goes_on() and len(self._turns()) < until and _clock() - began < patience:  # noqa: ASYNC110 - as below
                await asyncio.sleep(POLL_SECONDS)
            if self._goes_on():
                try:
                    await act()
                except ApiError as error:  # somebody whose request fails comes back later with another one
                    self.note(f"{act.__name__} fails: {error}")

    def _turns(self) -> list[Change]:
        return self._history.changes(NODE_STATES)

    def _goes_on(self) -> bool:
        steps = {each.body.get("status", {}).get("step") for each in self._turns()}
        seconds = _clock() - self._began
        return seconds < LEAST_SECONDS or (seconds < self._most and len(steps) < ENOUGH)

    async def _edit(self) -> None:
        parts = self.chance.choice(PARTS)
        mode = self.chance.choice(("WhenIdle", "Wait", "Wait", "Evict"))
        wanted = self._spec(parts, paused=self.chance.random() < 0.1, mode=mode)
        self._wanted, self._evicts = parts, self._evicts or mode == "Evict"
        self.note(f"wants {parts} parts, {mode}")
        await apply(self.cluster, wanted)
        if self.chance.random() < 0.4:
            await self._retry()

    def _spec(self, parts: int, *, paused: bool = False, mode: str = "Wait") -> Object:
        layout = equal(parts) if parts else whole()
        rollout = {"maxUnavailable": self.allowed, "paused": paused, "drain": {"mode": mode, "force": mode == "Evict"}}
        return policy(NAME, self.site.driver, layout, rollout=rollout)

    async def _retry(self) -> None:
        await annotate(self.cluster, POLICIES, NAME, retry=f"{self.seed}-{next(self._numbers)}")

    async def _use(self) -> None:
        """Have somebody use a device for a while."""
        name = f"user-{next(self._numbers)}"
        driver = self.site.base.driver
        cel = self.chance.choice(("", f"!('partition' in device.attributes['{driver}'])"))
        tolerating = self.chance.random() < 0.1
        await self.cluster.holder(name, namespace=self.site.user, device_class=driver, cel=cel, tolerating=tolerating)
        began, seconds = _clock(), self.chance.uniform(0.2, 6)
        while self._goes_on() and _clock() - began < seconds:  # noqa: ASYNC110 - whatever comes first
            await asyncio.sleep(POLL_SECONDS)
        for kind in (PODS, RESOURCE_CLAIM_TEMPLATES):
            with contextlib.suppress(NotFound):
                await self.cluster.client.delete(kind, name, namespace=self.site.user)

    async def _break_driver(self) -> None:
        node = self.chance.choice(self.site.nodes)
        switch = self.chance.choice((None, *FAULTS))
        # Mostly the layout that is on its way: one that nobody wants does not fail.
        switches = switch.format(self.chance.choice((self._wanted, self._wanted, *PARTS))) if switch else None
        with contextlib.suppress(NotFound):
            await fault(self.cluster, node, switches)
            self.note(f"driver of {node}: {switches}")

    async def _replace_node(self) -> None:
        """Take a node away, with all its pods, and bring another one under its name."""
        node = self.chance.choice(self.site.nodes)
        self.note(f"{node} goes")
        await self.cluster.client.delete(NODES, node)
        for pod in (await self.cluster.client.list(PODS, field_selector=f"spec.nodeName={node}")).items:
            meta = pod["metadata"]
            with contextlib.suppress(NotFound):
                await self.cluster.client.kill(PODS, meta["name"], namespace=meta["namespace"])
        await asyncio.sleep(self.chance.uniform(0, 2))
        await self._bring(node)

    async def _bring(self, node: str) -> None:
        labels = {**self.cluster.labels, "pool": self.site.base.pool}
        with contextlib.suppress(ApiError):  # there already
            await self.cluster.client.create(NODES, simulated.node(node, zone=simulated.ZONES[0], labels=labels))
            self.note(f"{node} comes")

    async def _kill(self) -> None:
        """Crash an operator."""
        if not (living := self._living()):
            return
        program = self.chance.choice(living)
        self.note(f"{program.name} is killed")
        await program.kill()

    async def _pause(self) -> None:
        """Stop an operator in the middle of whatever it does, and let it go on later."""
        if not (living := self._living()):
            return
        program = self.chance.choice(living)
        self.note(f"{program.name} is stopped")
        send(program, signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(0.2, 4))
        send(program, signal.SIGCONT)
        self.note(f"{program.name} goes on")

    def _living(self) -> list[Program]:
        return [each for each in self.cluster.operators if each.alive]

    async def _start(self, *, wait: bool = True) -> None:
        env = fast(**PACE) | self._outages.clock(len(self.cluster.operators) + 1)
        way = ("--kubeconfig", str(self.proxy.kubeconfig))
        program = await self.cluster.start_operator(*way, env=env, module=off_clock.__spec__.name)
        if wait:
            await eventually(lambda: asks(program, "/readyz"))

    # ------------------------------------------------------------------------------------------------------- calming down

    async def _calm(self) -> None:
        """Mend everything: the line, the drivers, the nodes, the users."""
        self.proxy.rules = ()
        await self.proxy.delivered()
        await self._outages.over()
        for node in self.site.nodes:
            await self._bring(node)
            await fault(self.cluster, node, None)
        for kind in (PODS, RESOURCE_CLAIM_TEMPLATES):
            await self.cluster.client.delete_all(kind, namespace=self.site.user)
        for program in self._living():
            send(program, signal.SIGCONT)
        await self._start_missing()

    async def _start_missing(self) -> None:
        while len(self._living()) < self.operators:
            await self._start(wait=False)

    async def _rests(self) -> None:
        """Want one last thing, and wait until it is there and nothing is left over. A person retries what has failed."""
        parts = self.chance.choice(PARTS)
        self.note(f"calm; wants {parts} parts at last")
        await apply(self.cluster, self._spec(parts))
        await self._retry()
        answered: set[str] = set()
        last = _clock()

        async def done() -> bool:
            await self._start_missing()  # as the kubelet does
            nonlocal last
            body = await self.cluster.client.get(POLICIES, NAME)
            stalled = condition(body, "Stalled")
            since = stalled.get("lastTransitionTime", "")
            if since and since not in answered and len(answered) < RETRIES and _clock() - last > A_LOOK:
                self.note(f"stalled: {stalled['message']}")
                answered.add(since)
                last = _clock()
                await self._retry()
            assert says(body, "Ready") == ("True", "RolloutComplete"), body.get("status")
            return True

        await eventually(done, within=CALM_SECONDS)
        await at_rest(self.cluster)
        for node in self.site.nodes:
            await self.cluster.published(devices(parts), node=node, driver=self.site.base.driver)


def _clock() -> float:
    return asyncio.get_running_loop().time()


def send(program: Program, number: signal.Signals) -> None:
    """Send it a signal, if it is still there."""
    if program.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program.pid, number)
