"""What the operator keeps in memory of the cluster, trimmed to what decisions look at, and who is told when it changes.

Caches tell when to look and answer for nodes at rest. Whatever decides about a node in flight is read live (world.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from sys import intern
from typing import Any

from gpupartition import names
from gpupartition.controller.packed import PackedSlice, packed
from gpupartition.controller.records import DRIVERS, NODE_STATES, POLICIES, Record
from gpupartition.domain.backend import Kept
from gpupartition.domain.groups import Group
from gpupartition.domain.leading import led, nodes_led
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
    Object,
)
from gpupartition.kube.reflector import Reflector

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
OURS = f"app.kubernetes.io/managed-by={names.FIELD_MANAGER}"


class MayNotRead(Exception):  # noqa: N818  (reads as what happened)
    """The operator has no right to read what it needs of a driver's namespace."""

    def __init__(self, namespace: str, error: Forbidden) -> None:
        super().__init__(str(error))
        self.namespace = namespace


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
        self._on_node = on_node
        self._on_all = on_all
        self._on_relabelled = on_relabelled
        self._tasks: asyncio.TaskGroup | None = None
        self._once = False
        self.nodes = Reflector(client, NODES, trim_node, self._node_changed, page=500, indexes={"ready": _node_ready})
        self.slices = Reflector(
            client,
            RESOURCE_SLICES,
            pack_slice,
            self._slice_changed,
            page=100,
            indexes={"node": _slice_node, "not ours": _slice_of_a_plugin, "group": _slice_group, "on": _slice_on},
        )
        self.claims = Reflector(
            client, RESOURCE_CLAIMS, claim or trim_claim, self._claim_changed, indexes={"pool": claim_pools}
        )
        self.records = Reflector(
            client,
            NODE_STATES,
            Record.read,
            self._record_changed,
            indexes={"policy": _record_policy, "group": _record_group, "on": _record_on},
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
        self._namespaces: dict[str, tuple[Reflector[Object], Reflector[Object], Reflector[Object]]] = {}
        self._config_maps: dict[tuple[str, str], Reflector[Object]] = {}

    @property
    def not_ready(self) -> list[Object]:
        """The nodes that say so, or of which nobody knows."""
        return [*self.nodes.by("ready", "False"), *self.nodes.by("ready", "Unknown")]

    @property
    def freezing(self) -> Suspension | None:
        """Why everything is frozen, as long as it is."""
        now = datetime.now(UTC)
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
    def _fixed(self) -> list[Reflector[Any]]:
        return [self.nodes, self.slices, self.claims, self.records, self.freeze]

    async def read_rules(self, kind: Kind) -> None:
        """Keep our DeviceTaintRules too, in the version that the server has; returns when they are read completely."""
        if self._rules is None:
            self._rules = Reflector(
                self._client, kind, trim_rule, self._rule_changed, label_selector=OURS, indexes={"node": _rule_node}
            )
            await self._begin(self._rules)
        await self._rules.synced.wait()

    def rule(self, name: str) -> Object | None:
        """One of our DeviceTaintRules."""
        return self._rules.get(name) if self._rules is not None else None

    def rules_of(self, node: str) -> list[Object]:
        """Our DeviceTaintRules about a node of this name."""
        return list(self._rules.by("node", node)) if self._rules is not None else []

    async def _begin(self, reflector: Reflector[Any]) -> None:
        if self._once:
            await reflector.read()
            return
        assert self._tasks is not None, "the caches do not run yet"
        self._tasks.create_task(reflector.run(), name=f"reflector of {reflector.kind}")

    async def namespace(self, name: str) -> tuple[Reflector[Object], Reflector[Object], Reflector[Object]]:
        """DaemonSets, ControllerRevisions and pods of a driver's namespace, read completely. Raises MayNotRead."""
        if name not in self._namespaces:
            three = (
                Reflector(self._client, DAEMON_SETS, trim_daemon_set, lambda *_: self._on_all(), namespace=name),
                Reflector(self._client, CONTROLLER_REVISIONS, trim, lambda *_: self._on_all(), namespace=name),
                Reflector(self._client, PODS, trim_pod, self._pod_changed, namespace=name, indexes={"node": _pod_node}),
            )
            self._namespaces[name] = three
            for reflector in three:
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
        found = self.slices.by("group", group.name) if group is not None else self.slices.by("node", node)
        return [each for each in found if each.driver == driver_name]

    def pods(self, namespace: str, node: str) -> list[Object]:
        """Driver pods on a node; none while the namespace is not known yet."""
        return list(self._namespaces[namespace][2].by("node", node)) if namespace in self._namespaces else []

    def _node_changed(self, name: str, old: Object | None, new: Object | None) -> None:
        labels = {value for body in (old, new) if body for value in body["metadata"]["labels"].values()}
        for node in {name, *(record.name for value in labels for record in self.records.by("group", value))}:
            self._on_node(node)
        record = self.records.get(name)
        for group in _record_group(record) if record is not None else ():
            self._group_changed(group)
        if old is not None and (new is None or new["metadata"]["labels"] != old["metadata"]["labels"]):
            self._on_relabelled(old)

    def _record_changed(self, name: str, old: Record | None, new: Record | None) -> None:
        self._on_node(name)
        before, after = ({*_record_group(record)} if record is not None else set() for record in (old, new))
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
        for node in {n for o in (old, new) if o for n in (*_slice_node(o), *_slice_owners(o))}:
            self._on_node(node)

    def _claim_changed(self, _: str, old: Object | None, new: Object | None) -> None:
        for pool in {p for o in (old, new) if o for p in claim_pools(o)}:
            unit = pool.rpartition("/")[2]  # pools are named after their node, or <driver>/<node>, or <driver>/<group>
            for node in {unit, *(record.name for record in self.records.by("group", unit))}:
                self._on_node(node)

    def _rule_changed(self, _: str, old: Object | None, new: Object | None) -> None:
        for node in {n for o in (old, new) if o for n in _rule_node(o)}:
            self._on_node(node)

    def _pod_changed(self, _: str, old: Object | None, new: Object | None) -> None:
        for node in {n for o in (old, new) if o for n in _pod_node(o)}:
            self._on_node(node)


async def _complete(reflector: Reflector[Any], namespace: str) -> None:
    try:
        await reflector.complete()
    except Forbidden as error:
        raise MayNotRead(namespace, error) from error


def trim(body: Object, *more: str) -> Object:
    """Without what only the server's bookkeeping needs."""
    meta = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
    return {**{k: v for k, v in body.items() if k not in more}, "metadata": meta}


def trim_node(body: Object) -> Object:
    """What decisions look at; heartbeats change nothing of it."""
    meta, status = body["metadata"], body.get("status", {})
    annotations = {k: v for k, v in meta.get("annotations", {}).items() if k.startswith(names.GROUP)}
    ready = [
        {"type": "Ready", "status": c["status"], "lastTransitionTime": c.get("lastTransitionTime", "")}
        for c in status.get("conditions", ())
        if c["type"] == "Ready"
    ]
    kept = {"name": meta["name"], "uid": meta["uid"], "labels": meta.get("labels", {}), "annotations": annotations}
    kept["creationTimestamp"] = meta.get("creationTimestamp", "")
    offered = {k: v for k, v in status.get("allocatable", {}).items() if "/" in k}
    return {
        "metadata": kept | ({"deletionTimestamp": ""} if "deletionTimestamp" in meta else {}),
        "spec": {k: v for k, v in body.get("spec", {}).items() if k in {"unschedulable", "taints"}},
        "status": {"conditions": ready, "nodeInfo": {"bootID": status.get("nodeInfo", {}).get("bootID", "")}}
        | ({"allocatable": offered} if offered else {}),
    }


def pack_slice(body: Object) -> PackedSlice | None:
    """Slices that belong to a node, or to a group of ours; the pools that others publish for several nodes are nobody's here."""
    found = packed(body)
    return found if found.node or found.group else None


def trim_claim(body: Object) -> Object | None:
    """Allocated claims only: what they have, and for whom."""
    status = body.get("status", {})
    if not status.get("allocation"):
        return None
    meta = {k: v for k, v in body["metadata"].items() if k in {"name", "namespace", "uid", "deletionTimestamp"}}
    results = [_shared(result) for result in status["allocation"].get("devices", {}).get("results", ())]
    kept: Object = {"allocation": {"devices": {"results": results}}}
    return {"metadata": meta, "status": kept | {k: status[k] for k in ("reservedFor",) if k in status}}


def _shared(result: Object) -> Object:
    """An allocated device, with the names of its driver and pool as the other claims have them."""
    return result | {name: intern(str(result[name])) for name in ("driver", "pool")}


def trim_rule(body: Object) -> Object:
    """Our taint rules whole: their conditions prove that the feature is on."""
    return trim(body)


def trim_daemon_set(body: Object) -> Object:
    """Without the status, which changes with every pod."""
    trimmed = trim(body, "status")
    trimmed["metadata"].pop("resourceVersion", None)
    return trimmed


def trim_pod(body: Object) -> Object:
    """Driver pods: whose they are, where they run, whether they are ready, and what their containers wait for."""
    status = body.get("status", {})
    waiting = [
        {"state": {"waiting": {"reason": reason}}}
        for container in status.get("containerStatuses") or ()
        if (reason := (container.get("state", {}).get("waiting") or {}).get("reason"))
    ]
    ready = [{"type": c["type"], "status": c["status"]} for c in status.get("conditions", ()) if c["type"] == "Ready"]
    meta = {k: v for k, v in body["metadata"].items() if k not in {"managedFields", "resourceVersion"}}
    return {
        "metadata": meta,
        "spec": {"nodeName": body.get("spec", {}).get("nodeName", "")},
        "status": {"phase": status.get("phase", ""), "conditions": ready, "containerStatuses": waiting},
    }


def _slice_of_a_plugin(each: PackedSlice) -> Iterable[str]:
    """The driver, where it is not this operator that publishes for it."""
    return () if each.ours else (each.driver,)


def _slice_node(each: PackedSlice) -> Iterable[str]:
    return (each.node,) if each.node else ()


def _slice_group(each: PackedSlice) -> Iterable[str]:
    """The group of nodes whose pool it is a part of."""
    return (each.group,) if each.group else ()


def _slice_on(each: PackedSlice) -> Iterable[str]:
    return each.on


def _slice_owners(each: PackedSlice) -> Iterable[str]:
    """The nodes of the group whose pool it is a part of."""
    return [str(o["name"]) for o in each.body()["metadata"].get("ownerReferences", ())] if each.group else ()


def _rule_node(body: Object) -> Iterable[str]:
    return (str(body["metadata"].get("annotations", {}).get(names.FULL_NODE_NAME, "")),)


def claim_pools(body: Object) -> Iterable[str]:
    """The pools that an allocated claim has devices of."""
    results = body["status"]["allocation"].get("devices", {}).get("results", ())
    return {str(r["pool"]) for r in results}


def _record_policy(record: Record) -> Iterable[str]:
    return (record.spec.policy_ref.name,)


def _record_group(record: Record) -> Iterable[str]:
    group = led(record.state)
    return (group,) if group else ()


def _record_on(record: Record) -> Iterable[str]:
    return nodes_led(record.state)


def _node_ready(body: Object) -> Iterable[str]:
    return (condition(body, "Ready"),)


def _pod_node(body: Object) -> Iterable[str]:
    node = body["spec"].get("nodeName", "")
    return (str(node),) if node else ()


def condition(body: Mapping[str, Any], kind: str) -> str:
    """Status of a condition; "" when it is not there."""
    found = (c for c in body.get("status", {}).get("conditions", ()) if c["type"] == kind)
    return next((str(c["status"]) for c in found), "")


def since_ready(node: Object | None, *, ready: bool = True) -> datetime | None:
    """Since when a node has been Ready, or has not been; None while that is not so, or nobody says since when."""
    found = node.get("status", {}).get("conditions", ()) if node is not None else ()
    times = [c.get("lastTransitionTime") for c in found if c["type"] == "Ready" and (c["status"] == "True") is ready]
    return said_at(times[0]) if times and times[0] else None


def said_at(text: str) -> datetime:
    """The time of a condition that others write: what no calendar here has was long ago, and nothing is in the future."""
    try:
        return min(datetime.fromisoformat(text), datetime.now(UTC))
    except ValueError:
        return LONG_AGO


__all__ = ["DRIVERS", "NODE_STATES", "POLICIES", "Caches", "condition", "said_at"]
