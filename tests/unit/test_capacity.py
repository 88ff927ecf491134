"""Capacity counts what is published and what of it is taken, by profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpupartition.api.v1alpha1 import PolicyStatus, ProfileCapacity
from gpupartition.domain.capacity import MOST, by_profile, profiles_of, stock_of

if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVER = "gpu.example.com"


def published(pool: str, **devices: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"pool": {"name": pool}, "devices": [{"name": n, **d} for n, d in devices.items()]}}


def profile(name: str) -> dict[str, Any]:
    return {"attributes": {"profile": {"string": name}}, "capacity": {"memory": {"value": "40Gi"}}}


def memory(amount: str) -> dict[str, Any]:
    return {"capacity": {"memory": {"value": amount}}}


def taken(pool: str, *devices: str, driver: str = DRIVER) -> dict[str, Any]:
    results = [{"driver": driver, "pool": pool, "device": d} for d in devices]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def offered(*slices: dict[str, Any]) -> list[tuple[str, Mapping[str, str]]]:
    return [(body["spec"]["pool"]["name"], profiles_of(body["spec"]["devices"])) for body in slices]


def count(slices: list[dict[str, Any]], *claims: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(c.profile, c.total, c.allocated) for c in by_profile([stock_of(offered(*slices), claims, driver=DRIVER)])]


def test_devices_are_counted_by_the_profile_that_they_publish() -> None:
    slices = [published("a", one=profile("3g"), two=profile("1g")), published("b", one=profile("3g"))]
    assert count(slices, taken("a", "one")) == [("1g", 1, 0), ("3g", 2, 1)]


def test_a_device_without_a_profile_is_called_by_its_memory() -> None:
    assert count([published("a", one=memory("40Gi"), two=memory("40960Mi"))]) == [("40Gi", 2, 0)]


def test_a_device_of_which_nothing_is_known_is_a_device() -> None:
    assert count([published("a", one={})]) == [("device", 1, 0)]


def test_a_shared_device_counts_once_however_many_claims_have_it() -> None:
    assert count([published("a", one=profile("1g"))], taken("a", "one"), taken("a", "one")) == [("1g", 1, 1)]


def test_the_same_device_name_on_two_nodes_is_two_devices() -> None:
    slices = [published("a", one=profile("1g")), published("b", one=profile("1g"))]
    assert count(slices, taken("a", "one"), taken("b", "one")) == [("1g", 2, 2)]


def test_devices_of_others_and_devices_that_are_gone_are_not_counted() -> None:
    slices = [published("a", one=profile("1g"))]
    assert count(slices, taken("a", "gone"), taken("c", "one"), taken("a", "one", driver="net")) == [("1g", 1, 0)]


def test_a_claim_without_devices_takes_nothing() -> None:
    assert count([published("a", one=profile("1g"))], {"status": {"allocation": {}}}) == [("1g", 1, 0)]


@pytest.mark.parametrize("count", [MOST, MOST + 1, 1000])
def test_of_more_profiles_than_a_status_may_name_the_others_are_counted_together(count: int) -> None:
    many = published("a", **{f"d{i:03}": profile(f"p{i:03}") for i in range(count)})
    found = by_profile([stock_of(offered(many), [taken("a", f"d{count - 1}")], driver=DRIVER)])
    assert PolicyStatus(capacity=found).capacity[0] == ProfileCapacity(profile="p000", total=1, allocated=0)
    assert len(found) == MOST
    assert (sum(c.total for c in found), found[-1].allocated) == (count, 1)
    assert found[-1].profile == (f"and {count - MOST + 1} more" if count > MOST else f"p{MOST - 1}")


def test_what_several_nodes_have_is_added_up() -> None:
    here, there = (("1g", 2, 1), ("3g", 1, 0)), (("1g", 4, 0),)
    found = [(c.profile, c.total, c.allocated) for c in by_profile([here, there, here])]
    assert found == [("1g", 8, 2), ("3g", 2, 0)]
