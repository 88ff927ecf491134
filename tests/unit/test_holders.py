"""Every kind of holder is seen, and only those that a change would disturb are in its way."""

from __future__ import annotations

from typing import Any

import pytest

from gpupartition.domain.disturbance import Disturbance
from gpupartition.domain.holders import Holder, holders

DRIVER, POOL = "gpu.example.com", "node-a"


def result(device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": device, **more}


def claim(*results: dict[str, Any], pods: tuple[str, ...] = (), ending: bool = False, **status: Any) -> dict[str, Any]:
    reserved = [{"resource": "pods", "name": p, "uid": f"uid-{p}"} for p in pods]
    meta = {"namespace": "team", "name": "claim"} | ({"deletionTimestamp": "2026-03-01T12:00:00Z"} if ending else {})
    allocation = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    return {"metadata": meta, "status": allocation | ({"reservedFor": reserved} if pods else {}) | status}


def seen(*claims: dict[str, Any]) -> tuple[Holder, ...]:
    return holders(claims, node="node-a", driver=DRIVER, pool=POOL)


GROUP: dict[str, Any] = {
    "reservedFor": [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "u"}]
}


@pytest.mark.parametrize(
    ("body", "reason", "pods"),
    [
        (claim(result(), pods=("trainer",)), "Allocated", ("team/trainer",)),
        (claim(result(), pods=("b", "a")), "Allocated", ("team/a", "team/b")),
        (claim(result()), "AllocatedUnreserved", ()),
        (claim(result(), **GROUP), "AllocatedUnreserved", ()),
        (claim(result(), pods=("trainer",), ending=True), "Terminating", ("team/trainer",)),
        (claim(result(adminAccess=True), pods=("monitor",)), "AdminAccess", ("team/monitor",)),
        (claim(result(shareID="x"), pods=("small",)), "Allocated", ("team/small",)),
    ],
    ids=["a pod", "two pods", "nobody yet", "a pod group", "terminating", "admin access", "a share"],
)
def test_a_device_is_held_by(body: dict[str, Any], reason: str, pods: tuple[str, ...]) -> None:
    (found,) = seen(body)
    assert (found.claim, found.device, found.reason, found.pods) == ("team/claim", "gpu-0", reason, pods)


@pytest.mark.parametrize(
    "body",
    [
        claim(),
        claim(result(pool="node-b")),
        claim(result(driver="net.example.com")),
        {"metadata": {"namespace": "team", "name": "claim"}},
    ],
    ids=["not allocated", "another node", "another driver", "no status yet"],
)
def test_nothing_of_ours_is_held_by_a_claim_that_is(body: dict[str, Any]) -> None:
    assert seen(body) == ()


def test_a_claim_with_several_devices_holds_each_of_them() -> None:
    assert [h.device for h in seen(claim(result("gpu-1"), result("gpu-0"), result(pool="node-b")))] == [
        "gpu-0",
        "gpu-1",
    ]


def test_the_order_does_not_depend_on_how_claims_were_listed() -> None:
    some = [claim(result("gpu-1")), claim(result("gpu-0"))]
    assert seen(*some) == seen(*some[::-1])


# -------------------------------------------------------------------------------------------------------------------- blocking

HELD = seen(claim(result("gpu-0"), result("gpu-1"), result("gpu-old")))


def in_the_way(change: str, *, rolling_back: bool = False, held: tuple[Holder, ...] = HELD) -> list[str]:
    begun = Disturbance(
        change=change,
        published=frozenset({"gpu-0", "gpu-1"}),
        disturbed=frozenset({"gpu-0"}),
        rolling_back=rolling_back,
    )
    return [h.device for h in begun.blocked_by(held)]


def test_a_repartition_waits_for_devices_it_disturbs_and_for_devices_nobody_knows_any_more() -> None:
    assert in_the_way("Repartition") == ["gpu-0", "gpu-old"]


def test_rolling_back_brings_vanished_devices_back_so_their_holders_may_stay() -> None:
    assert in_the_way("Repartition", rolling_back=True) == ["gpu-0"]


def test_a_restart_waits_only_for_holders_that_are_ending() -> None:
    assert in_the_way("Restart") == []
    assert in_the_way("Restart", held=seen(claim(result("gpu-1"), ending=True))) == ["gpu-1"]
