"""Laws of what the allocator gives away, whatever there is and whatever is asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.properties.allocations import Body, Case, case, ours

from gpupartition.domain.allocator.allocate import Allocated, Allocator
from gpupartition.domain.allocator.claims import Claim
from gpupartition.domain.allocator.places import Node
from gpupartition.domain.allocator.pools import Features, Pool, Slices, gather
from gpupartition.domain.allocator.search import Result
from gpupartition.domain.allocator.shares import Held
from gpupartition.domain.allocator.wanted import GivenUp
from gpupartition.domain.cel import program

program(
    "true", {}
)  # the library raises the limit of recursion when it is first used, which hypothesis does not like half-way

cases = st.integers(min_value=0, max_value=1 << 32).map(lambda seed: case(Random(seed)))  # noqa: S311 - cases, no keys


def _asked(asked: Case) -> tuple[Features, Held, Sequence[Allocated]]:
    """What is given, or nothing."""
    features = Features(**asked["features"])
    held = Held.read(asked["allocated"], consumable_capacity=features.consumable_capacity)
    try:
        answer = Allocator(asked["slices"], asked["classes"], held, features).allocate(asked["node"], asked["claims"])
    except GivenUp:
        return features, held, ()
    return features, held, answer.claims or ()


def _results(claims: Sequence[Allocated]) -> list[Result]:
    return [result for claim in claims for result in claim.results]


def _pools(asked: Case, features: Features) -> list[Pool]:
    return gather(Slices(asked["slices"]), Node.read(asked["node"]), features)


@given(cases)
def test_a_device_is_given_once_unless_it_is_shared_or_only_looked_at(asked: Case) -> None:
    _, held, claims = _asked(asked)
    alone = [result.id for result in _results(claims) if not result.admin and result.consumed is None]
    assert len(alone) == len(set(alone))
    assert not held.alone & {result.id for result in _results(claims) if not result.admin}
    for claim in claims:
        own = [result.id for result in claim.results if result.consumed is None]
        assert len(own) == len(set(own))


@given(cases)
def test_no_counter_is_ever_overdrawn(asked: Case) -> None:
    features, held, claims = _asked(asked)
    given_now = {result.id for result in _results(claims)}
    if not features.partitionable_devices:
        assert not any(result.device.costs for result in _results(claims))
        return
    for pool in _pools(asked, features):
        left = dict(pool.counters)
        drawing = [device for device in (*pool.devices, *pool.elsewhere) if device.id in given_now or device.id in held]
        for device in drawing:
            for counter, cost in device.costs.items():
                left[counter] -= cost
        if any(device.costs for device in drawing if device.id in given_now and device.id not in held.shared):
            assert all(amount >= 0 for amount in left.values()), (pool.id, left)


@given(cases)
def test_shares_never_come_to_more_than_the_device_has(asked: Case) -> None:
    _, held, claims = _asked(asked)
    total: dict[Any, dict[str, Any]] = defaultdict(lambda: defaultdict(int))
    for result in _results(claims):
        if result.consumed is not None:
            for name, amount in result.consumed.items():
                total[result.device][name] += amount
    for device, amounts in total.items():
        for name, amount in amounts.items():
            assert amount + held.shared.get(device.id, {}).get(name, 0) <= device.capacity[name].value


@given(cases)
def test_each_request_gets_what_it_asks_for_and_constraints_hold(asked: Case) -> None:
    _, _, claims = _asked(asked)
    for body, allocated in zip(asked["claims"], claims, strict=False):
        claim, by_request = Claim.read(body), defaultdict(list)
        for result in allocated.results:
            by_request[result.request].append(result)
        for alternatives in claim.requests:
            (chosen,) = [each for each in alternatives if each.name in by_request]
            assert chosen.count is None or len(by_request[chosen.name]) == chosen.count
            for constraint in claim.constraints:
                if constraint.is_about(chosen):
                    values = [result.device.attribute(constraint.attribute) for result in by_request[chosen.name]]
                    assert None not in values
                    assert len(set(values)) == (len(values) if constraint.distinct else 1)
        assert len(allocated.results) <= 32


@given(cases)
def test_what_was_given_is_not_given_again(asked: Case) -> None:
    features, _, claims = _asked(asked)
    later = deepcopy(asked)
    later["allocated"] += [_holding(claim, number) for number, claim in enumerate(claims)]
    again = _asked(later)[2]
    alone = {result.id for result in _results(claims) if not result.admin and result.consumed is None}
    assert not alone & {result.id for result in _results(again) if not result.admin}
    assert Held.read(later["allocated"], consumable_capacity=features.consumable_capacity).alone >= alone


def _holding(claim: Allocated, number: int) -> Body:
    results: list[Body] = []
    for index, result in enumerate(claim.results):
        driver, pool, device = result.id
        body: Body = {"request": result.request, "driver": driver, "pool": pool, "device": device}
        if result.admin:
            body["adminAccess"] = True
        if result.consumed is not None:
            consumed = {name: f"{int(amount * 10**9)}n" for name, amount in result.consumed.items()}
            body |= {"shareID": f"share-{number}-{index}", "consumedCapacity": consumed}
        results.append(body)
    return {"metadata": {"name": f"given-{number}"}, "status": {"allocation": {"devices": {"results": results}}}}


@given(cases)
def test_the_same_question_has_the_same_answer(asked: Case) -> None:
    assert ours(asked) == ours(deepcopy(asked))
