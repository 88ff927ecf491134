"""What the operator keeps in memory of the cluster, trimmed to what decisions look at, and who is told when it changes.

Caches tell when to look and answer for nodes at rest. Whatever decides about a node in flight is read live (world.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from gpupartition import names
from gpupartition.controller import clock
from gpupartition.controller.packed import (
    PackedSlice,
    packed,
    slice_afloat,
    slice_astray,
    slice_group,
    slice_node,
    slice_of_a_plugin,
    slice_on,
    slice_owners,
)
from gpupartition.controller.records import NODE_STATES, Record
from gpupartition.controller.trimmed import (
    claim_pools,
    node_ready,
    pod_node,
    record_group,
    record_on,
    record_policy,
    rule_node,
    trim,
    trim_claim,
    trim_daemon_set,
    trim_node,
    trim_pod,
    trim_rule,
)
from gpupartition.domain.backend import Kept
from gpupartition.domain.groups import Group
from gpupartition.domain.suspension import Suspension, of_freeze
from gpupartition.kube import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    Forbidden,
    Kind,
    NotServed,
    Object,
)
from gpupartition.kube.reflector import Reflector


class MayNotRead(Exception):  # noqa: N818  (reads as what happened)
    """The operator has no right to read what it needs of a driver's namespace."""

    def __init__(self, namespace: str, error: Forbidden) -> None:
        super().__init__(str(error))
        self.namespace = namespace


class Namespace(NamedTuple):
    """Copies of what a driver's namespace holds."""

    daemon_sets: Reflector[Object]
    revisions: Reflector[Object]
    pods: Reflector[Object]


