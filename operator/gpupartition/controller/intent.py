"""What is wanted for a node: what its policy and its driver come to, compiled, or the reasons why not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gpupartition.api.v1alpha1 import Assigned, DriverSpec, NodeStateStatus
from gpupartition.backends import BACKENDS
from gpupartition.backends.slices import slice_count, slice_name
from gpupartition.controller.caches import Caches, MayNotRead
from gpupartition.controller.declared import Driver, Policy, readable
from gpupartition.controller.groups import Groups
from gpupartition.controller.probe import Probe
from gpupartition.controller.remembered import Recent
from gpupartition.domain.backend import Cluster, Config, NodeFacts
from gpupartition.domain.groups import Group
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused, Turn
from gpupartition.domain.quiesce import chosen
from gpupartition.kube import Kind, Object

KEPT: Final = 10_000  # compiled layouts remembered; a few per policy are in use, more only where node labels differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is wanted for one node. `wanted` None and not `refused`: nothing any more. `left_out`: why this node alone is refused."""

    wanted: Config | None
    refused: bool = False
    problems: tuple[Problem, ...] = ()
    left_out: Problem | None = None


NOTHING: Final = Intent(wanted=None)


class Intents:
    """Reads drivers and compiles policies. Compiling is remembered: the same input for thousands of nodes is compiled once."""

    def __init__(self, caches: Caches, probe: Probe, *, operates: bool = True) -> None:
        """`operates`: on behalf of the operator, and not of somebody who only looks, by a command."""
        self._caches = caches
        self._probe = probe
        self._operates = operates
        self.groups = Groups(caches)
        self._compiled: dict[tuple[Any, ...], Config | Refused] = {}
        self._spec = Recent(readable)

    def rules_are_gone(self) -> None:
        """Have it asked again whether DeviceTaintRules are served."""
        self._probe.rules_are_gone()

    async def driver(self, body: Object) -> Driver:
        """Read a driver, and what its namespace holds. Raises Refused when its spec or its namespace cannot be read at all."""
        spec = self._spec(body)
        backend = BACKENDS[spec.type]
        try:
            installed = [await self._caches.namespace(n) for n in backend.namespaces(spec)]
            found = [await self._caches.config_map(*where) for where in backend.config_maps(spec)]
        except MayNotRead as error:
            raise Refused(_rights_missing(error, operates=self._operates)) from error
        cluster = Cluster(
            daemon_sets=[d for each in installed for d in sorted_bodies(each.daemon_sets)],
            controller_revisions=[r for each in installed for r in sorted_bodies(each.revisions)],
            config_maps=[c for c in found if c is not None],
        )
        rules = await self._taint_rules()
        problems = list(self._probe.quiesce(spec.quiesce, served=rules is not None))
        cluster = replace(cluster, dropped=await self._probe.dropped(spec))
        problems += backend.preflight(spec, cluster)
        problems += self._taken(spec)
        try:
            driver_name = backend.driver_name(spec, cluster)
        except Refused as refused:
            driver_name = ""
            problems += [p for p in refused.problems if p not in problems]
        meta = body["metadata"]
        return Driver(
            name=meta["name"],
            uid=meta["uid"],
            spec=spec,
            backend=backend,
            cluster=cluster,
            driver_name=driver_name,
            taint_rules=rules,
            quiesce=chosen(spec.quiesce, served=rules is not None),
            problems=tuple(replace(p, turn=Turn.CLUSTER) for p in problems),
        )

    async def _taint_rules(self) -> Kind | None:
        """The DeviceTaintRules that the server has, read completely; none where they went since it was asked, until it is asked again."""
        rules = await self._probe.taint_rules()
        if await self._caches.read_rules(rules):
            return rules
        self._probe.rules_are_gone()
        return None

    def _taken(self, spec: DriverSpec) -> list[Problem]:
        """A name under which somebody else publishes would put the same hardware into two pools, and the scheduler would give out both."""
        if spec.publish is None:
            return []
        name, caches = spec.publish.driver_name, self._caches
        theirs = min((each.name for each in caches.slices.by("not ours", name)), default="")
        if spec.publish.multi_node is None:
            # Every slice of ours is of one node. One that is of none goes, where a node's record stands for the pool that it is in.
            afloat = (each for each in caches.slices.by("afloat", name) if each.driver == name)
            theirs = theirs or min((e.name for e in afloat if caches.records.get(e.group) is None), default="")
        if not theirs:
            return []
        return [
            Problem(
                reason="DriverNameTaken",
                at="spec.publish.driverName",
                why=f"somebody else publishes devices of {spec.publish.driver_name} (ResourceSlice {theirs}), and its GPUs would be sold twice",
                fix="use a driver name of your own, or remove that driver and its slices",
            )
        ]

    def compile(
        self, driver: Driver, policy: Policy, node: Object, state: NodeStateStatus | None, group: Group | None
    ) -> Intent:
        """What the policy wants for a node that it selects, in this group; `state` is what its record says, if it has one."""
        problems = policy.problems + driver.problems
        if problems or policy.spec is None:
            return Intent(wanted=None, refused=True, problems=problems)
        look = partial(self.facts, driver, node, state, group)
        key = (*driver.key, policy.uid, policy.generation, driver.backend.depends(driver.spec, node, look))
        found = self._compiled.get(key)
        if found is None:
            try:
                found = driver.backend.compile(driver.spec, policy.spec, look(), driver.cluster)
            except Refused as refused:
                found = refused
            if len(self._compiled) >= KEPT:
                self._compiled.clear()
            self._compiled[key] = found
        if isinstance(found, Refused) and all(problem.of_node for problem in found.problems):
            return Intent(wanted=None, refused=True, left_out=found.problems[0])
        if isinstance(found, Refused):
            return Intent(wanted=None, refused=True, problems=found.problems)
        return Intent(wanted=found)

    def astray(self, driver: Driver, node: str, group: Group | None) -> str:
        """The ResourceSlice of somebody else that is in the pool of this node, in words; "" where there is none."""
        pool = driver.backend.pool_name(driver.spec, node, group)
        for astray in self._caches.slices.by("astray", pool):
            if astray.driver == driver.driver_name:
                whose = f"of node {astray.node}" if astray.node else "of no one node"
                return f"ResourceSlice {astray.name} ({whose}) is in its pool {pool}"
        return ""

    def not_ours(self, driver: Driver, node: str, group: Group | None, wanted: Config | None) -> str:
        """The same, or one that has the name of one that this node is to have."""
        if astray := self.astray(driver, node, group):
            return astray
        if driver.spec.publish is None or wanted is None:
            return ""
        unit = group.name if group is not None else node
        asked = (slice_name(driver.driver_name, unit, number) for number in range(slice_count(wanted.pool)))
        there = (self._caches.slices.get(name) for name in asked)
        taken = next((each.name for each in there if each is not None and each.driver != driver.driver_name), "")
        return taken and f"ResourceSlice {taken} has the name of one of its own"

    def facts(self, driver: Driver, node: Object, state: NodeStateStatus | None, group: Group | None) -> NodeFacts:
        """A node as the caches know it, in this group; `state` is what its record says, if it has one."""
        slices = self._caches.slices_on(node["metadata"]["name"], driver.driver_name, group)
        return NodeFacts(node=node, slices=slices, known=known(state), group=group)


