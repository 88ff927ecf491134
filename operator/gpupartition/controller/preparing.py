"""Config whose every edit makes a driver start over on all nodes: written before the first node is taken, never while one is changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.controller import clock
from gpupartition.controller.intent import Intents
from gpupartition.controller.records import NODE_STATES, Record
from gpupartition.controller.scope import Scope
from gpupartition.domain.entries import Document, identity, waits_for_rest
from gpupartition.domain.objects import Object
from gpupartition.domain.problem import Refused
from gpupartition.domain.world import AT_REST
from gpupartition.kube import CONFIG_MAPS, Client, Conflict, Forbidden, Invalid

log = logging.getLogger(__name__)

_UNTOLD: Final = frozenset({Phase.ADMITTED, Phase.QUIESCING, Phase.DRAINING})
_TOLD: Final = frozenset({Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK})

_COMPONENT: Final = "manifests/components/amd-dcm"  # the one driver type whose config is written so


class Preparing:
    """Writes the entries that a policy's nodes will want, and those that lead back."""

    def __init__(self, client: Client, intents: Intents) -> None:
        self._client = client
        self._intents = intents

    async def prepare(self, scope: Scope, nodes: Sequence[str], at_rest: bool) -> str:
        """Have all that these nodes need be there; `at_rest`: no node of the driver is being changed. Returns why it has to wait, or ""."""
        driver = scope.driver
        documents = [d for d in driver.backend.documents(driver.spec) if d.reruns]
        if not documents or not self._missing(scope, nodes, ()):
            return ""
        if not at_rest:
            return (
                f"a layout is not in ConfigMap {documents[0].namespace}/{documents[0].name} yet: each edit makes the driver start over on "
                f"all nodes, so it waits until no node of driver {driver.name} is being changed"
            )
        missing = self._missing(scope, nodes, [name for name in scope.nodes if _waits(scope, name)])
        return await self._write(documents[0], missing)

    async def catch_up(self, scope: Scope) -> None:
        """Write what nodes need that got another target after they were taken, once no node is between its assignment and its verification."""
        driver = scope.driver
        if not any(d.reruns for d in driver.backend.documents(driver.spec)):
            return
        missing = self._missing(scope, [n for n, r in scope.records.items() if r.state.phase in _UNTOLD], ())
        if not missing:
            return
        live = [Record.read(b) for b in (await self._client.list(NODE_STATES)).items]
        if any(r.spec.driver == driver.name and (r.unreadable or r.state.phase in _TOLD) for r in live):
            return
        if why := await self._write(missing[0]["document"], missing):
            log.warning("%s", why, extra={"policy": scope.policy.name})

    def _missing(self, scope: Scope, nodes: Sequence[str], others: Sequence[str]) -> Sequence[Object]:
        """Each entry once that is not there and that one of these nodes goes to, or may have to go back to."""
        found: dict[tuple[str, str, str], Object] = {}
        for name in (*nodes, *others):
            for body in self._needed(scope, name):
                if waits_for_rest(body, scope.driver.cluster.present(body)):
                    found[identity(body)] = body
        return list(found.values())

    def _needed(self, scope: Scope, name: str) -> Iterator[Object]:
        node, intent = scope.nodes.get(name), scope.intents.get(name)
        if node is None or intent is None or intent.wanted is None:
            return
        yield from intent.wanted.objects
        try:
            facts = self._intents.facts(scope.driver, node, _state(scope, name), scope.groups.get(name))
            yield from scope.driver.backend.way_back(scope.driver.spec, facts, scope.driver.cluster).objects
        except Refused:
            return  # such a node is not taken, or somebody has accepted it

    async def _write(self, document: Document, bodies: Sequence[Object]) -> str:
        """All of them in one edit. Returns why they could not be written, or ""."""
        where = f"ConfigMap {document.namespace}/{document.name}"
        present = await self._client.find(CONFIG_MAPS, document.name, namespace=document.namespace)
        after, now = present, clock.now()
        for body in bodies:
            after = document.with_entry(after, body["key"], body["content"], now)
        if after is None:
            return ""
        try:
            await (
                self._client.create(CONFIG_MAPS, after) if present is None else self._client.replace(CONFIG_MAPS, after)
            )
        except Conflict:
            return f"{where} has changed meanwhile"
        except Forbidden as error:
            return f"{where} may not be written: {error.message}; let the operator create and update it, as {_COMPONENT} does"
        except Invalid as error:
            return f"{where} cannot be written: {error.message}; correct it, or delete it"
        keys = ", ".join(sorted(body["key"] for body in bodies))
        log.info("wrote %s into %s", keys, where)
        return ""


def _waits(scope: Scope, name: str) -> bool:
    """Whether a node is still to be changed."""
    state, intent = _state(scope, name), scope.intents.get(name)
    wanted = intent.wanted if intent is not None else None
    return (
        wanted is not None
        and state.phase in AT_REST
        and (state.current is None or state.current.fingerprint != wanted.fingerprint)
    )


def _state(scope: Scope, name: str) -> NodeStateStatus:
    record = scope.records.get(name)
    return record.state if record is not None else NodeStateStatus()