class Caches:
    """One reflector per kind; those of a driver's namespace begin when a driver first names it."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        on_node: Callable[[str], None],
        on_all: Callable[[], None],
        on_relabelled: Callable[[Object], None] = lambda _: None,
        claim: Callable[[Object], Object | None] | None = None,
    ) -> None:
        """`on_relabelled` is told of a node as it was, before its labels changed or it went.

        `claim`: what is kept of a claim, for those who want to see more of them than who has what.
        """
        self._client = client
        self._namespace = namespace
        self._on_node = on_node
        self._on_all = on_all
        self._on_relabelled = on_relabelled
        self._tasks: asyncio.TaskGroup | None = None
        self._once = False
        self.nodes = Reflector(
            client, NODES, trim_node, self._node_changed, page=500, indexes={"ready": node_ready}, versions=True
        )
        self.slices = Reflector(
            client,
            RESOURCE_SLICES,
            packed,
            self._slice_changed,
            page=100,
            indexes={
                "node": slice_node,
                "not ours": slice_of_a_plugin,
                "astray": slice_astray,
                "afloat": slice_afloat,
                "group": slice_group,
                "on": slice_on,
            },
        )
        self.claims = Reflector(
            client, RESOURCE_CLAIMS, claim or trim_claim, self._claim_changed, indexes={"pool": claim_pools}
        )
        self.records = Reflector(
            client,
            NODE_STATES,
            Record.read,
            self._record_changed,
            indexes={"policy": record_policy, "group": record_group, "on": record_on},
        )
        self.freeze = Reflector(
            client,
            CONFIG_MAPS,
            of_freeze,
            lambda *_: on_all(),
            namespace=namespace,
            field_selector=f"metadata.name={names.FREEZE_CONFIG_MAP}",
        )
        self._rules: Reflector[Object] | None = None  # none where there are no DeviceTaintRules
        self._keeps_rules: asyncio.Task[None] | None = None
        self._given_up = 0  # changes of copies that are kept no more
        self._namespaces: dict[str, Namespace] = {}
        self._config_maps: dict[tuple[str, str], Reflector[Object]] = {}

    @property
    def not_ready(self) -> list[Object]:
        """The nodes that say so, or of which nobody knows."""
        return [*self.nodes.by("ready", "False"), *self.nodes.by("ready", "Unknown")]

    async def frozen_now(self) -> bool:
        """Whether everything is frozen, asked now: the copy may be behind."""
        return await is_frozen(self._client, self._namespace)

    async def records_now(self) -> list[Record]:
        """Every node's record, read now."""
        return await self.records.now(lambda record: record.resource_version)

    @property
    def freezing(self) -> Suspension | None:
        """Why everything is frozen, as long as it is."""
        now = clock.now()
        return next((each for each in self.freeze.values() if each.holds(now)), None)

    async def run(self, ready: asyncio.Event) -> None:
        """Keep all of them; `ready` is set when each has read everything once."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for reflector in self._fixed:
                tasks.create_task(reflector.run(), name=f"reflector of {reflector.kind}")
            for reflector in self._fixed:
                await reflector.synced.wait()
            ready.set()

    async def read(self) -> None:
        """Read all of them once, and keep none: what there is now is enough. Raises the first ApiError."""
        self._once = True
        for reflector in self._fixed:
            await reflector.read()

    @property
    def versions(self) -> dict[str, int]:
        """The resourceVersions up to which those of the whole cluster are true, by kind."""
        return {each.kind.plural: int(each.resource_version or 0) for each in self._fixed}

    @property
    def changes(self) -> int:
        """How often anything in any of them has changed."""
        rules = [self._rules] if self._rules is not None else []
        of_namespaces = [each for namespace in self._namespaces.values() for each in namespace]
        kept = (*self._fixed, *rules, *of_namespaces, *self._config_maps.values())
        return self._given_up + sum(each.changes for each in kept)

    @property
    def _fixed(self) -> list[Reflector[Any]]:
        return [self.nodes, self.slices, self.claims, self.records, self.freeze]

    async def read_rules(self, kind: Kind | None) -> bool:
        """Keep DeviceTaintRules of our names too, in the version that the server has; returns when they are read completely.

        False where it has none (`kind` None), or none any more: then nothing is kept of them.
        """
        if self._rules is not None and self._rules.kind != kind:
            self._give_up_rules()
        if kind is None:
            return False
        rules = self._rules or Reflector(self._client, kind, trim_rule, self._rule_changed, indexes={"node": rule_node})
        try:
            if self._rules is None:
                self._keeps_rules = await self._begin(rules)
                self._rules = rules
            await rules.complete()
        except NotServed:  # since somebody said that they are
            if self._rules is rules:
                self._give_up_rules()
            return False
        return True

    def _give_up_rules(self) -> None:
        if self._rules is not None:
            self._given_up += self._rules.changes + 1
        if self._keeps_rules is not None:
            self._keeps_rules.cancel()
        self._rules = self._keeps_rules = None

    def rule(self, name: str) -> Object | None:
        """The DeviceTaintRule of this name, which may be somebody else's."""
        return self._rules.get(name) if self._rules is not None else None

    def rules_of(self, node: str) -> list[Object]:
        """Our DeviceTaintRules about a node of this name."""
        return list(self._rules.by("node", node)) if self._rules is not None else []

    async def _begin(self, reflector: Reflector[Any]) -> asyncio.Task[None] | None:
        """Keep it from now on, in the task that is returned; or read it once. Raises ApiError for the latter."""
        if self._once:
            await reflector.read()
            return None
        assert self._tasks is not None, "the caches do not run yet"
        return self._tasks.create_task(reflector.run(), name=f"reflector of {reflector.kind}")

    async def namespace(self, name: str) -> Namespace:
        """A driver's namespace, read completely. Raises MayNotRead."""
        if name not in self._namespaces:
            new = self._namespaces[name] = Namespace(
                Reflector(self._client, DAEMON_SETS, trim_daemon_set, lambda *_: self._on_all(), namespace=name),
                Reflector(self._client, CONTROLLER_REVISIONS, trim, lambda *_: self._on_all(), namespace=name),
                Reflector(self._client, PODS, trim_pod, self._pod_changed, namespace=name, indexes={"node": pod_node}),
            )
            for reflector in new:
                await self._begin(reflector)
        found = self._namespaces[name]
        for reflector in found:
            await _complete(reflector, name)
        return found

    async def config_map(self, namespace: str, name: str) -> Object | None:
        """One ConfigMap of a driver, kept from when it is first asked for; None while there is none. Raises MayNotRead."""
        key = namespace, name
        if key not in self._config_maps:
            self._config_maps[key] = Reflector(
                self._client,
                CONFIG_MAPS,
                trim,
                lambda *_: self._on_all(),
                namespace=namespace,
                field_selector=f"metadata.name={name}",
            )
            await self._begin(self._config_maps[key])
        await _complete(self._config_maps[key], namespace)
        return next(iter(self._config_maps[key].values()), None)

    def slices_on(self, node: str, driver_name: str, group: Group | None = None) -> Kept:
        """The ResourceSlices of a DRA driver on a node, or for all nodes of its group."""
        return Kept(self.packed_on(node, driver_name, group), PackedSlice.body)

    def packed_on(self, node: str, driver_name: str, group: Group | None = None) -> list[PackedSlice]:
        """The same as they are kept: the very same objects as long as nothing of them has changed."""
        if group is not None:
            return [each for each in self.slices.by("group", group.name) if each.driver == driver_name]
        own = [each for each in self.slices.by("node", node) if each.driver == driver_name]
        return own + self.afloat(node, driver_name)

    def afloat(self, node: str, driver_name: str) -> list[PackedSlice]:
        """Slices in a node's pool that are of no one node, and so of somebody else: the scheduler takes them for a part of it all the same."""
        found = (each for pool in (node, f"{driver_name}/{node}") for each in self.slices.by("afloat", pool))
        return [each for each in found if each.driver == driver_name]

    def pods(self, namespace: str, node: str) -> list[Object]:
        """Driver pods on a node; none while the namespace is not known yet."""
        return list(self._namespaces[namespace].pods.by("node", node)) if namespace in self._namespaces else []

    def _node_changed(self, name: str, old: Object | None, new: Object | None) -> None:
        labels = {value for body in (old, new) if body for value in body["metadata"]["labels"].values()}
        for node in {name, *(record.name for value in labels for record in self.records.by("group", value))}:
            self._on_node(node)
        record = self.records.get(name)
        for group in record_group(record) if record is not None else ():
            self._group_changed(group)
        if old is not None and (new is None or new["metadata"]["labels"] != old["metadata"]["labels"]):
            self._on_relabelled(old)

    def _record_changed(self, name: str, old: Record | None, new: Record | None) -> None:
        self._on_node(name)
        before, after = ({*record_group(record)} if record is not None else set() for record in (old, new))
        body = self.nodes.get(name)
        stays = body is not None and after <= {*body["metadata"]["labels"].values()}
        for group in before ^ after if stays else before | after:
            self._group_changed(group)

    def _group_changed(self, group: str) -> None:
        """Another node may lead it now."""
        labelled = (node for node, body in self.nodes.items() if group in body["metadata"]["labels"].values())
        for node in {*labelled, *(record.name for record in self.records.by("group", group))}:
            self._on_node(node)

    def _slice_changed(self, _: str, old: PackedSlice | None, new: PackedSlice | None) -> None:
        for each in filter(None, (old, new)):
            # One that is nobody's, in the pool of a node or of the group that it leads, is told to that node: it makes the pool useless.
            unit = each.pool.rpartition("/")[2]
            about = {record.name for record in self.records.by("group", unit)}
            about |= {unit} if self.nodes.get(unit) is not None else set()
            for node in about.union(slice_node(each), slice_owners(each)):
                self._on_node(node)

    def _claim_changed(self, _: str, old: Object | None, new: Object | None) -> None:
        for pool in {p for o in (old, new) if o for p in claim_pools(o)}:
            unit = pool.rpartition("/")[2]  # pools are named after their node, or <driver>/<node>, or <driver>/<group>
            for node in {unit, *(record.name for record in self.records.by("group", unit))}:
                self._on_node(node)

    def _rule_changed(self, name: str, old: Object | None, new: Object | None) -> None:
        about = {n for o in (old, new) if o for n in rule_node(o)}
        for node in about or {
            n for n, body in self.nodes.items() if names.taint_rule(n, body["metadata"]["uid"]) == name
        }:
            self._on_node(node)

    def _pod_changed(self, _: str, old: Object | None, new: Object | None) -> None:
        for node in {n for o in (old, new) if o for n in pod_node(o)}:
            self._on_node(node)


async def is_frozen(client: Client, namespace: str) -> bool:
    """Whether the ConfigMap in the operator's namespace freezes everything now; read now."""
    body = await client.find(CONFIG_MAPS, names.FREEZE_CONFIG_MAP, namespace=namespace)
    return body is not None and of_freeze(body).holds(clock.now())


async def _complete(reflector: Reflector[Any], namespace: str) -> None:
    try:
        await reflector.complete()
    except Forbidden as error:
        raise MayNotRead(namespace, error) from error