def known(state: NodeStateStatus | None) -> Pool:
    """What a record says that its node publishes, or is to publish."""
    told = (state.target or state.original) if state is not None else None
    return Pool.from_json(told.pool) if told is not None else Pool()


def _rights_missing(error: MayNotRead, *, operates: bool) -> Problem:
    component = "add the component of manifests/components that grants it in that namespace: driver-namespace, nvidia-mig or amd-dcm"
    role = "bind the ClusterRole gpupartition-plan to that account; names of ConfigMaps that it lacks have to be added"
    return Problem(
        reason="RightsMissing",
        at=f"namespace {error.namespace}",
        why=f"{'the operator' if operates else 'the account of this command'} may not read what this driver needs there: {error}",
        fix=component if operates else role,
        turn=Turn.CLUSTER,
    )


def revert(original: Assigned | None) -> Config | None:
    """What the node had before the first touch."""
    if original is None:
        return None
    return Config(
        fingerprint=original.fingerprint, assignment=original.assignment, pool=Pool.from_json(original.pool), objects=()
    )


def revision(fingerprints: Sequence[str]) -> str:
    """10 hex digits that name the targets of a policy."""
    return hashlib.sha256("\n".join(sorted(set(fingerprints))).encode()).hexdigest()[:10] if fingerprints else ""


def sorted_bodies(reflector: Any) -> list[Object]:
    """Every object of a copy, by name: order must not depend on when an event came."""
    return [body for _, body in sorted(reflector.items())]
