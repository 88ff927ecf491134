"""Which devices a CEL selector of a claim or a DeviceClass means: its language with the variable `device`.

Follows k8s.io/dynamic-resource-allocation/cel. Costs are not counted, and types not checked beforehand: the API server did both before it
stored the expression.

Of a device that is not published yet some things may not be known. What is asked of those is an error like any other, which does not matter
where the rest decides; where it does, nobody can say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol, cast

from celpy.celtypes import BoolType, IntType, ListType, MapType, StringType
from celpy.evaluation import CELEvalError, CELSyntaxError, CELUnsupportedError

from gpupartition.domain.allocator.language import Domains, Open, compiled
from gpupartition.domain.allocator.semver import Semver
from gpupartition.domain.quantity import exact

UNKNOWN: Final = "unknown"
"""What no API has: in the entry of a device that is not published yet, of which of its `attributes` and `capacity` some may be missing."""


class Unknown(Exception):  # noqa: N818 - no error, but an answer
    """Nobody can say: what is asked of a device is not known of it yet, or is asked in words that are not read here."""


class Selectable(Hashable, Protocol):
    """A device as its slice has it, equal only to itself: what was asked of it is remembered."""

    @property
    def driver(self) -> str:
        """Whose device it is: the domain of what has none."""

    @property
    def body(self) -> Mapping[str, Any]:
        """The entry of `spec.devices`."""


@lru_cache(maxsize=1 << 17)  # as many devices as a large cluster has, each asked by a class and a claim
def selects(expression: str, device: Selectable) -> bool:
    """Whether the expression is true of the device.

    Raises ValueError for what is no CEL, cannot be asked of this device, or is neither true nor false: the scheduler gives up the pod then.
    Raises Unknown where that depends on what is not known of the device, or on a function that Kubernetes may have and this has not.
    """
    looked_at, body, driver = _looks_at(expression), device.body, device.driver
    if looked_at is None or not all(
        value.keys() <= _ATTRIBUTES.keys() for value in body.get("attributes", {}).values()
    ):
        return _answer(expression, device)
    seen = tuple(
        str(of.get(f"{domain}/{name}") or (of.get(name) if domain == driver else None))
        for field, domain, name in looked_at
        for of in (body.get(field, {}),)
    )
    return _alike(expression, driver, seen, _Like(device, body.get("allowMultipleAllocations", False)))


class _Like:
    """A device in the place of all that are like it in what an expression looks at."""

    def __init__(self, device: Selectable, shared: bool) -> None:
        self.device = device
        self._alike = shared, tuple(device.body.get(UNKNOWN, ()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Like) and self._alike == other._alike

    def __hash__(self) -> int:
        return hash(self._alike)


@lru_cache(maxsize=1 << 14)  # the devices of a fleet are much alike
def _alike(expression: str, driver: str, seen: tuple[str, ...], device: _Like) -> bool:  # noqa: ARG001 - it tells devices apart
    return _answer(expression, device.device)


def _answer(expression: str, device: Selectable) -> bool:
    name = device.body["name"]
    try:
        answer = compiled(expression).evaluate(_variables(device))
    except CELEvalError as error:
        why = str(error.args[0])
        if why.startswith("undeclared reference"):
            raise Unknown(f"{expression!r} has what is not read here: {why}") from None
        if device.body.get(UNKNOWN):
            raise Unknown(f"{expression!r} asks what is not known of device {name}") from None
        raise ValueError(f"{expression!r} cannot be asked of device {name}: {why}") from None
    except (CELSyntaxError, CELUnsupportedError, RecursionError) as error:
        raise Unknown(f"{expression!r} has what is not read here: {error.args[0]}") from None
    if not isinstance(answer, BoolType):
        raise ValueError(  # noqa: TRY004 - what is wrong is what was written
            f"{expression!r} is neither true nor false when it is asked of device {name}, but {answer!r}"
        )
    return bool(answer)


_STRING: Final = r"""(?:"[^"\\]*"|'[^'\\]*')"""
_LOOK: Final = re.compile(
    rf"""device\s*\.\s*(?:driver|allowMultipleAllocations)\b
    |(?:(?<![\w"'])(?P<asked>{_STRING})\s+in\s+)?
     device\s*\.\s*(?P<field>attributes|capacity)\s*\[\s*(?P<domain>{_STRING})\s*\]
     (?(asked)(?!\s*[.\[])|\s*(?:\.\s*\??\s*(?P<name>[_a-zA-Z]\w*)(?!\s*\(|\w)|\[\s*\??\s*(?P<key>{_STRING})\s*\]))""",
    re.VERBOSE,
)


@lru_cache(maxsize=1024)
def _looks_at(expression: str) -> tuple[tuple[str, str, str], ...] | None:
    """All that it looks at of a device, beside its driver and whether it is shared: field, domain, name. None where that is not plain."""
    looks = list(_LOOK.finditer(expression))
    if len(looks) != len(re.findall(r"\bdevice\b", expression)):
        return None
    named = (
        (look["field"], look["domain"][1:-1], look["name"] or (look["key"] or look["asked"])[1:-1])
        for look in looks
        if look["field"]
    )
    return tuple(sorted(set(named)))


# What an expression is asked of.


@lru_cache(maxsize=4096)  # several expressions ask one device after the other
def _variables(device: Selectable) -> dict[str, Any]:
    attributes, capacity = (
        Open(Open) if field in device.body.get(UNKNOWN, ()) else Domains() for field in ("attributes", "capacity")
    )
    for name, value in device.body.get("attributes", {}).items():
        _put(attributes, device.driver, name, _attribute(name, value))
    for name, value in device.body.get("capacity", {}).items():
        _put(capacity, device.driver, name, exact(str(value["value"])))
    about = {
        "driver": StringType(device.driver),
        "allowMultipleAllocations": BoolType(bool(device.body.get("allowMultipleAllocations", False))),
        "attributes": attributes,
        "capacity": capacity,
    }
    return {
        "device": MapType({StringType(name): value for name, value in about.items()}),
        "optional": StringType("optional"),
    }


def _put(domains: MapType, driver: str, name: str, value: Any) -> None:
    domain, _, own = name.rpartition("/")
    inside: Any = domains.setdefault(
        StringType(domain or driver), type(domains)() if isinstance(domains, Open) else MapType()
    )
    inside[StringType(own)] = value


_ATTRIBUTES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "ints": lambda values: ListType(map(IntType, values)),
    "bools": lambda values: ListType(map(BoolType, values)),
    "strings": lambda values: ListType(map(StringType, values)),
    "versions": lambda values: ListType(cast("Any", [Semver.parse(value) for value in values])),
    "int": IntType,
    "bool": BoolType,
    "string": StringType,
    "version": Semver.parse,
}


def _attribute(name: str, value: Mapping[str, Any]) -> Any:
    for kind, read in _ATTRIBUTES.items():
        if kind in value:
            return read(value[kind])
    raise ValueError(
        f"attribute {name} has no value that is known here: {dict(value)!r}; it has one of {', '.join(_ATTRIBUTES)}"
    )
