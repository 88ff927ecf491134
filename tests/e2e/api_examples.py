"""The objects that api_examples.yaml speaks of, as users write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from gpupartition.names import API_VERSION

EXAMPLES: Final = yaml.safe_load(Path(__file__).with_name("api_examples.yaml").read_text(encoding="utf-8"))


def named(title: str) -> str:
    return "api-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def manifest(title: str, base: str, **change: object) -> dict[str, Any]:
    """An object like the base of that name, with some fields of its spec replaced."""
    metadata = {"name": named(title)}
    kind, spec = EXAMPLES["base"][base].values()
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec | change}


def written(example: dict[str, Any]) -> dict[str, Any]:
    base = next(key for key in EXAMPLES["base"] if key in example)
    return manifest(example["title"], base, **example[base])
