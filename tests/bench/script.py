"""What the operator is compared with: a script that makes the same writes in the same order with the same waits, and decides nothing.

It knows beforehand which node gets what, reads nothing but three watches, asks nobody for holders, and would survive no crash. Whatever the
operator takes longer is what deciding costs, and reading everything before each decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from testbed.nodes import is_ready
from tests.bench.sight import Sight

from gpupartition import names
from gpupartition.api.v1alpha1 import (
    Assigned,
    Condition,
    DriverStatus,
    Grant,
    NodeCounts,
    NodeStateStatus,
    Phase,
    PolicyStatus,
)
from gpupartition.controller.events import Recorder
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, dump, new_record, with_state
from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import Pool
from gpupartition.kube import DAEMON_SETS, DEVICE_TAINT_RULES, NODES, PODS, RESOURCE_SLICES, Conflict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from gpupartition.domain.backend import Config
    from gpupartition.kube import Client, Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds for which the operator, and so the script, waits on purpose; names are those of its settings."""

    settle: float
    idle_gap: float
    min_ready: float
    summary: float


class Together:
    """A write that several ask for at the same time: whoever asks while one is under way shares the next one."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        self._write = write
        self._lock = asyncio.Lock()
        self._asked = self._written = 0

    async def __call__(self) -> None:
        """Return when what is so now has been written."""
        self._asked += 1
        mine = self._asked
        async with self._lock:
            if self._written < mine:
                writing = self._asked
                await self._write()
                self._written = writing


class Script:
    """One roll-out: `config` for these nodes, which publish `before`, so many `at_once`, in the name of this driver."""

    def __init__(
        self,
        client: Client,
        *,
        driver: Object,
        nodes: Sequence[Object],
        config: Config,
        before: Pool,
        namespace: str,
        driver_name: str,
        at_once: int,
        waits: Waits,
    ) -> None:
        self._client = client
        self._policy: Object = {}
        self._driver = driver
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        self._config = config
        self._before = before
        self._driver_name = driver_name
        self._waits = waits
        self._events = Recorder(client)
        self._slots = asyncio.Semaphore(at_once)
        self._in_flight: dict[str, Grant] = {}
        self._done = 0
        self._grant = Together(self._put_ledger)
        self._touch = Together(self._put_config)
        self._config_is_there = False
        self._rules = Sight(client, DEVICE_TAINT_RULES, _node_of_rule)
        self._pods = Sight(client, PODS, lambda pod: str(pod["spec"].get("nodeName", "")), namespace=namespace)
        self._slices = Sight(client, RESOURCE_SLICES, lambda body: str(body["spec"].get("nodeName", "")))

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """See what there is, as an operator that has been started."""
        async with self._rules.open(), self._pods.open(), self._slices.open():
            yield

    async def run(self, policy: Object) -> None:
        """Roll out in the name of a policy, from the first record to its last status."""
        self._policy = policy
        records = [await self._create_record(node) for node in self._nodes.values()]
        await self._put_status()
        await self._hold_policy(names.FINALIZER)
        telling = asyncio.create_task(self._tell())
        async with asyncio.TaskGroup() as tasks:
            for record in records:
                tasks.create_task(self._take(record))
        telling.cancel()
        await self._put_status()
        await self._hold_policy()

    async def _take(self, record: Object) -> None:
        """One node, from the first record to the last."""
        node = record["metadata"]["name"]
        # The state is what the record says; everything else is a write between two of them.
        target = self._config.assigned("revision").model_copy(update={"since": datetime.now(UTC)})
        state = NodeStateStatus(since=datetime.now(UTC), target=target, message="waits to be admitted")
        record = await self._put(record, state)
        async with self._slots:
            grant = self._in_flight[node] = self._new_grant(node)
            await self._grant()
            before = Assigned(fingerprint="base", pool=self._before.to_json(), since=datetime.now(UTC))
            state = state.model_copy(update={"token": grant.token, "previous": before, "original": before})
            record, state = await self._enter(record, state, Phase.ADMITTED)
            await self._touch()
            record, state = await self._enter(record, state, Phase.QUIESCING)
            rule = await self._close(node)
            record, state = await self._enter(record, state, Phase.DRAINING)
            await asyncio.sleep(self._waits.idle_gap)
            state = state.model_copy(update={"step": secrets.token_hex(8)})
            record, state = await self._enter(record, state, Phase.APPLYING)
            await self._assign(node, state.step)
            record, state = await self._enter(record, state, Phase.VERIFYING)
            await self._slices.until(node, self._is_published)
            await asyncio.sleep(self._waits.min_ready)
            record, state = await self._enter(record, state, Phase.RELEASING)
            await self._client.delete(DEVICE_TAINT_RULES, rule)
            state = state.model_copy(update={"current": target})
            record, state = await self._enter(record, state, Phase.UP_TO_DATE)
            del self._in_flight[node]
            await self._grant()
        self._done += 1
        await self._put(record, state.model_copy(update={"token": ""}))

    async def _create_record(self, node: Object) -> Object:
        meta, owner = node["metadata"], self._policy["metadata"]
        body = new_record(
            node=meta["name"],
            node_uid=meta["uid"],
            policy=owner["name"],
            policy_uid=owner["uid"],
            driver=self._driver["metadata"]["name"],
        )
        return await self._client.create(NODE_STATES, body)

    async def _put(self, record: Object, state: NodeStateStatus) -> Object:
        return await self._client.replace(NODE_STATES, with_state(record, state))

    async def _enter(self, record: Object, state: NodeStateStatus, phase: Phase) -> tuple[Object, NodeStateStatus]:
        """The next phase, and the event that tells of it."""
        note = f"enters {phase}"
        state = state.model_copy(update={"phase": phase, "since": datetime.now(UTC), "message": note})
        record = await self._put(record, state)
        await self._events.phase(self._policy, record["metadata"]["name"], phase, note, warning=False)
        return record, state

    def _new_grant(self, node: str) -> Grant:
        return Grant(
            node=node,
            uid=self._nodes[node]["metadata"]["uid"],
            policy=self._policy["metadata"]["name"],
            token=secrets.token_hex(8),
            since=datetime.now(UTC),
        )

    async def _put_ledger(self) -> None:
        status = dump(DriverStatus(in_flight=list(self._in_flight.values())))
        status = {**self._driver.get("status", {}), "inFlight": status["inFlight"]}
        self._driver = await self._client.replace(DRIVERS, {**self._driver, "status": status}, subresource="status")

    async def _put_config(self) -> None:
        """Create the layout's DaemonSet, and say at each later use that it is in use."""
        (body,) = self._config.objects
        meta = body["metadata"]
        used = {names.LAST_USED: datetime.now(UTC).isoformat()}
        if self._config_is_there:
            patch = {"metadata": {"annotations": used}}
            await self._client.patch(DAEMON_SETS, meta["name"], patch, namespace=meta["namespace"])
            return
        annotations = {**meta["annotations"], **used}
        await self._client.create(DAEMON_SETS, {**body, "metadata": {**meta, "annotations": annotations}})
        self._config_is_there = True

    async def _close(self, node: str) -> str:
        """Keep new claims from the node; returns the rule's name when it has settled."""
        name = names.taint_rule(node, self._nodes[node]["metadata"]["uid"])
        taint = {"key": names.TAINT_KEY, "value": "", "effect": "None"}
        rule = await self._client.create(
            DEVICE_TAINT_RULES,
            {
                "apiVersion": DEVICE_TAINT_RULES.api_version,
                "kind": "DeviceTaintRule",
                "metadata": {"name": name, "annotations": {names.FULL_NODE_NAME: node}},
                "spec": {"deviceSelector": {"driver": self._driver_name, "pool": node}, "taint": taint},
            },
        )
        while True:  # a controller has its say about the rule as soon as it is there
            rule["spec"]["taint"] = {**taint, "effect": "NoSchedule"}
            with contextlib.suppress(Conflict):
                await self._client.replace(DEVICE_TAINT_RULES, rule)
                break
            rule = await self._client.get(DEVICE_TAINT_RULES, name)
        await asyncio.sleep(self._waits.settle)
        await self._rules.until(node, _is_answered)
        return name

    async def _assign(self, node: str, step: str) -> None:
        """Move the node to the layout's DaemonSet; returns when its pod is up and alone."""
        labels, annotations = {names.LAYOUT: self._config.assignment}, {names.STEP: step}
        await self._client.patch(NODES, node, {"metadata": {"labels": labels, "annotations": annotations}})
        await self._pods.until(node, self._is_running)

    def _is_running(self, pods: Sequence[Object]) -> bool:
        owners = [owner["name"] for pod in pods for owner in pod["metadata"].get("ownerReferences", ())]
        return owners == [self._config.objects[0]["metadata"]["name"]] and all(map(is_ready, pods))

    def _is_published(self, slices: Sequence[Object]) -> bool:
        return offered_by(s for s in slices if s["spec"]["driver"] == self._driver_name).equals(self._config.pool)

    async def _tell(self) -> None:
        """Count in the policy's status, as often as the operator does."""
        while True:
            await asyncio.sleep(self._waits.summary)
            await self._put_status()

    async def _put_status(self) -> None:
        matched = len(self._nodes)
        ready = self._done == matched
        reason = "RolloutComplete" if ready else "RollingOut"
        said = [("Accepted", True), ("Ready", ready), *([] if ready else [("Reconciling", True)])]
        status = PolicyStatus(
            observed_generation=self._policy["metadata"]["generation"],
            progress=f"{self._done}/{matched}",
            nodes=NodeCounts(matched=matched, up_to_date=self._done, in_progress=len(self._in_flight)),
            conditions=[
                Condition(
                    type=kind,
                    status="True" if holds else "False",
                    reason=reason,
                    message=f"{self._done} of {matched} nodes are verified",
                    observed_generation=self._policy["metadata"]["generation"],
                    last_transition_time=datetime.now(UTC),
                )
                for kind, holds in said
            ],
        )
        body = {**self._policy, "status": dump(status)}
        self._policy = await self._client.replace(POLICIES, body, subresource="status")

    async def _hold_policy(self, *finalizers: str) -> None:
        meta = self._policy["metadata"]
        self._policy = await self._client.patch(POLICIES, meta["name"], {"metadata": {"finalizers": list(finalizers)}})


def _node_of_rule(rule: Object) -> str:
    return str(rule["metadata"].get("annotations", {}).get(names.FULL_NODE_NAME, ""))


def _is_answered(rules: Sequence[Object]) -> bool:
    """A controller manager has said of the rule as it is now that it has seen it."""
    return any(
        condition["type"] == "EvictionInProgress"
        and condition.get("observedGeneration", 0) >= rule["metadata"]["generation"]
        for rule in rules
        for condition in rule.get("status", {}).get("conditions", ())
        if rule["spec"]["taint"]["effect"] == "NoSchedule"
    )
