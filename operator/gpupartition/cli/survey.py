"""What each node of a cluster publishes, and which policy would want just that: compiled and compared as the operator will do it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from gpupartition.api.v1alpha1 import PolicySpec
from gpupartition.backends import amd_dcm, nvidia_mig
from gpupartition.backends.adopted import layouts_of
from gpupartition.backends.recognised import keeper, publishes_gpus, recognised
from gpupartition.cli.planned import copied
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Driver, Policy, labels
from gpupartition.controller.intent import Intents
from gpupartition.controller.readiness import is_ready
from gpupartition.controller.records import DRIVERS, POLICIES
from gpupartition.domain.adoption import (
    LASTING,
    Adopted,
    Adopting,
    Layouts,
    LeftOut,
    free,
    policies,
    touched,
    unfit,
    why_not,
)
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.groups import HOSTNAME
from gpupartition.domain.problem import Problem, Refused
from gpupartition.kube import DAEMON_SETS, NODES, Client, Object
from gpupartition.names import API_VERSION
from gpupartition.settings import Settings

NO_LABEL: Final = (
    f"neither a label that is known to last nor {HOSTNAME} tells it from other nodes; name one with --by-label"
)
_VENDORS: Final = (nvidia_mig.DRIVER_NAME, amd_dcm.DRIVER_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What to apply, in this order; and by node: why it is left out, what else of it is, and which policy it has already.

    `kept`: by driver that is to be applied, who else keeps its ConfigMap, and what to do first.
    """

    drivers: Sequence[Object]
    policies: Sequence[Adopting]
    left_out: Mapping[str, str]
    beside: Mapping[str, str]
    governed: Mapping[str, str]
    kept: Mapping[str, str] = field(default_factory=dict)


async def survey(client: Client, settings: Settings, keys: Sequence[str] = (), selector: str = "") -> Adoption:
    """Look at every node that publishes devices, or should, and that the label selector selects ("": every one). Raises ApiError.

    `keys`: labels by which policies find their nodes, before others.
    """
    present = [Policy.read(body) for body in (await client.list(POLICIES)).items]
    caches, intents = await copied(client, settings)
    drivers, daemon_sets = (await client.list(DRIVERS)).items, (await client.list(DAEMON_SETS)).items
    installed = await _installed(caches, intents, drivers, daemon_sets)
    chosen = (await client.list(NODES, label_selector=selector)).items if selector else caches.nodes.values()
    nodes = _Nodes(caches, installed, present)
    nodes.look(sorted(node["metadata"]["name"] for node in chosen))
    found, apart = policies(
        nodes.adopted,
        {name: labels(node) for name, node in caches.nodes.items()},
        keys=(*keys, *LASTING),
        taken={policy.name for policy in present},
    )
    used = {policy.body["spec"]["driver"] for policy in found}
    return Adoption(
        drivers=[body for name, body in installed.proposed.items() if name in used],
        policies=found,
        left_out=nodes.left_out | dict.fromkeys(apart, NO_LABEL),
        beside=nodes.beside,
        governed=nodes.governed,
        kept={name: why for name, why in installed.kept.items() if name in used},
    )


# ---------------------------------------------------------------------------------------------------------------------- drivers


@dataclass(frozen=True, slots=True)
class _Installed:
    """Drivers by the name under which they publish, those of them that the cluster is to get, and why nothing is known of others.

    `kept`: who keeps the ConfigMap of one that the cluster is to get.
    """

    drivers: dict[str, list[Driver]] = field(default_factory=dict)
    proposed: dict[str, Object] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


async def _installed(
    caches: Caches, intents: Intents, bodies: Sequence[Object], daemon_sets: Sequence[Object]
) -> _Installed:
    found, named = _Installed(), {body["metadata"]["name"] for body in bodies}
    known: dict[Any, str] = {}  # what the GpuPartitionDrivers are about, and what is wrong with them
    for body in bodies:
        try:
            driver = await intents.driver(body)
            found.drivers.setdefault(driver.driver_name, []).append(driver)
            known[_about(body["spec"])] = ""
        except Refused as refused:
            known[_about(body["spec"])] = f"GpuPartitionDriver {body['metadata']['name']}: {_told(refused.problems)}"
    for published in sorted({each.driver for each in caches.slices.values() if each.node or each.group}):
        try:
            some = recognised(published, daemon_sets)
        except LeftOut as left_out:
            found.unknown[published] = str(left_out)
            continue
        for each in some:
            if _about(each.spec) in known:
                found.unknown[published] = known[_about(each.spec)]
                continue
            meta = {"name": free(each.name, named)}
            body = {"apiVersion": API_VERSION, "kind": "GpuPartitionDriver", "metadata": meta, "spec": each.spec}
            try:
                driver = await intents.driver({**body, "metadata": {**meta, "uid": f"proposed {meta['name']}"}})
            except Refused as refused:
                found.unknown[published] = _told(refused.problems)
                continue
            found.drivers.setdefault(published, []).append(driver)
            found.proposed[driver.name] = body
            if why := _kept(driver):
                found.kept[driver.name] = why
    return found


def _kept(driver: Driver) -> str:
    """Who keeps the ConfigMap that the driver is to write its layouts into; "" where nobody else is known to."""
    for file in driver.backend.documents(driver.spec):
        if by := keeper(file.name, driver.cluster.config_map(file.namespace, file.name)):
            return (
                f"{by} keeps ConfigMap {file.namespace}/{file.name}, and what the operator writes into it may be undone: before a layout is "
                "changed, copy it under a name of your own, have that mounted, and name that in the driver"
            )
    return ""


