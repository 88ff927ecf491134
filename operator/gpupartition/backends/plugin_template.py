"""The pod template of dra-example-driver's node plugin: which layout it says, the same template with another one, and its fingerprint.

The driver is configured by environment variables alone (dra-example-driver v0.4.0, cmd/dra-example-kubeletplugin/main.go). Flags on the
command line would win over them, and what comes from elsewhere (`valueFrom`, `envFrom`) cannot be read here: both are refused.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from gpupartition.backends import pod_template
from gpupartition.domain import fingerprint
from gpupartition.domain.objects import as_text
from gpupartition.domain.problem import Problem
from gpupartition.names import DRIVER, LAYOUT

PARTS: Final = "GPU_PARTITIONS"
GPUS: Final = "NUM_DEVICES"
SHARED: Final = "GPU_ALLOW_MULTIPLE_ALLOCATIONS"
DRIVER_NAME: Final = "DRIVER_NAME"
PROFILE: Final = "DEVICE_PROFILE"

DEFAULT_DRIVER_NAME: Final = "gpu.example.com"
_LAYOUT_VARIABLES: Final = frozenset({GPUS, PARTS, SHARED})
EXCLUSIVE: Final = {"key": LAYOUT, "operator": "DoesNotExist"}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
# The flag of each variable that this operator sets or relies on.
_FLAGS: Final = {
    PARTS: "--gpu-partitions",
    GPUS: "--num-devices",
    SHARED: "--gpu-allow-multiple-allocations",
    DRIVER_NAME: "--driver-name",
    PROFILE: "--device-profile",
}
# What Go's strconv.ParseBool takes.
_TRUTH: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}

Template = Mapping[str, Any]

KINDS: Final = 256  # templates: asked about for each pod of a fleet, and they were made from a handful


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the driver is told about a node's GPUs: how many, in how many parts each (0: in one piece), whether claims may share a device."""

    gpus: int
    parts: int
    shared: bool


class Unreadable(Exception):  # noqa: N818  (reads as what the template is)
    """The template does not say in plain values what the driver will publish."""

    def __init__(self, why: str, fix: str, reason: str = "EnvUnreadable") -> None:
        super().__init__(f"{why}; {fix}")
        self.reason, self.why, self.fix = reason, why, fix

    def problem(self, at: str) -> Problem:
        """As a problem of the object at `at`."""
        return Problem(reason=self.reason, at=at, why=self.why, fix=self.fix)


def plugin_container(template: Template) -> Mapping[str, Any]:
    """The container that has one of the driver's layout variables, or the only one. Raises Unreadable."""
    containers = template["spec"]["containers"]
    known = [c for c in containers if _LAYOUT_VARIABLES & {e["name"] for e in c.get("env", ())}]
    candidates = known or containers
    if len(candidates) == 1:
        only: Mapping[str, Any] = candidates[0]
        return only
    names = ", ".join(c["name"] for c in candidates)
    raise Unreadable(
        f"any of the containers {names} could be the plugin",
        f"give exactly one of them the variable {GPUS} (env: [{{name: {GPUS}, value: '8'}}])",
        reason="NoPluginContainer",
    )


def driver_name(template: Template) -> str:
    """The DRA driver name that the plugin will use. Raises Unreadable."""
    return _literal(plugin_container(template), DRIVER_NAME) or DEFAULT_DRIVER_NAME


def settings(template: Template) -> Settings:
    """What the template tells the driver, its defaults included. Raises Unreadable."""
    return _settings(as_text(template))


@lru_cache(maxsize=KINDS)
def _settings(text: str) -> Settings:
    container = plugin_container(json.loads(text))
    return Settings(
        gpus=_number(container, GPUS, default=8),
        parts=_number(container, PARTS, default=0),
        shared=_truth(container, SHARED),
    )


def check(template: Template) -> Iterator[Unreadable]:
    """Everything that keeps this template from being one that the operator can set and predict."""
    readers: tuple[Callable[[Template], object], ...] = (plugin_container, driver_name, settings, _profile)
    said = set()
    for read in readers:
        try:
            read(template)
        except Unreadable as unreadable:
            if str(unreadable) not in said:
                said.add(str(unreadable))
                yield unreadable


def exclusive(template: Template) -> bool:
    """Whether every nodeSelectorTerm keeps off nodes that carry an assignment (terms are alternatives: one without is a way in)."""
    terms = _terms(template)
    return bool(terms) and all(EXCLUSIVE in term.get("matchExpressions", ()) for term in terms)


def set_to(template: Template, wanted: Settings) -> dict[str, Any]:
    """The template without our marks, told other settings. They come first, so that other variables may refer to them."""
    told = {GPUS: str(wanted.gpus), PARTS: str(wanted.parts), SHARED: str(wanted.shared).lower()}
    return _with_env(bare(template), [{"name": name, "value": value} for name, value in told.items()])


