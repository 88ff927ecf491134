"""Which nodes share a pool, and which of them leads: from the copies, and live for whoever is about to write."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpupartition.api.v1alpha1 import NodeStateStatus
from gpupartition.api.v1alpha1.shared import SUBDOMAIN
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Driver, Policy
from gpupartition.controller.packed import PackedSlice
from gpupartition.controller.records import Record
from gpupartition.domain.groups import Group, node_key
from gpupartition.domain.leading import former, leader, led, nodes_led, settled
from gpupartition.domain.others import skips
from gpupartition.kube import Object

_NAME: Final = re.compile(SUBDOMAIN)


class Groups:
    """The groups of nodes as the copies have them."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._nodes = -1  # changes of the nodes that are sorted
        self._sorted: dict[str, Mapping[str, Sequence[Object]]] = {}
        self._changes: tuple[int, ...] = ()  # of all that the members of groups depend on
        self._members: dict[tuple[Any, ...], Sequence[Object]] = {}

    def name(self, driver: Driver, node: Object | None, state: NodeStateStatus) -> str:
        """The group of a node: the one that its record leads, or that nobody else can empty, else what its label says; "" for none."""
        label = label_of(driver)
        if not label:
            return ""
        if led(state) or node is None:
            return led(state)
        said = node["metadata"].get("labels", {}).get(label, "")
        return self._left(driver, node["metadata"]["name"]) or (said if _NAME.fullmatch(said) else "")

    def of(
        self, driver: Driver, policy: Policy | None, node: Object | None, state: NodeStateStatus | None
    ) -> Group | None:
        """The group of a node; None where the driver knows no groups, or the node is in none."""
        if not label_of(driver) or node is None:
            return None
        state = state or NodeStateStatus()
        group = self.name(driver, node, state)
        if not group:
            return None
        me = str(node["metadata"]["name"])
        members = self._of(driver, policy, group)
        named = [str(n["metadata"]["name"]) for n in members]
        having = self._having(driver, group) | ({me: state} if led(state) else {})
        leads = leader(having, named) or (me if self._left(driver, me) == group else "")
        skipped = next((str(n["metadata"]["name"]) for n in members if skips(n)), "")
        found = Group(
            name=group,
            leader=leads,
            former=former(having, leads),
            settled=settled(state, having.get(leads)),
            members=members,
            skipped=skipped,
        )
        return replace(found, kept_out=self._kept_out(driver, policy, me, found, state))

    def _kept_out(self, driver: Driver, policy: Policy | None, me: str, group: Group, state: NodeStateStatus) -> str:
        record = self._caches.records.get(group.leader)
        if policy is not None and record is not None and record.spec.policy_ref.uid not in {"", policy.uid}:
            policy_name = record.spec.policy_ref.name
            return f"node {group.leader} of policy {policy_name} leads group {group.name}, and a group has one policy"
        if me == group.leader or me in group.names:
            return ""
        if led(state):
            return f"it has left group {group.name}, which node {group.leader} leads from now on"
        where = self._elsewhere(driver, me, group.name)
        return f"its devices are still in {where}" if where else ""

    def _having(self, driver: Driver, group: str) -> dict[str, NodeStateStatus]:
        """The records that have the group's pool."""
        return {r.name: r.state for r in self._caches.records.by("group", group) if r.spec.driver == driver.name}

    def _left(self, driver: Driver, me: str) -> str:
        """A pool that nobody leads, nor comes to lead, and of whose nodes this is the first: nobody else would take it away."""
        found = self._caches.slices.by("on", node_key(me))
        for group in {each.group for each in found if each.driver == driver.driver_name}:
            labelled = (node["metadata"]["name"] for node in self._labelled(driver, group))
            if self._having(driver, group) or any(self._is_ours(driver, name) for name in labelled):
                continue
            slices = self._caches.slices_on(me, driver.driver_name, Group(name=group, leader=""))
            on = {device.get("nodeName", "") for body in slices for device in body["spec"].get("devices", ())}
            if min((name for name in on if self._is_ours(driver, name)), default="") == me:
                return group
        return ""

    def _is_ours(self, driver: Driver, node: str) -> bool:
        record = self._caches.records.get(node)
        return record is not None and record.spec.driver == driver.name

    def _labelled(self, driver: Driver, group: str) -> Sequence[Object]:
        label, nodes = label_of(driver), self._caches.nodes
        if self._nodes != nodes.changes:
            self._nodes = nodes.changes
            self._sorted.clear()
        if label not in self._sorted:
            by_value: dict[str, list[Object]] = defaultdict(list)
            for _, node in sorted(nodes.items()):
                by_value[node["metadata"]["labels"].get(label, "")].append(node)
            self._sorted[label] = by_value
        return self._sorted[label].get(group, ())

    def _of(self, driver: Driver, policy: Policy | None, group: str) -> Sequence[Object]:
        """Its members; each of them asks."""
        caches, key = self._caches, (driver.uid, policy and (policy.uid, policy.generation), group)
        changes = caches.nodes.changes, caches.records.changes, caches.slices.changes
        if self._changes != changes:
            self._changes = changes
            self._members.clear()
        if key not in self._members:
            labelled = self._labelled(driver, group)
            self._members[key] = [node for node in labelled if self._belongs(driver, policy, node, group)]
        return self._members[key]

    def _belongs(self, driver: Driver, policy: Policy | None, node: Object, group: str) -> bool:
        meta = node["metadata"]
        if "deletionTimestamp" in meta or (policy is not None and not policy.selects(node)):
            return False
        record = self._caches.records.get(meta["name"])
        others = record is not None and policy is not None and record.spec.policy_ref.uid != policy.uid
        return not others and not self._elsewhere(driver, meta["name"], group)

    def _elsewhere(self, driver: Driver, node: str, group: str) -> str:
        """In which other pool a node has devices, or may come to have some."""
        key = node_key(node)
        for record in self._caches.records.by("on", key):
            if record.spec.driver == driver.name and led(record.state) != group:
                return f"group {led(record.state)}, which node {record.name} leads"
        for each in self._caches.slices.by("on", key):
            if each.driver == driver.driver_name and each.group != group:
                return f"pool {each.pool}"
        return ""


def label_of(driver: Driver) -> str:
    """The label that says to which group a node belongs; "" for a driver that knows no groups."""
    publish = driver.spec.publish
    return publish.multi_node.group_label if publish is not None and publish.multi_node is not None else ""


def in_the_way(driver: Driver, record: Record, records: Iterable[Record], slices: Iterable[PackedSlice]) -> str:
    """Who else has, or may come to have, the pool of a record's group or a node that is to be in it. All were read after the record."""
    group, nodes = led(record.state), nodes_led(record.state)
    if not group:
        return ""
    for other in records:
        if other.name == record.name or other.spec.driver not in {"", driver.name}:
            continue
        if other.unreadable:
            return f"nobody knows what the record of node {other.name} says"
        if led(other.state) == group or nodes_led(other.state) & nodes:
            return f"node {other.name} leads group {led(other.state)}"
    for each in slices:
        if each.group not in {"", group} and each.on & nodes:
            return f"pool {each.pool} has devices of the group's nodes"
    return ""
