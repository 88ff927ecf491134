"""What makes two configs the same: a canonical form, and its SHA-256.

Names and labels carry the first 16 hex digits, the annotation `gpupartition.dev/fingerprint` the whole hash. A fingerprint is for ever:
a change of the canonical form would move every node, so the golden fingerprints in the tests are kept release by release.

Canonical form: quantities as integers (1024Mi = 1Gi), maps sorted, lists in their order (the order of devices has a meaning).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from gpupartition.domain import quantity
from gpupartition.domain.pool import FLEET, Device, Pool

Json = Mapping[str, Any] | Sequence[Any] | str | int | float | bool | None

SHORT: Final = 16
"""Hex digits: 64 bits never collide among the few layouts of a cluster, and the whole hash is compared on use."""


def digest(canonical: Json) -> str:
    """The whole hash (64 hex digits) of a canonical form."""
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def as_json(value: Any) -> Json:
    """What a person wrote in YAML, in JSON's terms: it has dates, and keys that are no texts, which JSON has not."""
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def short(whole: str) -> str:
    """The part of the whole hash that stands in names and labels."""
    return whole[:SHORT]


@lru_cache(maxsize=FLEET)
def of_pool(pool: Pool) -> str:
    """The whole hash of what a pool offers, however it is split into slices and whatever its generation."""
    return digest({"devices": [_device(d) for d in pool.devices], "counters": pool.counters})


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "capacity": device.capacity,
        "costs": device.costs,
        "shared": device.shared,
        "attributes": device.attributes,
        "policy": {name: quantities(policy) for name, policy in device.request_policy.items()},
    } | ({"place": device.place} if device.place else {})


def quantities(value: Json) -> Json:
    """The same structure with every string read as a quantity: for request policies, which consist of nothing else."""
    if isinstance(value, Mapping):
        return {name: quantities(each) for name, each in value.items()}
    if isinstance(value, list):
        return [quantities(each) for each in value]
    return quantity.capped(str(value))