def marked(template: Template, layout: str, base: str) -> dict[str, Any]:
    """The template as a variant's: bound to nodes that are assigned the layout, with the labels of the variant's own selector."""
    variant = bare(template)
    labels = variant.setdefault("metadata", {}).setdefault("labels", {})
    labels.update({LAYOUT: layout, DRIVER: base})
    variant["spec"].setdefault("nodeSelector", {})[LAYOUT] = layout
    return variant


def bare(template: Template) -> dict[str, Any]:
    """A copy without anything that `marked` adds or that a base needs beside variants."""
    copied: dict[str, Any] = copy.deepcopy(dict(template))
    copied.pop("$patch", None)  # a ControllerRevision holds its template as a patch
    spec = copied["spec"]
    labels = copied.get("metadata", {}).get("labels", {})
    for mark in (LAYOUT, DRIVER):
        labels.pop(mark, None)
    spec.get("nodeSelector", {}).pop(LAYOUT, None)
    terms = _terms(copied)
    for term in terms:
        if EXCLUSIVE in term.get("matchExpressions", ()):
            term["matchExpressions"] = [e for e in term["matchExpressions"] if e != EXCLUSIVE]
    if any(not term.get("matchExpressions") and not term.get("matchFields") for term in terms):
        # An empty term would match no node at all, while a term of which nothing remains asks for nothing.
        del spec["affinity"]["nodeAffinity"][_REQUIRED]
    for path in (("affinity", "nodeAffinity"), ("affinity",), ("nodeSelector",)):
        _prune(spec, *path)
    _prune(copied, "metadata", "labels")
    return copied


def whole_fingerprint(template: Template) -> str:
    """The whole hash of what the driver is told and of how it runs, whether it runs from the base or from a variant. Raises Unreadable.

    The three layout variables count by their value: a base that leaves out a default equals one that spells it out.
    """
    return _whole_fingerprint(as_text(template))


@lru_cache(maxsize=KINDS)
def _whole_fingerprint(text: str) -> str:
    template: Template = json.loads(text)
    told = settings(template)
    running = _with_env(bare(template), [])
    return fingerprint.digest(
        {
            "driver": "ExampleDriver",
            "template": pod_template.canonical(running),
            "gpus": told.gpus,
            "parts": told.parts,
            "shared": told.shared,
        }
    )


def _with_env(template: dict[str, Any], layout: list[dict[str, str]]) -> dict[str, Any]:
    container = plugin_container(template)
    others = [e for e in container.get("env", ()) if e["name"] not in _LAYOUT_VARIABLES]
    changed = {**container, "env": [*layout, *others]}
    template["spec"]["containers"] = [changed if c is container else c for c in template["spec"]["containers"]]
    return template


def _terms(template: Template) -> list[dict[str, Any]]:
    affinity = template["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms: list[dict[str, Any]] = affinity.get(_REQUIRED, {}).get("nodeSelectorTerms", [])
    return terms


def _prune(tree: dict[str, Any], *path: str) -> None:
    for key in path[:-1]:
        tree = tree.get(key, {})
    if tree.get(path[-1], None) == {}:
        del tree[path[-1]]


def _literal(container: Mapping[str, Any], name: str) -> str:
    """The variable's value, "" when it is not set. Of several entries of one name the last one counts, as for the kubelet."""
    flag = _FLAGS[name]
    words = [*container.get("command", ()), *container.get("args", ())]
    if any(word == flag or word.startswith(f"{flag}=") for word in words):
        raise Unreadable(
            f"container {container['name']} sets {flag} on its command line", f"set the variable {name} instead"
        )
    entries = [e for e in container.get("env", ()) if e["name"] == name]
    if entries:
        value = str(entries[-1].get("value", ""))
        elsewhere = "valueFrom" in entries[-1] or "$(" in value
    else:
        value, elsewhere = "", bool(container.get("envFrom"))
    if elsewhere:
        raise Unreadable(
            f"variable {name} of container {container['name']} is taken from elsewhere, which cannot be read here",
            f"write it literally: env: [{{name: {name}, value: …}}]",
        )
    return value


def _number(container: Mapping[str, Any], name: str, *, default: int) -> int:
    text = _literal(container, name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise Unreadable(f"variable {name} of container {container['name']} is {text!r}", "write a number of 0 or more")
    return int(text)


def _truth(container: Mapping[str, Any], name: str) -> bool:
    text = _literal(container, name) or "false"
    if text not in _TRUTH:
        raise Unreadable(f"variable {name} of container {container['name']} is {text!r}", "write true or false")
    return _TRUTH[text]


def _profile(template: Template) -> None:
    profile = _literal(plugin_container(template), PROFILE) or "gpu"
    if profile != "gpu":
        raise Unreadable(f"variable {PROFILE} is {profile!r}, which publishes no GPUs", f"set {PROFILE} to gpu")
