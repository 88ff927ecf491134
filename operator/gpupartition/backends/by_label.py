"""What vendors have in common that have two programs on a node: an agent cuts GPUs as a label tells it, and the DRA driver publishes them.

Layouts are entries of the agent's config file. It answers by a second label, and it notices only changes of the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gpupartition.api.v1alpha1 import Assigned, DriverSpec, ObjectRef
from gpupartition.backends import node_label
from gpupartition.backends.installed import config_problems, mounts
from gpupartition.backends.node_label import OnNode
from gpupartition.domain.backend import Cluster, Config, NodeFacts
from gpupartition.domain.effects import Effect
from gpupartition.domain.entries import Document
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem

PREFIX: Final = "gpp-"  # entries of the operator's own are called so, and by their fingerprint


def fingerprint_of(value: str, content: Any, text: Callable[[Any], str], meaning: Callable[[Any], str]) -> str:
    """The fingerprint of the layout that a value assigns: entries of ours are named after their text, others say the same in other words."""
    ours = value.startswith(PREFIX)
    if content is None:  # it is about to be put back, or is not seen yet
        return value.removeprefix(PREFIX) if ours else ""
    return text(content) if ours else meaning(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The DaemonSets of both programs, the config file, and the ConfigMap of tables beside it ("": none)."""

    agent: ObjectRef
    plugin: ObjectRef
    file: Document
    tables: str = ""

    def config(self, fingerprint: str, key: str, content: Any, pool: Pool) -> Config:
        """The layout whose entry has this key and content. One of the operator's own is written again when it is lost."""
        objects = (self.file.entry(key, content),) if key.startswith(PREFIX) else ()
        return Config(fingerprint=fingerprint, assignment=key, pool=pool, objects=objects)

    def problems(self, cluster: Cluster, *, agent: Problem, plugin: Problem, wire: str) -> Iterator[Problem]:
        """What is missing, as these refusals say it, or not wired to what is written (`wire` says how to), or cannot be read."""
        has = cluster.daemon_set(self.agent.namespace, self.agent.name)
        if has is None:
            yield agent
        elif not mounts(has, self.file.name):
            yield Problem(
                reason="ConfigNotWired",
                at=f"DaemonSet {self.agent.namespace}/{self.agent.name}",
                why=f"it does not mount ConfigMap {self.file.name}, into which layouts are written",
                fix=wire,
            )
        if cluster.daemon_set(self.plugin.namespace, self.plugin.name) is None:
            yield plugin
        yield from config_problems(self.file, cluster)


def missing(what: ObjectRef, *, reason: str, at: str, fix: str) -> Problem:
    """The refusal of a driver that names a DaemonSet that is not there."""
    why = f"there is no DaemonSet {what.name} in namespace {what.namespace}"
    return Problem(reason=reason, at=at, why=why, fix=f"{fix}, or name its DaemonSet")


class ByLabel(OnNode, ABC):
    """The part of a backend that is the same for all of them. `label` assigns an entry, `state` is the answer."""

    label: ClassVar[str]
    state: ClassVar[str]
    publishes_as: ClassVar[str]

    @abstractmethod
    def software(self, driver: DriverSpec) -> Software:
        """What is installed."""

    def driver_name(self, driver: DriverSpec, cluster: Cluster) -> str:  # noqa: ARG002
        """It is fixed."""
        return self.publishes_as

    def namespaces(self, driver: DriverSpec) -> Sequence[str]:
        """Where the agent is, and where the DRA driver is."""
        has = self.software(driver)
        return tuple(dict.fromkeys((has.agent.namespace, has.plugin.namespace)))

    def documents(self, driver: DriverSpec) -> Sequence[Document]:
        """The agent's config file."""
        return (self.software(driver).file,)

    def config_maps(self, driver: DriverSpec) -> Sequence[tuple[str, str]]:
        """The config file, and the tables of products."""
        has = self.software(driver)
        return tuple((has.agent.namespace, name) for name in (has.file.name, has.tables) if name)

    def assign(self, driver: DriverSpec, facts: NodeFacts, to: Assigned, step: str, generation: int) -> Effect | None:  # noqa: ARG002
        """Label and step in one patch, which takes the old answer away too. The same value is taken away first: only a change is noticed."""
        return node_label.assign_anew(facts, self.label, self.state, to, step)

    def assigned_entry(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Any:
        """The entry that the node's label names; None where there is none of that name."""
        file = self.software(driver).file
        return file.content(cluster.config_map(file.namespace, file.name), node_label.label_of(facts.node, self.label))
