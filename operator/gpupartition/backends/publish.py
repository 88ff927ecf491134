"""A DRA driver name that this operator owns: it writes the ResourceSlices itself.

One pool `<driver>/<node>` for each node, or one `<driver>/<group>` for all nodes of a group (groups.py).
The config of a layout is the compiled pool; there are no objects beside the slices. The assignment is the label `gpupartition.dev/layout` on
the slices, the step an annotation on the first of them, the anchor. A change disturbs only devices that vanish or become something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from gpupartition.api.v1alpha1 import Assigned, DriverSpec, GpuGroup, Layout, MultiNode, PolicySpec, PublishSpec
from gpupartition.backends import slices
from gpupartition.backends.grouped import follows, hostname, joined_by, pool_of
from gpupartition.backends.probe import gate_off
from gpupartition.backends.slices import Target
from gpupartition.domain import fingerprint
from gpupartition.domain.backend import Cluster, Config, Kept, NodeFacts, Observation
from gpupartition.domain.effects import Effect
from gpupartition.domain.entries import Document
from gpupartition.domain.groups import Group
from gpupartition.domain.inventory import groups_on, numbered
from gpupartition.domain.layout import compile_pool, product_of
from gpupartition.domain.objects import Object
from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.products import unmatched
from gpupartition.domain.tabled import Tables
from gpupartition.tables import amd, mig

MAX_POOL_NAME: Final = 253  # characters: resource/v1 PoolNameMaxLength
TAINTS, SKIPPED = ".taints", "skipNodeOperations"  # in the path of a field

_GROUPS: Final = TypeAdapter(Sequence[GpuGroup])
_LAYOUTS: Final = TypeAdapter(Sequence[Layout])


class Publish:
    """Backend of the driver type Publish."""

    label = ""

    def pool_name(self, driver: DriverSpec, node: str, group: Group | None = None) -> str:
        """`<driver>/<node>`: schedulers before 1.36.3 confuse the counters of pools of one name, whatever the driver."""
        if _spec(driver).multi_node is None:
            return f"{_spec(driver).driver_name}/{node}"
        return _pool_of(driver, group) if group is not None and group.leader == node else ""

    def driver_name(self, driver: DriverSpec, cluster: Cluster) -> str:  # noqa: ARG002
        """As the spec says."""
        return _spec(driver).driver_name

    def namespaces(self, driver: DriverSpec) -> Sequence[str]:  # noqa: ARG002
        """Nowhere: there are neither pods nor DaemonSets."""
        return ()

    def documents(self, driver: DriverSpec) -> Sequence[Document]:  # noqa: ARG002
        """None: the layout is in the slices."""
        return ()

    def config_maps(self, driver: DriverSpec) -> Sequence[tuple[str, str]]:  # noqa: ARG002
        """None."""
        return ()

    def applying(self, driver: DriverSpec) -> Literal["applying"]:  # noqa: ARG002
        """As long as it takes to write some slices."""
        return "applying"

    def preflight(self, driver: DriverSpec, cluster: Cluster) -> Sequence[Problem]:
        """Whether the API server keeps what would be published, and whether a fixed inventory makes sense."""
        skipped = {path for path in cluster.dropped if path.endswith(SKIPPED)}
        sold = [path for path in cluster.dropped if TAINTS not in path and path not in skipped]
        problems: list[Problem] = []
        if sold:
            problems.append(
                gate_off(
                    f"it drops {', '.join(sold)}, so that partitions would be sold beside the whole GPU",
                    "switch on the feature gates DRAPartitionableDevices and DRAConsumableCapacity "
                    "(they are on by default from Kubernetes 1.36)",
                )
            )
        if skipped:
            problems.append(
                gate_off(
                    f"it silently drops {SKIPPED} of slices, so that pods would wait for a node plugin",
                    "switch on the feature gate DRAOptionalNodeOperations (alpha in Kubernetes 1.37), or write "
                    "nodeOperations: Plugin in the driver and run one",
                )
            )
        inventory = _spec(driver).inventory
        if inventory.node_labels is None:
            problems += _senseless(_text(_GROUPS, inventory.gpus))
        return problems

    def depends(self, driver: DriverSpec, node: Object, look: Callable[[], NodeFacts]) -> tuple[Any, ...]:
        """The labels that say which GPUs there are, and the name, of which the pool's is made. In a group: of all, and what they publish."""
        spec = _spec(driver)
        if spec.multi_node is not None:
            facts = look()
            group, name = facts.group, node["metadata"]["name"]
            members = group.members if group is not None else ()
            about = tuple((hostname(member), *_depends(spec, member)) for member in members)
            led = group is None or group.leader == name  # what is published decides only of those who follow
            same = group and replace(group, members=(), former="")
            return name, same, about, "" if led else self._runs(driver, facts)
        return _depends(spec, node)

    def compile(self, driver: DriverSpec, policy: PolicySpec, facts: NodeFacts, cluster: Cluster) -> Config:  # noqa: ARG002
        """The pool of the node's GPUs under the policy's layouts. Raises Refused."""
        if _spec(driver).multi_node is not None:
            return self._of_group(driver, policy, facts)
        name, node = self.pool_name(driver, facts.name), facts.node
        if len(name) > MAX_POOL_NAME:
            raise Refused(
                Problem(
                    reason="NodeNameTooLong",
                    at=f"node {node['metadata']['name']}",
                    why=f"the pool {name} would have a name of {len(name)} characters, and the API takes {MAX_POOL_NAME}",
                    fix="use a shorter driverName",
                )
            )
        return _compiled(_text(_GROUPS, groups_on(_spec(driver).inventory, node)), _text(_LAYOUTS, policy.layouts))

    def _of_group(self, driver: DriverSpec, policy: PolicySpec, facts: NodeFacts) -> Config:
        """The pool of its group for the node that leads it; for another one nothing of its own, once the group has its pool."""
        group = joined_by(_spec(driver).multi_node, facts)
        config = self._of_all(driver, policy, group)
        if group.leader == facts.name:
            return config
        if config.fingerprint not in {group.settled, self._runs(driver, facts)}:
            raise Refused(follows(facts.name, group))
        return replace(config, assignment=None, pool=Pool())

    def _of_all(self, driver: DriverSpec, policy: PolicySpec, group: Group) -> Config:
        spec = _spec(driver)
        assert spec.multi_node is not None, driver
        members = tuple(
            (str(member["metadata"]["name"]), hostname(member), _text(_GROUPS, groups_on(spec.inventory, member)))
            for member in group.members
        )
        return _joined(spec.multi_node.model_dump_json(), group.name, members, _text(_LAYOUTS, policy.layouts))

    def _runs(self, driver: DriverSpec, facts: NodeFacts) -> str:
        """The fingerprint of what is offered in the pool of a node's group; "" where it cannot be used."""
        if facts.group is None:
            return ""
        pool, slices = _pool_of(driver, facts.group), facts.slices
        return _offered_once(pool, slices.unopened()) if isinstance(slices, Kept) else _offered(pool, slices)

    def way_back(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Config:  # noqa: ARG002
        """The pool as it is, whoever wrote it.

        Raises Refused (NoWayBack) for one that the scheduler cannot use: it says nothing about what should be there.
        """
        pool, _ = offered_by(self._present(driver, facts)).without_retired()
        if not pool.usable:
            raise Refused(
                Problem(
                    reason="NoWayBack",
                    at=f"pool {self.pool_name(driver, facts.name, facts.group)}",
                    why=f"the scheduler cannot use it: {pool.problem}",
                    fix="delete its ResourceSlices, or annotate the node with gpupartition.dev/accept-no-rollback",
                )
            )
        return _config(replace(pool, group=facts.group.name) if facts.group is not None else pool)

    def observe(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Observation:  # noqa: ARG002
        """Ready when the scheduler can use the pool and nothing of a former one is left; running is what the slices really say."""
        if facts.group is not None and facts.group.leader != facts.name:
            return Observation(assignment=None, step="", running=self._runs(driver, facts), ready=True, pool=Pool())
        present = self._present(driver, facts)
        anchor = self._anchor(driver, facts)
        pool, retired = offered_by(present).without_retired()
        coherent = pool.usable and slices.coherent(present)
        return Observation(
            assignment=slices.assignment_of(anchor) if anchor is not None else None,
            step=slices.step_of(anchor) if anchor is not None else "",
            running=fingerprint.short(fingerprint.of_pool(pool)) if pool.usable else "",
            ready=coherent,
            complaint="" if coherent or not pool.usable else "slices of another layout are left",
            pool=pool,
            retired=retired,
        )

    def live(self, driver: DriverSpec, cluster: Cluster) -> bool:
        """Unless the driver's spec says no, or the API server keeps no taints of devices, so that nobody could be kept from retired ones."""
        return _spec(driver).live and not any(TAINTS in path for path in cluster.dropped)

    def disturbs(self, now: Pool, then: Pool) -> frozenset[str]:
        """Devices that vanish or become something else; whoever holds another one notices nothing."""
        return now.vanishing(then)

    def assign(self, driver: DriverSpec, facts: NodeFacts, to: Assigned, step: str, generation: int) -> Effect | None:
        """The anchor with the step, then the other slices, then away with what is left over. A cancelled step writes nothing."""
        if not _leads(facts, Pool.from_json(to.pool)):
            return None
        anchor = self._anchor(driver, facts)
        if anchor is not None and slices.step_of(anchor) == step and slices.assignment_of(anchor) != to.assignment:
            return None
        target = self._target(driver, facts, Pool.from_json(to.pool), to.assignment)
        return slices.next_write(self._present(driver, facts), target, step, generation)

    def cancel(self, driver: DriverSpec, facts: NodeFacts, step: str) -> Effect | None:
        """The step alone, on the anchor."""
        return slices.use_up(self._present(driver, facts), self._target(driver, facts, Pool(), None), step)

    def repair(
        self, driver: DriverSpec, facts: NodeFacts, to: Assigned, step: str | None, generation: int
    ) -> Effect | None:
        """The next write towards what the record says, for slices that were wiped or edited. Where nothing shall be, nothing is left."""
        present = self._present(driver, facts)
        pool = Pool.from_json(to.pool)
        if not _leads(facts, pool):
            return None
        if not pool.devices and step is None:
            return next((slices.delete(s) for s in reversed(present)), None)
        return slices.next_write(present, self._target(driver, facts, pool, to.assignment), step, generation)

    def _present(self, driver: DriverSpec, facts: NodeFacts) -> list[Object]:
        name, pool = _spec(driver).driver_name, self.pool_name(driver, facts.name, facts.group)
        ours = [s for s in facts.slices if s["spec"]["driver"] == name and s["spec"]["pool"]["name"] == pool]
        return sorted(ours, key=lambda s: str(s["metadata"]["name"]))

    def _anchor(self, driver: DriverSpec, facts: NodeFacts) -> Object | None:
        unit = facts.group.name if facts.group is not None else facts.name
        name = slices.slice_name(_spec(driver).driver_name, unit, 0)
        return next((s for s in self._present(driver, facts) if s["metadata"]["name"] == name), None)

    def _target(self, driver: DriverSpec, facts: NodeFacts, pool: Pool, assignment: str | None) -> Target:
        return Target(
            driver=_spec(driver).driver_name,
            pool_name=self.pool_name(driver, facts.name, facts.group),
            nodes=[facts.node] if facts.group is None else facts.group.members,
            pool=pool,
            assignment=assignment,
            group=facts.group.name if facts.group is not None else "",
            skips=slices.skips(driver),
        )


def _spec(driver: DriverSpec) -> PublishSpec:
    if driver.publish is None:
        raise AssertionError(f"driver of type {driver.type} has no spec.publish: {driver}")
    return driver.publish


def _pool_of(driver: DriverSpec, group: Group) -> str:
    return f"{_spec(driver).driver_name}/{group.name}"


def _depends(spec: PublishSpec, node: Object) -> tuple[Any, ...]:
    inventory, name = spec.inventory.node_labels, node["metadata"]["name"]
    if inventory is None:
        return (name,) if spec.multi_node is not None else ()
    labels = node["metadata"].get("labels", {})
    return name, *(labels.get(key) for key in (inventory.count, inventory.product, inventory.memory))


def _leads(facts: NodeFacts, pool: Pool) -> bool:
    """Whether the pool is its node's to write: of a group's, only what the record of the node that leads it has."""
    return facts.group is None or (facts.group.leader == facts.name and facts.group.name == pool.group)


def _config(pool: Pool) -> Config:
    name = fingerprint.short(fingerprint.of_pool(pool))
    return Config(fingerprint=name, assignment=name if pool.devices else None, pool=pool)


def _text(adapter: TypeAdapter[Any], models: Sequence[Any]) -> str:
    return adapter.dump_json(models, by_alias=True).decode()


def _tables() -> Tables:
    return Tables(mig=mig.builtin(), amd=amd.builtin())


@lru_cache(maxsize=64)  # asked at each look at a node of the driver
def _senseless(groups: str) -> Sequence[Problem]:
    try:
        numbered(_GROUPS.validate_json(groups), _tables())
    except Refused as refused:
        return refused.problems
    return ()


def _offered(pool: str, slices: Sequence[Object]) -> str:
    offered, _ = offered_by(each for each in slices if each["spec"]["pool"]["name"] == pool).without_retired()
    return fingerprint.short(fingerprint.of_pool(offered)) if offered.usable else ""


_offered_once: Final = lru_cache(maxsize=1024)(_offered)  # each node that follows asks it of its group


# Thousands of nodes have few kinds of GPUs, and some layouts are costly to compile. The models are not hashable, their text is.
@lru_cache(maxsize=256)
def _compiled(groups: str, layouts: str) -> Config:
    gpus, wanted = numbered(_GROUPS.validate_json(groups), _tables()), _LAYOUTS.validate_json(layouts)
    products = {product_of(gpu) for gpu in gpus}
    return replace(
        _config(compile_pool(gpus, wanted)),
        products=frozenset(map(str, products)),
        unmatched=unmatched(wanted, products),
    )


@lru_cache(maxsize=256)  # all nodes of a group ask for it
def _joined(spec: str, group: str, members: Sequence[tuple[str, str, str]], layouts: str) -> Config:
    """The pool of a group; `members` are each node's name, hostname and GPUs. Raises Refused."""
    configs = {name: _compiled(gpus, layouts) for name, _, gpus in members}
    hosts = {name: host for name, host, _ in members}
    parts = {name: config.pool for name, config in configs.items()}
    pool = pool_of(MultiNode.model_validate_json(spec), group, parts, hosts)
    unmatched = [config.unmatched for config in configs.values()]
    return replace(
        _config(pool),
        products=frozenset[str]().union(*(config.products for config in configs.values())),
        unmatched=frozenset.intersection(*unmatched) if unmatched else frozenset(),
    )
