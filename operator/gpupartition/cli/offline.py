"""What an API server would refuse of a driver or a policy, said without one: the schemas and rules are those of the CRDs."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from pydantic import TypeAdapter

from gpupartition.api import crd, v1alpha1
from gpupartition.domain import cel
from gpupartition.domain.yaml_text import short

Schema = Mapping[str, Any]
Found = Iterator[tuple[str, str]]  # the path of what is wrong, "" for the object, and a sentence

KINDS: Final[Mapping[str, crd.Kind]] = {kind.kind: kind for kind in crd.KINDS if kind.subresource}  # that people write

MOST: Final = 100  # things wrong with one object that are told: whoever has more goes on from there

_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA: Final = {  # that the API server checks of every object, as far as anything is planned with it
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": TypeAdapter(v1alpha1.Subdomain).json_schema(),
        "labels": _TEXTS,
        "annotations": _TEXTS,
    },
    "x-kubernetes-preserve-unknown-fields": True,
}

_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "object": ((dict,), "a map"),
    "array": ((list,), "a list"),
    "string": ((str,), "a text, in quotes"),
    "integer": ((int,), "a whole number, without quotes"),
    "boolean": ((bool,), "true or false, without quotes"),
    "int-or-string": ((int, str), "a whole number, or a text"),
}
_BOUNDS: Final[Mapping[str, tuple[Callable[[int, int], bool], str]]] = {
    "minimum": (operator.ge, "write at least {}"),
    "maximum": (operator.le, "write at most {}"),
    "minLength": (operator.ge, "write at least {} characters"),
    "maxLength": (operator.le, "write at most {} characters"),
    "minItems": (operator.ge, "list at least {}"),
    "maxItems": (operator.le, "list at most {}"),
    "minProperties": (operator.ge, "write at least {} entries"),
    "maxProperties": (operator.le, "write at most {} entries"),
}


def refused(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with an object of one of KINDS, by path; MOST of it. Rules are asked only when the form is right, as they rely on it."""
    written = {name: value for name, value in body.items() if name != "status"}  # which only the operator writes
    schema = _schema(body["kind"])
    return list(islice(misshapen(written, schema, ""), MOST)) or list(_against_rules(written, schema, ""))


@lru_cache
def _schema(kind: str) -> Schema:
    whole: Schema = crd.crd(KINDS[kind])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return {**whole, "required": ["metadata", "spec"], "properties": {**whole["properties"], "metadata": METADATA}}


def _below(value: Any, schema: Schema, at: str) -> Iterator[tuple[Any, Schema, str]]:
    """What the value has in it, each with its schema and path."""
    for name, field in schema.get("properties", {}).items():
        if name in value:
            yield value[name], field, f"{at}.{name}".removeprefix(".")
    if (field := schema.get("additionalProperties")) is not None:
        yield from ((each, field, f"{at}[{short(name)}]") for name, each in value.items())
    if (field := schema.get("items")) is not None:
        yield from ((each, field, f"{at}[{place}]") for place, each in enumerate(value))


def misshapen(value: Any, schema: Schema, at: str) -> Found:
    """What of a value is not as the schema has it, by path."""
    types, wanted = _TYPES[schema.get("type", "int-or-string")]
    if type(value) not in types:
        yield at, f"write {wanted}{_shown(value)}"
        return
    size = value if isinstance(value, int) else len(value)
    beyond = [
        says.format(schema[b]) for b, (holds, says) in _BOUNDS.items() if b in schema and not holds(size, schema[b])
    ]
    if beyond:  # and what is too long is not gone through: it may be longer than anybody waits
        yield at, f"{beyond[0]}{_shown(value)}"
        return
    if value not in schema.get("enum", [value]):
        yield at, f"write {_or(schema['enum'])}{_shown(value)}"
    if "pattern" in schema and not cel.matches(value, schema["pattern"]):
        yield at, f"has to match {schema['pattern']}{_shown(value)}"
    yield from _wrong_members(value, schema, at)
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        names = [item.get(key) for item in value if isinstance(item, dict)]
        yield from (
            (f"{at}[{n}].{key}", f"{short(str(name))} is there already")
            for n, name in enumerate(names)
            if name in names[:n]
        )
    for each in _below(value, schema, at):
        yield from misshapen(*each)


def _wrong_members(value: Any, schema: Schema, at: str) -> Found:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            about = known[name].get("description", "").split(". ")[0].rstrip(".")
            yield f"{at}.{name}".removeprefix("."), f"is missing{about and f': {about}'}"
    if known and not schema.get("x-kubernetes-preserve-unknown-fields"):
        for name in value:
            if name not in known:
                yield f"{at}.{short(name)}".removeprefix("."), f"there is no such field; write {_or(sorted(known))}"


def _against_rules(value: Any, schema: Schema, at: str) -> Found:
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"] or cel.function(rule["rule"])(value):
            continue  # what never changes cannot be wrong in what is new
        says = rule.get("message") or cel.function(rule["messageExpression"])(value)
        yield f"{at}{rule.get('fieldPath', '')}", f"{says}{_shown(value)}"
    for each in _below(value, schema, at):
        yield from _against_rules(*each)


def _shown(value: Any) -> str:
    return "" if isinstance(value, dict | list) else f" (it is {short(json.dumps(value, ensure_ascii=False))})"


def _or(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
