"""What `status` says of policies and nodes, and what it leaves out."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import yaml
from tests.unit.fleet import Fleet, policy
from tests.unit.records import SINCE, record

from gpupartition.__main__ import main
from gpupartition.api.v1alpha1 import Blocker, Phase
from gpupartition.cli import status
from gpupartition.cli.options import Unusable
from gpupartition.cli.paint import rendered
from gpupartition.controller.records import NODE_STATES
from gpupartition.domain import reports
from gpupartition.domain.reports import UNSEEN, PolicyReport
from gpupartition.kube import Kind, Object, Unreachable

NOW: Final = datetime(2026, 1, 1, 12, 2, tzinfo=UTC)
JOB: Final = Blocker(
    node="node-2", claim="team-a/job-7", pod="team-a/job-7", device="gpu-0", reason="Allocated", since=SINCE
)


def ready(value: str, reason: str, message: str = "", *, generation: int = 1, **counts: int) -> Object:
    """The status of a policy of which the operator has said this."""
    condition = {"type": "Ready", "status": value, "reason": reason, "message": message}
    return {"observedGeneration": generation, "conditions": [condition], "nodes": counts}


def said(fleet: Fleet, name: str, status: Object, **spec: Any) -> None:
    fleet.apply({**policy(name, **spec), "status": status})


async def look(fleet: Fleet, *names: str) -> list[PolicyReport]:
    return await status.look(fleet.client, argparse.Namespace(selector="", name=names))


async def drawn(fleet: Fleet, *names: str) -> list[str]:
    return rendered(status.pictured(await look(fleet, *names), NOW), colour=False).splitlines()


async def test_a_policy_says_how_far_it_is_and_names_the_nodes_that_are_not_simply_done_or_waiting() -> None:
    fleet = Fleet(5)
    said(
        fleet,
        "inference",
        ready("False", "WaitingForHolders", "node node-2 waits", matched=5, upToDate=1, inProgress=1, blocked=1),
    )
    record(fleet, "node-1", Phase.UP_TO_DATE)
    record(fleet, "node-2", Phase.PENDING, change="Repartition", blockers=[JOB])
    record(fleet, "node-3", Phase.PENDING)
    record(fleet, "node-4", Phase.VERIFYING, change="Repartition")
    record(fleet, "node-5", Phase.FAILED, reason="RollingBackFailed", message="gpu-0 is missing")
    assert await drawn(fleet) == [
        "inference (driver example): 1 of 5 nodes up to date; 1 in progress, 1 blocked",
        "  WaitingForHolders: node node-2 waits",
        "",
        "  NODE     PHASE       SINCE   CHANGE        BLOCKED BY     WHY",
        "  node-5   Failed      2m                                   RollingBackFailed: gpu-0 is missing",
        "  node-4   Verifying   2m      Repartition",
        "  node-2   Pending     2m      Repartition   team-a/job-7",
    ]


async def test_more_than_two_blockers_are_counted() -> None:
    fleet = Fleet(1)
    said(fleet, "inference", ready("False", "WaitingForHolders", matched=1, blocked=1))
    record(fleet, "node-1", Phase.DRAINING, blockers=[JOB.model_copy(update={"pod": f"team-a/p{n}"}) for n in range(4)])
    assert (await drawn(fleet))[-1] == "  node-1   Draining   2m      team-a/p0, team-a/p1 and 2 more"


async def test_a_policy_that_is_paused_says_so_beside_what_it_is_ready_for(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(1)
    paused = {"reason": "Paused", "message": "storage is being moved (by alice)"}
    done = ready("True", "RolloutComplete", "all 1 nodes are verified", matched=1, upToDate=1)
    said(fleet, "inference", {**done, "suspended": paused})
    assert await drawn(fleet) == [
        "inference (driver example): 1 of 1 nodes up to date",
        "  RolloutComplete: all 1 nodes are verified",
        "  Paused: storage is being moved (by alice)",
    ]
    status.Log().show(await look(fleet))
    assert capsys.readouterr().out.rstrip().endswith("are verified; Paused: storage is being moved (by alice)")
    (told,) = json.loads(status.FORMS["json"](await look(fleet)))["policies"]
    assert (told["ready"], told["suspended"]) == ("True", paused)
    said(fleet, "inference", {**ready("False", "Paused", paused["message"], matched=1), "suspended": paused})
    assert await drawn(fleet) == [
        "inference (driver example): 0 of 1 nodes up to date",
        "  Paused: storage is being moved (by alice)",
    ]


async def test_a_finished_policy_takes_two_lines() -> None:
    fleet = Fleet(1)
    said(fleet, "inference", ready("True", "RolloutComplete", "all 1 nodes are verified", matched=1, upToDate=1))
    record(fleet, "node-1", Phase.UP_TO_DATE)
    assert await drawn(fleet) == [
        "inference (driver example): 1 of 1 nodes up to date",
        "  RolloutComplete: all 1 nodes are verified",
    ]


@pytest.mark.parametrize("before", [{}, ready("True", "RolloutComplete", generation=0, matched=1, upToDate=1)])
async def test_a_policy_that_was_not_looked_at_as_it_is_now_is_never_called_ready(before: Object) -> None:
    fleet = Fleet(1)
    said(fleet, "inference", before)
    (found,) = await look(fleet)
    assert (found.ready, found.reason, found.progress) == ("Unknown", UNSEEN, "")


async def test_nodes_of_a_policy_that_is_gone_are_told_under_its_name() -> None:
    fleet = Fleet(1)
    record(fleet, "node-1", Phase.FAILED, policy="former")
    assert (await drawn(fleet))[0] == "former (driver example)"


async def test_one_policy_can_be_asked_for_and_one_that_is_nowhere_is_told() -> None:
    fleet = Fleet(1)
    for name in ("inference", "training"):
        said(fleet, name, ready("True", "RolloutComplete"))
    assert [each.policy for each in await look(fleet, "training")] == ["training"]
    with pytest.raises(Unusable, match="there is no GpuPartitionPolicy trainin; there are: inference, training"):
        await look(fleet, "trainin")


async def test_where_there_is_no_policy_it_says_what_to_do() -> None:
    assert await drawn(Fleet(1)) == [
        "there is no GpuPartitionPolicy; write one, or see what nodes have already with adopt"
    ]


async def test_programs_are_told_of_every_node_and_every_blocker() -> None:
    fleet = Fleet(2)
    said(fleet, "inference", ready("False", "RollingOut", matched=2, upToDate=1))
    record(fleet, "node-1", Phase.UP_TO_DATE, token="t")  # noqa: S106 - of a grant
    record(fleet, "node-2", Phase.PENDING, blockers=[JOB])
    found = await look(fleet)
    (told,) = json.loads(status.FORMS["json"](found))["policies"]
    assert yaml.safe_load(status.FORMS["yaml"](found)) == {"policies": [told]}
    assert status.FORMS["name"](found) == "gpupartitionpolicy.gpupartition.dev/inference"
    assert (told["policy"], told["ready"], told["counts"]) == ("inference", "False", {"matched": 2, "upToDate": 1})
    assert [(n["node"], n["phase"], n["hasGrant"]) for n in told["nodes"]] == [
        ("node-1", "UpToDate", True),
        ("node-2", "Pending", False),
    ]
    assert told["nodes"][1]["blockers"] == [
        {
            "claim": "team-a/job-7",
            "pod": "team-a/job-7",
            "pdb": "",
            "device": "gpu-0",
            "reason": "Allocated",
            "since": "2026-01-01T12:00:00Z",
        }
    ]


async def test_a_log_says_each_thing_once(capsys: pytest.CaptureFixture[str]) -> None:
    fleet, log = Fleet(1), status.Log()
    said(fleet, "inference", ready("False", "RollingOut", "one to go", matched=1))
    record(fleet, "node-1", Phase.DRAINING, blockers=[JOB])
    log.show(await look(fleet))
    log.show(await look(fleet))
    fleet.objects[NODE_STATES].clear()
    log.show(await look(fleet))
    told = [each.split("  ", 1)[1] for each in capsys.readouterr().out.splitlines()]
    assert told == [
        "policy/inference  0 of 1 nodes up to date; RollingOut: one to go",
        "node/node-1  Draining  blocked by team-a/job-7",
        "node/node-1  gone",
    ]


async def test_what_cannot_be_read_any_more_is_not_shown_as_the_present(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(Fleet):
        """Watches end, until it is well again."""

        well = False

        async def watch(self, kind: Kind, **_: Any) -> AsyncGenerator[tuple[str, Object]]:
            if not self.well:
                raise Unreachable(f"watch {kind}", 0, "Unreachable", "refused")
            yield "BOOKMARK", {"metadata": {"resourceVersion": "1"}}
            await asyncio.sleep(3600)

    monkeypatch.setattr(status, "CALM", 0.01)
    monkeypatch.setattr(status, "TICK", 0.01)
    fleet = Cut(1)
    said(fleet, "inference", ready("True", "RolloutComplete", "done", matched=1, upToDate=1))
    watching = asyncio.create_task(status.watch(fleet.client, argparse.Namespace(selector="", name=[])))
    told: list[str] = []

    async def until(words: str) -> None:
        while not any(words in each for each in told):
            await asyncio.sleep(0.01)
            told.extend(capsys.readouterr().out.splitlines())

    async with asyncio.timeout(10):
        await until("Unreachable: refused")
        fleet.well = True
        await until("can be read again")
    watching.cancel()
    about = [each.split("  ", 1)[1] for each in told]
    assert about[0].startswith("policy/inference  1 of 1 nodes up to date")
    assert re.fullmatch(r"cluster  as of \d\d:\d\d:\d\d: watch .*: Unreachable: refused", about[1])
    assert about[-1] == "cluster  can be read again"


async def test_a_screen_says_above_all_else_since_when_it_may_be_old(capsys: pytest.CaptureFixture[str]) -> None:
    with status.Screen() as screen:
        screen.show(await look(Fleet(1)), "as of 12:00:00: nobody answers")
    shown = capsys.readouterr().out.removeprefix(status.SCREEN + status.CLEAR).splitlines()
    assert shown[:2] == ["as of 12:00:00: nobody answers", ""]


def test_a_line_that_is_wider_than_the_screen_pushes_no_other_away() -> None:
    assert status.SCREEN.endswith("\x1b[?7l"), "lines do not wrap"
    assert status.BACK.startswith("\x1b[?7h")


def test_watching_has_no_form_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "-w", "-o", "json"]) == 2
    assert "-w tells people what changes" in capsys.readouterr().err


def test_phases_that_it_speaks_of_are_phases() -> None:
    assert {str(phase) for phase in Phase} >= reports.QUIET | reports.STUCK


async def test_a_screen_is_left_as_it_was_found_and_shows_as_much_as_it_has_room_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "8")
    fleet = Fleet(9)
    said(fleet, "inference", ready("False", "RollingOut", matched=9))
    for node in fleet.nodes:
        record(fleet, node, Phase.DRAINING)
    with status.Screen() as screen:
        screen.show(await look(fleet))
    told = capsys.readouterr().out
    assert told.startswith(status.SCREEN + status.CLEAR)
    assert told.endswith(status.BACK)
    shown = told.removeprefix(status.SCREEN + status.CLEAR).removesuffix(status.BACK).splitlines()
    assert len(shown) == 7, "one line is the cursor's"
    assert shown[-1] == "… and 7 more lines; see them all without -w"
