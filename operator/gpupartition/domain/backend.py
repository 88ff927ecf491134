"""What the operator asks of a driver. Nobody outside a backend knows which driver it is.

A layout becomes *content-addressed config* (objects that never change, named by their fingerprint) and a node carries one *assignment*
that says which config it uses. Applying a layout is writing the assignment; rolling back is writing the former one.
Backends are pure: they look at objects that were read, and return data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from gpupartition.api.v1alpha1 import Assigned, DriverSpec, PolicySpec
from gpupartition.domain.effects import Effect
from gpupartition.domain.entries import Document, is_entry
from gpupartition.domain.groups import Group
from gpupartition.domain.objects import Object
from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a backend may look at beside one node: all DaemonSets and ControllerRevisions of the driver's namespaces, and its ConfigMaps.

    `dropped` are the fields of slices that the API server silently drops, found by a dry run; none where that may not be asked.
    """

    daemon_sets: Sequence[Object] = ()
    controller_revisions: Sequence[Object] = ()
    config_maps: Sequence[Object] = ()
    dropped: Sequence[str] = ()

    def daemon_set(self, namespace: str, name: str) -> Object | None:
        """One of the DaemonSets."""
        return _named(self.daemon_sets, namespace, name)

    def config_map(self, namespace: str, name: str) -> Object | None:
        """One of the ConfigMaps."""
        return _named(self.config_maps, namespace, name)

    def present(self, config: Object) -> Object | None:
        """What there is of a config object: the object of its name, which others may share."""
        kind = self.config_maps if is_entry(config) else self.daemon_sets
        return _named(kind, config["metadata"]["namespace"], config["metadata"]["name"])


def _named(objects: Sequence[Object], namespace: str, name: str) -> Object | None:
    found = (o for o in objects if o["metadata"]["name"] == name and o["metadata"]["namespace"] == namespace)
    return next(found, None)


