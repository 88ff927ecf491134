"""Which nodes share a pool, and which of them leads: from the copies, and live for whoever is about to write."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpupartition import names
from gpupartition.api.v1alpha1 import NodeStateStatus
from gpupartition.api.v1alpha1.shared import SUBDOMAIN
from gpupartition.controller.caches import Caches
from gpupartition.controller.records import NODE_STATES, Record
from gpupartition.domain.groups import Group, key_of, on_nodes
from gpupartition.domain.leading import led, nodes_led
from gpupartition.domain.others import skips
from gpupartition.domain.pool import Pool
from gpupartition.kube import RESOURCE_SLICES, Client, Object

if TYPE_CHECKING:
    from gpupartition.controller.intent import Driver, Policy

_NAME: Final = re.compile(SUBDOMAIN)


class Groups:
    """The groups of nodes as the copies have them."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._sorted: tuple[str, Mapping[str, Mapping[str, Sequence[Object]]]] = "", {}

    def name(self, driver: Driver, node: Object | None, state: NodeStateStatus) -> str:
        """The group of a node: the one that its record leads, else what its label says; "" for none."""
        label = label_of(driver)
        if not label:
            return ""
        said = node["metadata"].get("labels", {}).get(label, "") if node is not None else ""
        return led(state) or (said if _NAME.fullmatch(said) else "")

    def of(
        self, driver: Driver, policy: Policy | None, node: Object | None, state: NodeStateStatus | None
    ) -> Group | None:
        """The group of a node; None where the driver knows no groups, or the node is in none."""
        state = state or NodeStateStatus()
        group = self.name(driver, node, state)
        if not group or node is None:
            return None
        me = str(node["metadata"]["name"])
        mine = bool(led(state))
        leaders = {r.name: r for r in self._caches.records.by("group", group) if r.spec.driver == driver.name}
        leader = min(leaders.keys() | ({me} if mine else set()), default="")
        foreign = leaders[leader] if leader in leaders and policy is not None and leader != me else None
        if foreign is not None and policy is not None and foreign.spec.policy_ref.uid != policy.uid:
            why = f"node {leader} of policy {foreign.spec.policy_ref.name} leads group {group}, and a group has one policy"
            return Group(name=group, leader=leader, kept_out=why)
        members = [n for n in self._labelled(driver, group) if self._belongs(driver, policy, n, group)]
        named = [str(n["metadata"]["name"]) for n in members]
        where = "" if mine or me in named else self._elsewhere(driver, me, group)
        return Group(
            name=group,
            leader=leader or min(named, default=""),
            members=members,
            kept_out=f"its devices are still in {where}" if where else "",
            skipped=next((str(n["metadata"]["name"]) for n in members if skips(n)), ""),
        )

    def _labelled(self, driver: Driver, group: str) -> Sequence[Object]:
        label, seen = label_of(driver), self._caches.nodes.resource_version
        if self._sorted[0] != seen:
            self._sorted = seen, {}
        found = dict(self._sorted[1])
        if label not in found:
            by_value: dict[str, list[Object]] = defaultdict(list)
            for _, node in sorted(self._caches.nodes.items()):
                by_value[node["metadata"]["labels"].get(label, "")].append(node)
            found[label] = by_value
            self._sorted = seen, found
        return found[label].get(group, ())

    def _belongs(self, driver: Driver, policy: Policy | None, node: Object, group: str) -> bool:
        meta = node["metadata"]
        if "deletionTimestamp" in meta or (policy is not None and not policy.selects(node)):
            return False
        record = self._caches.records.get(meta["name"])
        others = record is not None and policy is not None and record.spec.policy_ref.uid != policy.uid
        return not others and not self._elsewhere(driver, meta["name"], group)

    def _elsewhere(self, driver: Driver, node: str, group: str) -> str:
        """In which other pool a node has devices, or may come to have some."""
        key = key_of(node)
        for record in self._caches.records.by("on", key):
            if record.spec.driver == driver.name and led(record.state) != group:
                return f"group {led(record.state)}, which node {record.name} leads"
        for body in self._caches.slices.by("on", key):
            if body["spec"]["driver"] == driver.driver_name and body["metadata"]["labels"][names.NODE_GROUP] != group:
                return f"pool {body['spec']['pool']['name']}"
        return ""


def label_of(driver: Driver) -> str:
    """The label that says to which group a node belongs; "" for a driver that knows no groups."""
    publish = driver.spec.publish
    return publish.multi_node.group_label if publish is not None and publish.multi_node is not None else ""


async def in_the_way(client: Client, driver: Driver, record: Record) -> str:
    """Who else has, or may come to have, the pool of a record's group or a node that is to be in it. Read live, after the record."""
    group, nodes = led(record.state), nodes_led(record.state)
    if not group:
        return ""
    for body in (await client.list(NODE_STATES)).items:
        other = Record.read(body)
        if other.name == record.name or other.spec.driver not in {"", driver.name}:
            continue
        if other.unreadable:
            return f"nobody knows what the record of node {other.name} says"
        if led(other.state) == group or nodes_led(other.state) & nodes:
            return f"node {other.name} leads group {led(other.state)}"
    pools = await client.list(
        RESOURCE_SLICES, field_selector=f"spec.driver={driver.driver_name}", label_selector=names.NODE_GROUP
    )
    for body in pools.items:
        if body["metadata"]["labels"][names.NODE_GROUP] != group and on_nodes(Pool.read([body])) & nodes:
            return f"pool {body['spec']['pool']['name']} has devices of the group's nodes"
    return ""
