"""Objects of the API as the domain has them, and their text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

Object = Mapping[str, Any]
"""As it was read: nobody writes into it."""


def controller_of(thing: Object) -> Mapping[str, Any]:
    """The one of its owners that makes and replaces it, such as a pod's DaemonSet; {} where there is none."""
    owners = thing["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), {})


def as_text(value: Any) -> str:
    """As JSON with its keys in order: what is equal is the same text."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # numbers beyond 64 bits, halves of characters: only in what somebody made up
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
