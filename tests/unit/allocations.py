"""Slices, classes and claims as the API has them, and what the allocator gives to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpupartition.domain.allocator.allocate import Allocator, Answer
from gpupartition.domain.allocator.pools import Features
from gpupartition.domain.allocator.shares import Held

Body = dict[str, Any]
GPU: Final = "gpu.example.com"
NODE: Final = {"metadata": {"name": "n1", "labels": {"zone": "a", "rank": "2"}}}
ANY: Final = {"metadata": {"name": "any"}, "spec": {}}
OURS: Final = {
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{GPU}"'}}]},
}
HERE: Final = {"nodeName": "n1"}


def of(
    name: str, *specs: Body, driver: str = GPU, generation: int = 1, count: int | None = None, at: Body = HERE
) -> list[Body]:
    """The slices of a pool; each spec has devices or shared counters, and may say from where it can be used."""
    pool = {"name": name, "generation": generation, "resourceSliceCount": len(specs) if count is None else count}
    return [
        {"metadata": {"name": f"{name}-{generation}-{number}"}, "spec": {"driver": driver, "pool": pool, **at, **spec}}
        for number, spec in enumerate(specs)
    ]


def devices(*them: str | Body, **more: Any) -> Body:
    return {"devices": [{"name": each} if isinstance(each, str) else each for each in them], **more}


def counters(**sets: Mapping[str, str]) -> Body:
    return {
        "sharedCounters": [
            {"name": name, "counters": {c: {"value": v} for c, v in of_it.items()}} for name, of_it in sets.items()
        ]
    }


def device(name: str, *, costs: Mapping[str, str] | None = None, **more: Any) -> Body:
    """`costs` are of the counter set `gpu`."""
    drawn = (
        {"consumesCounters": [{"counterSet": "gpu", "counters": {k: {"value": v} for k, v in costs.items()}}]}
        if costs
        else {}
    )
    return {"name": name, **drawn, **more}


def shared(name: str, memory: str, policy: Body | None = None, **more: Any) -> Body:
    capacity = {"memory": {"value": memory, **({"requestPolicy": policy} if policy else {})}}
    return device(name, allowMultipleAllocations=True, capacity=capacity, **more)


def ask(name: str = "r", *, of_class: str = "gpu", **more: Any) -> Body:
    return {"name": name, "exactly": {"deviceClassName": of_class, **more}}


def one_of(name: str, *alternatives: Body) -> Body:
    return {
        "name": name,
        "firstAvailable": [{"deviceClassName": "gpu", "name": f"a{n}", **each} for n, each in enumerate(alternatives)],
    }


def claim(*requests: Body, name: str = "c", constraints: Sequence[Body] = ()) -> Body:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": list(requests), "constraints": list(constraints)}},
    }


def holds(*names: str, pool: str = "p", share: str = "", admin: bool = False, **consumed: str) -> Body:
    extra = ({"shareID": share, "consumedCapacity": consumed} if share else {}) | (
        {"adminAccess": True} if admin else {}
    )
    results = [{"request": "r", "driver": GPU, "pool": pool, "device": name, **extra} for name in names]
    return {"metadata": {"name": "held"}, "status": {"allocation": {"devices": {"results": results}}}}


def asked(
    slices: Sequence[Body],
    *claims: Body,
    held: Sequence[Body] = (),
    features: Features | None = None,
    classes: Sequence[Body] = (ANY, OURS),
) -> Answer:
    return Allocator(slices, classes, Held.read(held), features).allocate(NODE, claims)


def got(slices: Sequence[Body], *claims: Body, **more: Any) -> list[list[str]] | None:
    """The names of the devices that each claim gets, or None."""
    answer = asked(slices, *claims, **more).claims
    return None if answer is None else [[result.id[2] for result in each.results] for each in answer]


def cel(expression: str) -> list[Body]:
    return [{"cel": {"expression": expression}}]
