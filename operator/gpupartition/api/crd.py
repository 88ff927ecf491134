"""Make the CRDs from the models: `python -m gpupartition.api.crd [directory]` writes one file per kind.

Pydantic speaks JSON Schema 2020-12; the API server takes a "structural" subset of OpenAPI v3: no references, no unions, types everywhere.
Two things are decided here. Optional means absent, never null. And no default stands inside a list: tools that compare a list in a
manifest with the cluster's as one value (Argo CD, client-side apply) would see a filled-in default as a difference for ever. There the
models fill it in when they read.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpupartition.api import rules, v1alpha1
from gpupartition.names import GROUP, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED: Final = ("title", "propertyNames", "default", "additionalProperties")
_KEPT: Final = (bool, int, str)  # defaults worth writing down: an empty list, map or text says no more than its absence


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; `wide` ones are shown with -o wide only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def schema(self) -> Schema:
        """Return the column as the CRD has it."""
        column = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return column | ({"priority": 1} if self.wide else {})


def _ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of our group: its names, its models, and what `kubectl get` prints. `subresource`: status is written by itself."""

    kind: str
    plural: str
    short: str
    about: str
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    subresource: bool = True


KINDS: Final = (
    Kind(
        "GpuPartitionDriver",
        "gpupartitiondrivers",
        "gpd",
        "How GPUs are driven, and what all policies together may cost. Written once, like a StorageClass; policies name it.",
        v1alpha1.DriverSpec,
        v1alpha1.DriverStatus,
        (
            Column("Type", ".spec.type"),
            Column("Ready", _ready("status")),
            Column("Status", _ready("reason")),
            Column("Max-Unavailable", ".spec.maxUnavailable"),
            _AGE,
            Column("Message", _ready("message"), wide=True),
        ),
    ),
    Kind(
        "GpuPartitionPolicy",
        "gpupartitionpolicies",
        "gpp",
        "How the GPUs of the selected nodes shall be partitioned. The operator gets the nodes there one by one, and takes no GPU from anybody.",
        v1alpha1.PolicySpec,
        v1alpha1.PolicyStatus,
        (
            Column("Ready", _ready("status")),
            Column("Status", _ready("reason")),
            Column("Progress", ".status.progress"),
            Column("Failed", ".status.nodes.failed", "integer"),
            Column("Blocked", ".status.nodes.blocked", "integer"),
            Column("Suspended", ".status.suspended.reason"),
            Column("Revision", ".status.revision"),
            _AGE,
            Column("Message", _ready("message"), wide=True),
        ),
    ),
    Kind(
        "GpuPartitionNodeState",
        "gpupartitionnodestates",
        "gpn",
        "The operator's record of one node, which has the same name. Read it to see where the node is and why; only the operator writes it.",
        v1alpha1.NodeStateSpec,
        v1alpha1.NodeStateStatus,
        (
            Column("Policy", ".spec.policyRef.name"),
            Column("Phase", ".status.phase"),
            Column("Target", ".status.target.fingerprint"),
            Column("Reason", ".status.reason"),
            Column("Since", ".status.since", "date"),
            Column("Message", ".status.message", wide=True),
        ),
        subresource=False,
    ),
)


def structural(node: Schema, defs: Schema, *, defaults: bool) -> Schema:
    """Rewrite a JSON schema of pydantic's as a structural one; `defaults`: whether it may have any. Raises ValueError for what has none."""
    schema = dict(node)
    if ref := schema.pop("$ref", None):
        schema = {
            **defs[ref.removeprefix("#/$defs/")],
            **schema,
        }  # what stands at the field wins over what stands at its type
    if choices := schema.pop("anyOf", None):
        schema = {**_one_of(choices), **schema}
    if "$ref" in schema:
        return structural(schema, defs, defaults=defaults)
    if "prefixItems" in schema or "oneOf" in schema:
        msg = f"no structural schema says this: {schema}"
        raise ValueError(msg)

    made: Schema = {}
    if text := schema.pop("description", ""):
        made["description"] = " ".join(text.split("\n\n")[0].split())
    if kind := schema.pop("type", None):
        made["type"] = kind
    if defaults:
        made |= _default(schema)
    if kind == "integer":
        made["format"] = "int64" if schema.get("maximum", 2**63) >= 2**31 else "int32"
    if kind == "array":
        made |= {"x-kubernetes-list-type": "atomic", "items": structural(schema.pop("items"), defs, defaults=False)}
    if (properties := schema.pop("properties", None)) is not None:
        made["properties"] = {name: structural(value, defs, defaults=defaults) for name, value in properties.items()}
    elif isinstance(values := schema.get("additionalProperties"), dict):
        made["additionalProperties"] = structural(values, defs, defaults=False)
    return made | {key: value for key, value in schema.items() if key not in _DROPPED}


def _default(schema: Schema) -> Schema:
    """Return a field's default, if it is worth writing down."""
    if schema.get("default") is None:
        return {}
    default = schema["default"]
    if any("default" in member for member in schema.get("properties", {}).values()):
        return {"default": {}}  # the members' own defaults fill it
    return {"default": default} if isinstance(default, _KEPT) and default != "" else {}


def _one_of(choices: list[Schema]) -> Schema:
    """Return what a union comes to: X or null is X, and an int or a string has a word of its own."""
    rest = [choice for choice in choices if choice.get("type") != "null"]
    if len(rest) == 1:
        return rest[0]
    if {choice.get("type") for choice in rest} == {"integer", "string"}:
        return {"x-kubernetes-int-or-string": True}
    msg = f"no structural schema says this: {choices}"
    raise ValueError(msg)


def _schema(model: type[BaseModel], *, defaults: bool) -> Schema:
    schema = model.model_json_schema(by_alias=True)
    return structural(
        {key: value for key, value in schema.items() if key != "$defs"}, schema.get("$defs", {}), defaults=defaults
    )


def crd(kind: Kind) -> Schema:
    """Return the CustomResourceDefinition of a kind."""
    status = _schema(kind.status, defaults=False)
    if kind.subresource:  # so that a new object is never taken for one that is done
        status = {"default": {"observedGeneration": -1}, **status}
    schema = {
        "description": kind.about,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _schema(kind.spec, defaults=True),
            "status": status,
        },
    }
    if kind.subresource:
        schema |= rules.checks(rules.NAME_FITS_LABEL)
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [column.schema() for column in kind.columns],
        "schema": {"openAPIV3Schema": schema},
    }
    if kind.subresource:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short],
                "categories": ["gpu"],
            },
            "versions": [version],
        },
    }


def lacking(kind: Kind, served: Schema) -> Iterator[str]:
    """Paths of fields, such as `spec.layouts[].name`, that a kind has and its schema as it is served lacks; of nested ones the outermost."""
    return _lacking(crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"], served, "")


def _lacking(ours: Schema, served: Schema, at: str) -> Iterator[str]:
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in ours:
            yield from _lacking(ours[key], served.get(key, {}), at + mark)
    for name, field in ours.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        if name in served.get("properties", {}):
            yield from _lacking(field, served["properties"][name], path)
        else:
            yield path


def files() -> dict[str, str]:
    """Return the CRDs as YAML by file name."""
    head = "# Made from operator/gpupartition/api by `make crds`; change it there.\n"
    return {f"{kind.plural}.yaml": head + yaml.safe_dump(crd(kind), sort_keys=False, width=120) for kind in KINDS}


def main(directory: str = "crds") -> None:
    """Write the CRDs into a directory."""
    folder = Path(directory)
    folder.mkdir(exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
