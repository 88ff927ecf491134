"""What ResourceClaims ask for: their requests with the alternatives of each, and what must hold between the devices of a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpupartition.domain.allocator.shares import Consumed, amount_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """So many devices of a class, for which some more is true."""

    name: str
    """As results have it: with the name of its parent, where it is one of several alternatives."""

    parent: str
    device_class: str
    selectors: Sequence[str]
    count: int | None
    """None: all that there are."""

    admin: bool
    says_admin: bool
    tolerations: Sequence[Mapping[str, Any]]
    capacity: Consumed | None
    beyond: str = ""
    """What of it is not modelled, as its feature is alpha, or unknown."""

    def tolerates(self, taint: Mapping[str, Any]) -> bool:
        """Whether a device with the taint may be allocated."""
        return is_tolerated(taint, self.tolerations)


CLOSING: Final = frozenset({"NoSchedule", "NoExecute"})
"""The effects of a taint, of a device or a node, that keep others away. An effect that is none of the two keeps nobody away."""


def is_tolerated(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the taint does not keep away whoever has these tolerations."""
    return taint.get("effect") not in CLOSING or any(tolerates(each, taint) for each in tolerations)


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a toleration is about a taint: of devices, or of nodes."""
    effect, key = toleration.get("effect"), toleration.get("key")
    if (effect and effect != taint.get("effect")) or (key and key != taint.get("key")):
        return False
    match toleration.get("operator") or "Equal":
        case "Equal":
            return (toleration.get("value") or "") == (taint.get("value") or "")
        case "Exists":
            return True
        case _:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The devices agree in an attribute, or no two of them do. `requests` are those that it is about; none of them: all."""

    attribute: str
    distinct: bool
    requests: frozenset[str]
    beyond: bool = False

    def is_about(self, request: Request) -> bool:
        """Whether devices of the request must keep to it."""
        return not self.requests or request.name in self.requests or request.parent in self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one claim asks for. Each request has alternatives, of which the first that fits is taken."""

    name: str
    requests: Sequence[Sequence[Request]]
    constraints: Sequence[Constraint]

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Claim:
        """From a ResourceClaim as the API has it, or as people write it: what is left out is what the API server puts there."""
        metadata, devices = body["metadata"], body["spec"].get("devices") or {}
        return cls(
            name=f"{metadata.get('namespace', 'default')}/{metadata['name']}",
            requests=[_alternatives(request) for request in devices.get("requests") or ()],
            constraints=[_constraint(each) for each in devices.get("constraints") or ()],
        )


def _alternatives(body: Mapping[str, Any]) -> list[Request]:
    name, several = body["name"], body.get("firstAvailable")
    if several:
        return [_request(each, f"{name}/{each['name']}", name) for each in several]
    return [_request(body["exactly"], name, "")]


def _request(body: Mapping[str, Any], name: str, parent: str) -> Request:
    mode, selectors = body.get("allocationMode") or "ExactCount", body.get("selectors") or ()
    beyond = "derived attributes" if body.get("derivedAttributes") else ""
    beyond = beyond or ("" if all(each.get("cel") for each in selectors) else "a selector that is no CEL")
    beyond = beyond or ("" if mode in {"ExactCount", "All"} else f"allocation mode {mode}")
    capacity = body.get("capacity")
    return Request(
        name=name,
        parent=parent,
        device_class=body.get("deviceClassName") or "",
        selectors=[each["cel"]["expression"] for each in selectors if each.get("cel")],
        count=None if mode == "All" else int(body.get("count") or 1),
        admin=bool(body.get("adminAccess")) and not parent,
        says_admin=body.get("adminAccess") is not None and not parent,
        tolerations=body.get("tolerations") or (),
        capacity=None
        if capacity is None
        else {k: amount_of(str(v)) for k, v in (capacity.get("requests") or {}).items()},
        beyond=beyond,
    )


def _constraint(body: Mapping[str, Any]) -> Constraint:
    match, distinct = body.get("matchAttribute"), body.get("distinctAttribute")
    return Constraint(
        attribute=match or distinct or "",
        distinct=match is None,
        requests=frozenset(body.get("requests") or ()),
        beyond=match is None and distinct is None,
    )