class Kept(Sequence[Object]):
    """Objects as a copy keeps them, opened when somebody looks at them. Two that are made of the very same are equal."""

    def __init__(self, kept: Iterable[T], opened: Callable[[T], Object]) -> None:
        self._kept, self._opened = tuple(kept), opened
        self._ids = tuple(map(id, self._kept))
        self._bodies: Sequence[Object] | None = None

    def unopened(self) -> Kept:
        """The same, to be remembered: it takes few bytes."""
        return Kept(self._kept, self._opened)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, place: Any) -> Any:
        if self._bodies is None:
            self._bodies = tuple(map(self._opened, self._kept))
        return self._bodies[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and self._ids == other._ids

    def __hash__(self) -> int:
        return hash(self._ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node as read: the Node, the driver's ResourceSlices on it, and the pods in the driver's namespaces on it.

    `known` is what its record says that it publishes, or is to publish. `group`: the nodes that share its pool, where a driver has such.
    """

    node: Object
    slices: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    known: Pool = field(default_factory=Pool)
    group: Group | None = None
    _pools: dict[str, Pool] = field(default_factory=dict, init=False, repr=False, compare=False)  # once read

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self.node["metadata"]["name"])

    def pool(self, name: str) -> Pool:
        """The pool of this name, as the slices have it."""
        if name not in self._pools:
            self._pools[name] = offered_by(s for s in self.slices if s["spec"]["pool"]["name"] == name)
        return self._pools[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A layout made concrete for a node: what it is called, which objects carry it, which value assigns it, what it will publish.

    `assignment` None means that the node carries no value of ours: it runs the base. `products`: what the node's GPUs are called;
    `unmatched`: the names of products in the policy that none of them has.
    """

    fingerprint: str
    assignment: str | None
    pool: Pool
    objects: Sequence[Object] = ()
    products: frozenset[str] = field(default=frozenset(), compare=False)
    unmatched: frozenset[str] = field(default=frozenset(), compare=False)

    def assigned(self, revision: str = "") -> Assigned:
        """As it stands in a node's record."""
        return Assigned(
            fingerprint=self.fingerprint, assignment=self.assignment, pool=self.pool.to_json(), revision=revision
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the node says now.

    `assignment` and `step` are the value and the step that it carries; `running` is the fingerprint of what its driver really runs
    ("" when no driver pod runs or it cannot be told); `ready` whether the driver that belongs to `assignment` is up; `plugin` is the
    pod that would have to go for the driver to start anew; `complaint` says why it is not ready. `lost_gpus`: how many fewer GPUs it
    publishes than its driver was told to (0 where that cannot be told); `writer`: who wrote its assignment last, if that was not we ("" where
    nobody else can, or what others write is undone at once); `as_told`: it publishes exactly what the config that it runs says.

    `acknowledged`: whether the driver has done what its assignment says; before that its plugin is not made to start anew. `restarts`: whether
    it has to after each assignment, even of another value. `failed`: why the driver gave up; `agent` is the pod that acts on the assignment,
    where that is not the plugin, and `stale` whether it may have given up only because it has not seen the config yet. `retired`: devices that
    it publishes beside the pool only for those who have them.
    """

    assignment: str | None
    step: str
    running: str
    ready: bool
    pool: Pool
    complaint: str = ""
    plugin: Object | None = None
    lost_gpus: int = 0
    writer: str = ""
    as_told: bool = False
    acknowledged: bool = True
    restarts: bool = False
    failed: str = ""
    agent: Object | None = None
    stale: bool = False
    retired: Pool = field(default_factory=Pool)


class Backend(Protocol):
    """One driver. All methods are pure and cheap enough for 5,000 nodes.

    `label`: the label of a Node that carries its assignment; "" where that is not on the Node.
    """

    @property
    def label(self) -> str: ...  # noqa: D102

    def pool_name(self, driver: DriverSpec, node: str, group: Group | None = None) -> str:
        """Name of the pool that this driver publishes for the node; "" where another node of its group has it."""

    def driver_name(self, driver: DriverSpec, cluster: Cluster) -> str:
        """The DRA driver name, as in `spec.driver` of a ResourceSlice. Raises Refused when it cannot be read."""

    def namespaces(self, driver: DriverSpec) -> Sequence[str]:
        """Where the driver's DaemonSets and pods are; none when there are none."""

    def documents(self, driver: DriverSpec) -> Sequence[Document]:
        """The config that layouts share, where they do."""

    def config_maps(self, driver: DriverSpec) -> Sequence[tuple[str, str]]:
        """Namespace and name of the ConfigMaps that it looks at."""

    def applying(self, driver: DriverSpec) -> Literal["applying", "applying_mig", "applying_reboot", "applying_dcm"]:
        """Which of the limits is that for applying a layout."""

    def preflight(self, driver: DriverSpec, cluster: Cluster) -> Sequence[Problem]:
        """What is wrong with the driver's installation, whatever the policy says."""

    def depends(self, driver: DriverSpec, node: Object, look: Callable[[], NodeFacts]) -> tuple[Any, ...]:
        """All of a node that compiling depends on: what is compiled for one node is right for each that has the same.

        Only who needs more than the Node has a look: it is asked of each node at each look at a policy.
        """

    def compile(self, driver: DriverSpec, policy: PolicySpec, facts: NodeFacts, cluster: Cluster) -> Config:
        """The config of this policy for this node. Raises Refused with all problems found."""

    def way_back(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Config:
        """The config that brings the node back to what it publishes now. Raises Refused (NoWayBack) where there is none."""

    def observe(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Observation:
        """What the node says now."""

    def live(self, driver: DriverSpec, cluster: Cluster) -> bool:
        """Whether devices in use can stay published beside a new layout, so that nobody has to be waited for."""

    def disturbs(self, now: Pool, then: Pool) -> frozenset[str]:
        """Names of present devices that a change from `now` to `then` takes away from whoever holds them."""

    def assign(self, driver: DriverSpec, facts: NodeFacts, to: Assigned, step: str, generation: int) -> Effect | None:
        """The next write towards the assignment, for this step; None when all is written. The first one uses the step up."""

    def cancel(self, driver: DriverSpec, facts: NodeFacts, step: str) -> Effect | None:
        """The write that uses the step up and changes nothing else; None when it is used up already."""

    def repair(
        self, driver: DriverSpec, facts: NodeFacts, to: Assigned, step: str | None, generation: int
    ) -> Effect | None:
        """The next write that restores what the operator itself publishes; None for drivers that publish themselves.

        `step` is the one that brought it, None for a node at rest.
        """
