"""Who wants devices: pods with their claims, and claims that no pod names, read from what the API has or people write.

A pod's claims are looked for together, on one node. A claim that is to be made from a template is read from the template; what a pod asks for
as an extended resource becomes the claim that the scheduler makes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpupartition.domain import quantity
from gpupartition.domain.objects import Object

Key = tuple[str, str]
"""Namespace and name."""

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"  # and the name of a class, which is an extended resource too
_NEVER: Final = "9999"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Ask:
    """A pod, or a claim that no pod names. `claims` are all that it needs, `pod` is its spec; `problem`: why it can get nothing."""

    kind: str
    namespace: str
    name: str
    claims: Sequence[Object] = ()
    pod: Object = field(default_factory=dict)
    created: str = ""
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def turn(self) -> tuple[int, str, str, str]:
        """When the scheduler's queue comes to it: by priority, then by age."""
        return -int(self.pod.get("priority") or 0), self.created or _NEVER, self.namespace, self.name


def key_of(body: Object) -> Key:
    """Where an object is. What nobody put anywhere is in `default`."""
    return body["metadata"].get("namespace") or "default", body["metadata"]["name"]


def results_of(claim: Object) -> Sequence[Object]:
    """The devices that a claim has."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or ()


def is_allocated(claim: Object) -> bool:
    """Whether it has its devices."""
    return bool((claim.get("status") or {}).get("allocation"))


class Desk:
    """Finds what pods name: claims, templates, and classes that are extended resources."""

    def __init__(self, claims: Iterable[Object], templates: Iterable[Object], classes: Iterable[Object]) -> None:
        self._claims: Final = {key_of(body): body for body in claims}
        self._templates: Final = {key_of(body): body for body in templates}
        self._classes: Final = _extended(classes)

    def waiting(self, pod: Object) -> Ask | None:
        """What a pod needs that no scheduler has placed yet; None when it needs no claim, or has all that it needs."""
        ask = self._ask(pod, {s["name"]: s.get("resourceClaimName") for s in _generated(pod)})
        return ask if ask.problem or not all(map(is_allocated, ask.claims)) else None

    def next_start(self, pod: Object) -> Ask:
        """What its successor will need: claims as their templates are now, and those that it shares as if they were free again."""
        ask = self._ask(pod, {})
        elsewhere = {name: value for name, value in ask.pod.items() if name != "nodeName"}
        return replace(ask, claims=[{**claim, "status": {}} for claim in ask.claims], pod=elsewhere)

    def _ask(self, pod: Object, generated: Mapping[str, str | None]) -> Ask:
        (namespace, name), spec = key_of(pod), pod.get("spec") or {}
        claims: list[Object] = []
        problem = ""
        for entry in spec.get("resourceClaims") or ():
            if entry["name"] in generated and generated[entry["name"]] is None:
                continue  # its template says that none is needed
            found, missing = self._claim(entry, namespace, name, generated.get(entry["name"]))
            claims += [found] if found is not None else []
            problem = problem or missing
        wanted = _requests(spec, self._classes)
        if wanted:
            claims.append(_claim_of(namespace, f"{name}-extended-resources", {"devices": {"requests": wanted}}))
        created = str(pod["metadata"].get("creationTimestamp") or "")
        return Ask(
            kind="Pod", namespace=namespace, name=name, claims=claims, pod=spec, created=created, problem=problem
        )

    def _claim(self, entry: Object, namespace: str, pod: str, made: str | None) -> tuple[Object | None, str]:
        named = made or entry.get("resourceClaimName")
        if named:
            found = self._claims.get((namespace, named))
            return found, "" if found is not None else f"there is no ResourceClaim {namespace}/{named}"
        template = self._templates.get((namespace, entry.get("resourceClaimTemplateName") or ""))
        if template is None:
            return None, f"there is no ResourceClaimTemplate {namespace}/{entry.get('resourceClaimTemplateName')}"
        return _claim_of(namespace, f"{pod}-{entry['name']}", template["spec"].get("spec") or {}), ""


def alone(claim: Object) -> Ask:
    """A claim that no pod names, as if one came that needs nothing else."""
    namespace, name = key_of(claim)
    created = str(claim["metadata"].get("creationTimestamp") or "")
    return Ask(kind="ResourceClaim", namespace=namespace, name=name, claims=[{**claim, "status": {}}], created=created)


def waiting(pods: Iterable[Object], claims: Sequence[Object], desk: Desk) -> list[Ask]:
    """All who wait for devices: pods that are on no node yet, and claims without devices that nobody names."""
    found: list[Ask] = []
    named: set[Key] = set()
    for pod in pods:
        namespace, _ = key_of(pod)
        entries = [*((pod.get("spec") or {}).get("resourceClaims") or ()), *_generated(pod)]
        named |= {(namespace, entry["resourceClaimName"]) for entry in entries if entry.get("resourceClaimName")}
        if is_waiting(pod) and (ask := desk.waiting(pod)) is not None:
            found.append(ask)
    unnamed = (c for c in claims if not is_allocated(c) and key_of(c) not in named and _lives(c))
    return [*found, *map(alone, unnamed)]


def is_waiting(pod: Object) -> bool:
    """Whether a scheduler still has to find a node for it."""
    placed = (pod.get("spec") or {}).get("nodeName")
    return not placed and (pod.get("status") or {}).get("phase", "Pending") == "Pending" and _lives(pod)


def _lives(body: Object) -> bool:
    return "deletionTimestamp" not in body["metadata"]


def _generated(pod: Object) -> Sequence[Object]:
    return (pod.get("status") or {}).get("resourceClaimStatuses") or ()


def _claim_of(namespace: str, name: str, spec: Object) -> Object:
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def _extended(classes: Iterable[Object]) -> Mapping[str, str]:
    """The class of each extended resource. Of several classes with one name the youngest has it, and of those the first by name."""
    known = sorted(classes, key=lambda each: str(each["metadata"]["name"]), reverse=True)
    found = {f"{IMPLICIT}{body['metadata']['name']}": str(body["metadata"]["name"]) for body in known}
    for body in sorted(known, key=lambda each: str(each["metadata"].get("creationTimestamp") or "")):
        if resource := body["spec"].get("extendedResourceName"):
            found[resource] = body["metadata"]["name"]
    return found


def _requests(pod: Object, classes: Mapping[str, str]) -> list[Object]:
    """What the pod asks for as extended resources that are classes. Containers that begin one after the other have devices in turn."""
    containers, first = pod.get("containers") or (), pod.get("initContainers") or ()
    beside = Counter[str]()
    for container in (*containers, *(c for c in first if c.get("restartPolicy") == "Always")):
        beside.update(_counts(container, classes))
    for container in first:
        beside |= _counts(container, classes)  # the larger of the two
    return [
        {"name": f"r{number}", "exactly": {"deviceClassName": name, "count": count}}
        for number, (name, count) in enumerate(sorted(beside.items()))
    ]


def _counts(container: Object, classes: Mapping[str, str]) -> Counter[str]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter(
        {classes[name]: count for name, text in asked.items() if name in classes and (count := _count(text))}
    )


def _count(text: Any) -> int:
    try:
        return quantity.parse(str(text))
    except ValueError:
        return 0
