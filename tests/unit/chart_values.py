"""The schema of the values of charts/gpupartition-policies, as it follows from crds/: what the API server would refuse, Helm refuses before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from pathlib import Path

PLURALS: Final = ("drivers", "policies")
NAME: Final = "^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"
SAID_ELSEWHERE: Final = frozenset({"default", "description", "format"})
"""Beside what begins with x-kubernetes-: no words of JSON Schema, or such as refuse nothing."""


def schema(crds: Path) -> str:
    """Return it as JSON, made from the CRDs of a folder."""
    values = {plural: _by_name(_spec(crds / f"gpupartition{plural}.yaml")) for plural in PLURALS}
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "description": "Made from crds/ by `make chart`; change it there.",
        **_closed({"global": {"type": "object"}, **values}),
    }
    return json.dumps(whole, indent=1) + "\n"


def _spec(crd: Path) -> dict[str, Any]:
    (version,) = yaml.safe_load(crd.read_text(encoding="utf-8"))["spec"]["versions"]
    return _json_schema(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def _by_name(spec: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {NAME: spec}, "additionalProperties": False}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _json_schema(node: dict[str, Any]) -> dict[str, Any]:
    """Say as JSON Schema what a structural schema says: what it does not name, it does not take."""
    said = {key: value for key, value in node.items() if key not in SAID_ELSEWHERE and not key.startswith("x-")}
    if node.get("x-kubernetes-int-or-string"):
        said["type"] = ["integer", "string"]
    for key in ("items", "additionalProperties"):
        if key in node:
            said[key] = _json_schema(node[key])
    if "properties" in node:
        said |= _closed({name: _json_schema(each) for name, each in node["properties"].items()})
    return said
