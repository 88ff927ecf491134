"""What the answers of the Eviction API mean, and that right before it is asked somebody looks once more."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from tests.unit.occupants import EVICT, pod
from tests.unit.scripted import Answer, Scripted, refusal, scripted
from tests.unit.worlds import holder, world

from gpupartition.controller.events import Recorder
from gpupartition.controller.evictor import Evictor
from gpupartition.controller.occupants import Occupants
from gpupartition.controller.refusals import Refusals
from gpupartition.domain.effects import EvictPod
from gpupartition.kube import ApiError, Client, Object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gpupartition.controller.reading import Reading

POD: Final = pod("web", labels={"app": "web"})
EFFECT: Final = EvictPod(namespace="team", name="web", uid="uid-web")
READING: Final = cast(
    "Reading",
    SimpleNamespace(
        record=SimpleNamespace(
            name="node-a",
            resource_version="7",
            spec=SimpleNamespace(policy_ref=SimpleNamespace(name="halves")),
        ),
        policy=SimpleNamespace(uid="p", generation=1),
        world=replace(world(holders=[replace(holder(), pods=("team/web",))], drain=EVICT), occupants=(POD,)),
    ),
)
ABSENT: Final = refusal(404, "NotFound", "it is not there", name="web")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Scripted]:
    async with scripted(tmp_path) as server:
        yield server


def record(version: str = "7") -> Answer:
    return Answer({"metadata": {"name": "node-a", "resourceVersion": version}})


def policy(generation: int = 1, uid: str = "p", **rollout: Any) -> Answer:
    spec: Object = {
        "driver": "example",
        "nodeSelector": {"matchLabels": {"pool": "gpu"}},
        "layouts": [{"name": "whole", "match": {"all": True}, "type": "Whole"}],
        "rollout": {"drain": {"mode": "Evict"}, **rollout},
    }
    status = {"observedGeneration": 1, "nodes": {"failed": 1}} if "maxFailed" in rollout else {}
    return Answer(
        {"metadata": {"name": "halves", "uid": uid, "generation": generation}, "spec": spec, "status": status}
    )


def budgets(*names: str) -> Answer:
    items = [
        {
            "metadata": {"namespace": "team", "name": name, "resourceVersion": "1"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
        }
        for name in names
    ]
    return Answer(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudgetList",
            "metadata": {"resourceVersion": "9"},
            "items": items,
        }
    )


async def asked(server: Scripted, *answers: Answer, told: bool = True) -> Refusals:
    """What is remembered after the eviction was decided and these were the answers to it."""
    about = (record(), policy(), ABSENT, Answer({}))[: 4 if told else 3]
    server.will_answer(*about, *answers)
    return await run(server)


async def run(server: Scripted) -> Refusals:
    refusals = Refusals()
    async with Client.connect(server.kubeconfig) as client:
        occupants = Occupants(client, refusals, namespace="gpupartition-system")
        await Evictor(client, occupants, Recorder(client), refusals).end(READING, EFFECT)
    return refusals


def causes(*reasons: str) -> dict[str, Any]:
    return {"causes": [{"reason": reason, "message": "why"} for reason in reasons]}


@pytest.mark.parametrize(
    ("answers", "reason", "named"),
    [
        ([Answer({}, 201)], "", ()),
        ([ABSENT], "", ()),
        ([refusal(409, "Conflict", "another uid")], "", ()),
        ([refusal(429, "TooManyRequests", "no", **causes("DisruptionBudget")), budgets("one")], "EvictionBlocked", ("team/one",)),
        ([refusal(500, "InternalError", "more than one"), budgets("one", "two")], "EvictionBlocked", ("team/one", "team/two")),
        (
            [refusal(429, "TooManyRequests", "no", **causes("DisruptionBudget")), refusal(403, "Forbidden", "no list")],
            "EvictionBlocked",
            (),
        ),
        ([refusal(403, "Forbidden", "no right")], "EvictionForbidden", ()),
        ([refusal(422, "Invalid", "an admission policy")], "EvictionForbidden", ()),
        ([refusal(403, "Forbidden", "ending", **causes("NamespaceTerminating"))], "NamespaceTerminating", ()),
    ],
    ids=["done", "gone", "another pod", "a budget", "two budgets", "a budget in the dark", "no right", "refused", "namespace"],
)  # fmt: skip
async def test_an_answer_about_the_pod_is_remembered(
    server: Scripted, answers: list[Answer], reason: str, named: tuple[str, ...]
) -> None:
    found = (await asked(server, *answers)).of("uid-web")
    assert (found.reason, found.budgets) == (reason, named) if found else not reason
    assert server.finished.is_set()


@pytest.mark.parametrize(
    "answers",
    [
        [refusal(429, "TooManyRequests", "the server is busy")],
        [refusal(500, "InternalError", "etcd"), budgets("one")],
        [refusal(503, "ServiceUnavailable", "later")],
    ],
    ids=["busy", "broken", "away"],
)
async def test_an_answer_about_the_server_is_not_taken_for_one_about_the_pod(
    server: Scripted, answers: list[Answer]
) -> None:
    with pytest.raises(ApiError):
        await asked(server, *answers)


@pytest.mark.parametrize(
    "answers",
    [
        [ABSENT],
        [record("8")],
        [record(), ABSENT],
        [record(), policy(2)],
        [record(), policy(uid="another of this name")],
        [record(), policy(paused=True)],
        [record(), policy(maxFailed=0)],
        [record(), policy(), Answer({"metadata": {"name": "gpupartition-freeze"}})],
    ],
    ids=[
        "no record",
        "another record",
        "no policy",
        "another policy",
        "one made anew",
        "paused",
        "too many failed",
        "frozen",
    ],
)
async def test_nobody_is_asked_to_go_when_meanwhile_there_is(server: Scripted, answers: list[Answer]) -> None:
    server.will_answer(*answers)
    await run(server)
    assert all(request.method == "GET" for request in server.asked)
    assert server.finished.is_set()
