"""Taints of DeviceTaintRules, laid over the slices that they are about, as the scheduler does before it looks at any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpupartition.domain.objects import Object


def tainted(slices: Iterable[Object], rules: Iterable[Object]) -> Iterator[Object]:
    """The slices with all taints. A rule without a selector is about nothing, one with an empty selector about all devices."""
    about = [
        (rule["spec"]["deviceSelector"], rule["spec"]["taint"])
        for rule in rules
        if rule["spec"].get("deviceSelector") is not None
    ]
    for body in slices:
        spec = body["spec"]
        names = {"driver": spec["driver"], "pool": spec["pool"]["name"]}
        mine = [(chosen, taint) for chosen, taint in about if all(chosen.get(k, v) == v for k, v in names.items())]
        if not mine or not spec.get("devices"):
            yield body
            continue
        yield {**body, "spec": {**spec, "devices": [_with(device, mine) for device in spec["devices"]]}}


def _with(device: Object, rules: Sequence[tuple[Object, Object]]) -> Object:
    more = [taint for chosen, taint in rules if chosen.get("device", device["name"]) == device["name"]]
    return {**device, "taints": [*(device.get("taints") or ()), *more]} if more else device