def _about(spec: Mapping[str, Any]) -> Any:
    """What a driver's spec is about: of the example driver there may be several, of others one."""
    base = spec.get("exampleDriver", {}).get("daemonSet", {})
    return (base.get("namespace"), base.get("name")) if base else spec.get("type")


# ------------------------------------------------------------------------------------------------------------------------ nodes


class _Nodes:
    """Goes through the nodes, and sorts them."""

    def __init__(self, caches: Caches, installed: _Installed, present: Sequence[Policy]) -> None:
        self._caches = caches
        self._installed = installed
        self._present = present
        self._specs: dict[str, PolicySpec] = {}
        self.adopted: list[Adopted] = []
        self.left_out: dict[str, str] = {}
        self.beside: dict[str, str] = {}
        self.governed: dict[str, str] = {}

    def look(self, chosen: Sequence[str]) -> None:
        """Decide about each of these nodes that publishes devices, or on which a driver runs that should."""
        for name in chosen:
            node = self._caches.nodes.get(name)
            if node is None:  # it came after the others had been read
                continue
            published = {each.driver for each in self._caches.slices.by("node", name)}
            published |= {
                n for n, drivers in self._installed.drivers.items() if any(self._runs(d, name) for d in drivers)
            }
            mine = sorted(filter(publishes_gpus, published), key=lambda n: (n not in _VENDORS, n))
            holder = self._holder(name, node)
            if mine and holder:
                self.governed[name] = f"GpuPartitionPolicy {holder} has it"
            elif mine and not is_ready(node):
                self.left_out[name] = "it is not Ready"
            elif mine:
                self._decide(name, mine)

    def _holder(self, name: str, node: Object) -> str:
        """The policy that has the node, or would have it."""
        record = self._caches.records.get(name)
        if record is not None:
            return record.spec.policy_ref.name
        return next((p.name for p in self._present if p.selects(node) and not p.deleting), "")

    def _decide(self, name: str, published: Sequence[str]) -> None:
        """A node has one policy, and so one driver; what is said of others is said beside."""
        whys: list[str] = []
        taken = ""
        for driver_name in published:
            if taken:
                whys.append(f"{driver_name} publishes there too, and a node has one policy, which is for {taken}")
                continue
            adopted, why = self._adopt(name, driver_name)
            if adopted is not None:
                self.adopted.append(adopted)
                taken = driver_name
            else:
                whys.append(why)
        if whys:
            (self.beside if taken else self.left_out)[name] = "; ".join(whys)

    def _adopt(self, name: str, driver_name: str) -> tuple[Adopted | None, str]:
        drivers = self._installed.drivers.get(driver_name, ())
        why = self._installed.unknown.get(driver_name, "") or f"nothing is known of DRA driver {driver_name}"
        # Where several could have published this, what is wrong with the one that runs there is told last.
        for driver in sorted(drivers, key=lambda d: self._runs(d, name)):
            facts = self._facts(driver, name)
            try:
                adopted = self._adopted(driver, facts)
            except Refused as refused:
                why = _told(refused.problems, f"node {name}")
                continue
            except LeftOut as left_out:
                why = str(left_out)
                continue
            return adopted, ""
        return None, why

    def _adopted(self, driver: Driver, facts: NodeFacts) -> Adopted:
        """The node with layouts that change nothing of what it publishes. Raises LeftOut or Refused when there are none."""
        if driver.problems:
            raise Refused(*driver.problems)
        seen = driver.backend.observe(driver.spec, facts, driver.cluster)
        _insist(unfit(seen))
        layouts = layouts_of(driver.spec, facts, driver.cluster)
        wanted = driver.backend.compile(driver.spec, self._spec(layouts), facts, driver.cluster)
        _insist(why_not(wanted, seen))
        return Adopted(facts.name, driver.name, layouts, touched(wanted, seen))

    def _spec(self, layouts: Layouts) -> PolicySpec:
        text = json.dumps(layouts)
        if text not in self._specs:
            selector = {"matchLabels": {HOSTNAME: "any"}}
            try:
                spec = PolicySpec.model_validate({"driver": "any", "nodeSelector": selector, "layouts": layouts})
            except ValidationError as error:
                raise LeftOut(f"no policy can say what it has: {error.errors()[0]['msg']}") from error
            self._specs[text] = spec
        return self._specs[text]

    def _runs(self, driver: Driver, node: str) -> bool:
        return driver.backend.observe(driver.spec, self._facts(driver, node), driver.cluster).plugin is not None

    def _facts(self, driver: Driver, name: str) -> NodeFacts:
        node = self._caches.nodes.get(name)
        assert node is not None, name
        slices = self._caches.slices_on(name, driver.driver_name)
        namespaces = driver.backend.namespaces(driver.spec)
        return NodeFacts(node=node, slices=slices, pods=[p for n in namespaces for p in self._caches.pods(n, name)])


def _insist(why: str) -> None:
    if why:
        raise LeftOut(why)


def _told(problems: Sequence[Problem], node: str = "") -> str:
    """The problems in one line; that it is the node's goes without saying."""
    return "; ".join(dict.fromkeys(_one(problem, node) for problem in problems))


def _one(problem: Problem, node: str) -> str:
    return str(problem) if problem.at != node else f"{problem.why}; {problem.fix}"
