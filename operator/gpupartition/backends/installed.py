"""What backends whose layouts are entries of one ConfigMap look at and refuse alike, whoever's they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from gpupartition.domain.backend import Cluster
from gpupartition.domain.entries import MAX_SIZE, Document, Unreadable
from gpupartition.domain.objects import Object
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.yaml_text import Illegible, documents


class Model(Protocol):
    """What a table knows of some GPUs."""

    @property
    def name(self) -> str:
        """What it calls them."""


M = TypeVar("M", bound=Model)


def config_problems(document: Document, cluster: Cluster) -> Iterator[Problem]:
    """Whether the ConfigMap can be read and written, if it is there, and has room."""
    found = cluster.config_map(document.namespace, document.name) or {}
    at = f"ConfigMap {document.namespace}/{document.name}"
    try:
        document.read(found)
    except Unreadable as unreadable:
        why = f"its {document.file} {unreadable}"
        yield Problem(reason="ConfigUnreadable", at=at, why=why, fix="correct it, or delete it")
    if found.get("immutable"):
        yield Problem(
            reason="ConfigImmutable",
            at=at,
            why="it is immutable, so that no layout can be written into it",
            fix="delete it, create it anew without immutable, and restart the pods that mount it: they keep what was deleted",
        )
    texts = (*found.get("data", {}).values(), *found.get("metadata", {}).get("annotations", {}).values())
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_SIZE:
        yield Problem(
            reason="ConfigFull",
            at=at,
            why=f"it has {size} bytes, and the API takes little more than {MAX_SIZE}",
            fix="use fewer layouts at once, or delete policies that nobody needs",
        )


def mounts(daemon_set: Object, config_map: str) -> bool:
    """Whether its pods see this ConfigMap of their namespace."""
    volumes = daemon_set["spec"]["template"]["spec"].get("volumes", ())
    return any(volume.get("configMap", {}).get("name") == config_map for volume in volumes)


def env(daemon_set: Object, name: str) -> list[str]:
    """Literal values of a variable in all its containers."""
    return [str(e.get("value", "")) for c in containers(daemon_set) for e in c.get("env", ()) if e["name"] == name]


def containers(daemon_set: Object) -> list[Object]:
    """All its containers, those that only begin included."""
    spec = daemon_set["spec"]["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


def offered(node: Object, *prefixes: str) -> list[str]:
    """Extended resources of these prefixes that a device plugin offers on the node."""
    allocatable = node.get("status", {}).get("allocatable", {})
    return sorted(name for name in allocatable if name.startswith(prefixes) and str(allocatable[name]) != "0")


def tables_in(config_map: Object) -> str:
    """All that a ConfigMap of tables has, as one text."""
    return "\n---\n".join(text for _, text in sorted(config_map.get("data", {}).items()))


def with_tables(
    text: str, at: str, parse: Callable[[Any, str], Sequence[M]], known: tuple[M, ...]
) -> tuple[tuple[M, ...], tuple[Problem, ...]]:
    """The known models with those of these tables, or with what is wrong with them.

    One of a table replaces the known one of its name, and comes first, so that its products are its own.
    """
    own: list[M] = []
    try:
        for _, document in documents(text):
            own += parse(document, at)
    except Illegible as illegible:
        why = f"it is neither YAML nor JSON: {illegible}"
        return known, (Problem(reason="TableInvalid", at=at, why=why, fix="correct it"),)
    except Refused as refused:
        return known, tuple(refused.problems)
    names = {model.name for model in own}
    return (*own, *(model for model in known if model.name not in names)), ()


def no_table(where: str, field: str) -> Problem:
    """The refusal of a driver that names a ConfigMap of tables that is not there."""
    why, fix = f"there is no {where}", "create it, or leave tables out"
    return Problem(reason="TableMissing", at=field, why=why, fix=fix)
