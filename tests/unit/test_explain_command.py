"""What `explain` says of one node: where it is, who is in the way, and what leads on."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from string import Formatter
from typing import Any, Final

import pytest
from tests.unit.fleet import Fleet, policy
from tests.unit.records import SINCE, record

from gpupartition.api.v1alpha1 import Assigned, Blocker, Phase
from gpupartition.cli import explain
from gpupartition.cli.explain import Explanation
from gpupartition.cli.options import Unusable
from gpupartition.cli.paint import rendered
from gpupartition.controller.records import DRIVERS
from gpupartition.domain.plan import Fate
from gpupartition.domain.remedies import FATES, HOLDERS, PHASES, REASONS, advice
from gpupartition.domain.reports import NodeReport
from gpupartition.domain.world import AT_REST
from gpupartition.settings import Settings

PAGE: Final = (Path(__file__).parents[2] / "docs/reference.md").read_text(encoding="utf-8")


async def of(fleet: Fleet, node: str) -> Explanation:
    return await explain.explain(fleet.client, Settings(), node)


def drawn(found: Explanation, *, after: float = 120) -> list[str]:
    return rendered(explain.pictured(found, SINCE + timedelta(seconds=after)), colour=False).splitlines()


def facts(found: Explanation) -> dict[str, str]:
    """The lines below the picture, by their first word."""
    lines = [each.split(maxsplit=1) for each in drawn(found)]
    return {each[0]: each[1] for each in lines if len(each) == 2}


async def test_a_node_in_use_names_its_holder_and_what_would_free_the_device() -> None:
    fleet = Fleet(2)
    fleet.hold("node-1")
    fleet.apply(policy())
    waiting = Blocker(
        node="node-1", claim="team-a/job-7", pod="team-a/job-7", device="gpu-0", reason="Allocated", since=SINCE
    )
    record(fleet, "node-1", Phase.PENDING, change="Repartition", blockers=[waiting])
    assert drawn(await of(fleet, "node-1")) == [
        "node-1: Pending for 2m (policy inference, driver example)",
        "",
        "  CLAIM          POD            DEVICE   HOLDS IT    SINCE   WHAT WOULD FREE IT",
        f"  team-a/job-7   team-a/job-7   gpu-0    Allocated   2m      {HOLDERS['Allocated']}",
        "",
        "  change  Repartition, +24 -8 devices",
        "  grant   none",
        "  plan    Blocked; waits until its devices are free",
        "  next    its turn comes when those who are in the way have ended",
    ]


async def test_holders_are_read_now_and_not_from_the_record() -> None:
    fleet = Fleet(1)
    fleet.hold("node-1", claim="team-b/job-8", device="gpu-3")
    fleet.apply(policy())
    gone = Blocker(
        node="node-1", claim="team-a/job-7", pod="team-a/job-7", device="gpu-0", reason="Allocated", since=SINCE
    )
    record(fleet, "node-1", Phase.PENDING, blockers=[gone])
    assert [(b.claim, b.device) for b in (await of(fleet, "node-1")).blockers] == [("team-b/job-8", "gpu-3")]


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.APPLYING])
async def test_of_a_node_that_is_being_changed_nobody_is_named_who_has_gone_and_everybody_who_has_come(
    phase: Phase,
) -> None:
    fleet = Fleet(1)
    fleet.apply(policy())
    gone = Blocker(
        node="node-1", claim="team-a/job-7", pod="team-a/job-7", device="gpu-0", reason="EvictionBlocked", since=SINCE
    )
    other = gone.model_copy(update={"claim": "team-a/job-8", "device": "gpu-1"})
    stays = gone.model_copy(update={"claim": "team-a/job-9", "device": "gpu-2", "pdb": "team-a/one"})
    record(fleet, "node-1", phase, change="Repartition", blockers=[gone, other, stays], token="t")  # noqa: S106 - of a grant
    fleet.hold("node-1", claim="team-a/job-8", device="gpu-5")
    fleet.hold("node-1", claim="team-a/job-9", device="gpu-2")
    found = (await of(fleet, "node-1")).blockers
    assert [(b.claim, b.device, b.reason, b.pdb) for b in found] == [
        ("team-a/job-9", "gpu-2", "EvictionBlocked", "team-a/one"),
        ("team-a/job-8", "gpu-5", "Allocated", ""),
    ]


async def test_a_node_that_was_never_looked_at_is_told_by_its_plan() -> None:
    fleet = Fleet(3)
    fleet.apply(policy())
    found = await of(fleet, "node-3")
    assert drawn(found)[0] == "node-3: no record of it (policy inference, driver example)"
    assert facts(found)["plan"].startswith("Starts; begins in wave 2")


async def test_a_node_that_no_policy_selects_says_so() -> None:
    fleet = Fleet(1)
    fleet.apply(policy(selector={"pool": "others"}))
    assert facts(await of(fleet, "node-1"))["plan"] == "no policy selects it"


async def test_without_any_policy_a_node_is_explained_all_the_same() -> None:
    assert "there is no GpuPartitionPolicy" in facts(await of(Fleet(1), "node-1"))["plan"]


async def test_a_node_of_a_group_is_told_who_leads_and_what_becomes_of_that_one() -> None:
    fleet = Fleet(3)
    fleet.in_racks(a=fleet.nodes)
    fleet.apply(policy(driver="racks"))
    leads, follows = facts(await of(fleet, "node-1")), facts(await of(fleet, "node-2"))
    assert leads["group"] == "a: node-1 leads, node-2, node-3 follow it"
    assert follows["group"] == "a: node-1 leads, node-2, node-3 follow it; node-1: Starts; begins in wave 1"
    assert follows["plan"] == "Waits; follows node node-1, which brings the pool of group a to what is wanted"
    told: dict[str, Any] = explain.as_data(await of(fleet, "node-3"))["group"]
    assert (told["name"], told["leader"], told["followers"]) == ("a", "node-1", ("node-2", "node-3"))


async def test_a_grant_is_told_with_its_purpose() -> None:
    fleet = Fleet(1)
    fleet.apply(policy())
    record(fleet, "node-1", Phase.DRAINING, token="t", change="Repartition")  # noqa: S106 - of a grant
    grant = {
        "node": "node-1",
        "uid": "u",
        "policy": "inference",
        "token": "t",
        "since": "2026-01-01T12:00:00Z",
        "purpose": "Initial",
    }
    (driver,) = fleet.objects[DRIVERS]
    fleet.objects[DRIVERS] = [{**driver, "status": {"inFlight": [grant]}}]
    assert facts(await of(fleet, "node-1"))["grant"] == "Initial since 2026-01-01T12:00:00Z"


async def test_a_record_that_cannot_be_read_is_told_with_what_mends_it() -> None:
    fleet = Fleet(2)
    fleet.apply(policy(rollout={"maxUnavailable": 2}))
    record(fleet, "node-1", Phase.DRAINING, target=Assigned(pool="half of a pool"))
    told = facts(await of(fleet, "node-1"))
    assert told["why"].startswith(
        "RecordUnreadable: its record cannot be read, and nothing is done to it (target.pool: "
    )
    assert told["plan"].startswith("Refused; its record cannot be read")
    assert told["why"].endswith("); mend that: kubectl edit gpupartitionnodestate node-1")
    assert told["next"] == "do with its record what the message says"
    assert facts(await of(fleet, "node-2"))["plan"].startswith("Starts; begins in wave 1")


async def test_nothing_is_planned_for_a_driver_whose_ledger_cannot_be_read() -> None:
    fleet = Fleet(1)
    fleet.apply(policy())
    grant = {"node": "node-1", "uid": "u", "policy": "inference", "token": "t", "since": "0000-01-01T00:00:00Z"}
    (driver,) = fleet.objects[DRIVERS]
    fleet.objects[DRIVERS] = [{**driver, "status": {"inFlight": [grant]}}]
    told = facts(await of(fleet, "node-1"))["plan"]
    assert "status.inFlight[0].since: " in told
    assert told.endswith("correct it: kubectl edit gpupartitiondriver example --subresource=status")


async def test_a_failed_node_is_told_how_to_ask_for_another_try() -> None:
    fleet = Fleet(1)
    fleet.apply(policy())
    record(fleet, "node-1", Phase.FAILED, reason="RollingBackFailed", message="gpu-0 is missing")
    told = facts(await of(fleet, "node-1"))
    assert told["why"] == "RollingBackFailed: gpu-0 is missing"
    assert told["next"].endswith("ask to try again: kubectl gpp retry node-1")


async def test_a_node_of_a_policy_that_observes_waits_for_nothing_but_that() -> None:
    fleet = Fleet(1)
    fleet.apply(policy(mode="Observe"))
    told = facts(await of(fleet, "node-1"))
    assert told["plan"] == "Starts; begins in wave 1"
    assert told["next"] == "mode: Enforce in policy inference, which only observes: nothing happens to the node"


async def test_a_node_that_is_gone_is_explained_by_its_record_and_one_that_never_was_is_an_error() -> None:
    fleet = Fleet(1)
    record(fleet, "former", Phase.FAILED)
    assert drawn(await of(fleet, "former"))[0].startswith("former: Failed")
    with pytest.raises(Unusable, match="there is no node nowhere"):
        await of(fleet, "nowhere")


async def test_programs_are_told_the_same() -> None:
    fleet = Fleet(2)
    fleet.hold("node-1")
    fleet.apply(policy())
    record(fleet, "node-1", Phase.PENDING)
    found = await of(fleet, "node-1")
    told: dict[str, Any] = explain.as_data(found)
    assert (told["node"], told["policy"], told["phase"], told["plan"]["state"]) == (
        "node-1",
        "inference",
        "Pending",
        "Blocked",
    )
    (blocker,) = told["blockers"]
    assert (blocker["pod"], blocker["wouldFree"]) == ("team-a/job-7", HOLDERS["Allocated"])
    assert explain.FORMS["name"](found) == "gpupartitionnodestate.gpupartition.dev/node-1"


# ------------------------------------------------------------------------------------------------------------------ the tables


def rows(heading: str) -> list[set[str]]:
    """The words in the first column of each table of a section of the reference."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines()))) for table in tables]


def test_every_phase_reason_and_holder_that_the_reference_explains_has_something_that_leads_on() -> None:
    phases, reasons, holders = rows("A node's way")
    assert phases - PHASES.keys() == {"Pending", "UpToDate"}, "of these the plan says what leads on"
    assert reasons == REASONS.keys()
    assert holders | {"Allocated", "AllocatedUnreserved", "Terminating", "AdminAccess"} == HOLDERS.keys()
    assert PHASES.keys() <= {str(phase) for phase in Phase}
    assert {str(p) for p in Phase} - PHASES.keys() <= {str(p) for p in AT_REST}


def test_every_fate_leads_on_by_itself_or_by_the_record() -> None:
    assert set(Fate) - {Fate(fate) for fate in FATES} == {Fate.UNDER_WAY, Fate.FAILED, Fate.SKIPPED}


def test_advice_asks_for_no_name_that_is_not_given() -> None:
    for text in (*REASONS.values(), *PHASES.values(), *FATES.values()):
        assert {name for _, name, _, _ in Formatter().parse(text) if name} <= {"node", "policy", "driver"}, text


def test_a_node_that_has_what_is_wanted_is_told_nothing_of_its_past() -> None:
    assert advice(None, Fate.UP_TO_DATE, {}) == FATES[Fate.UP_TO_DATE]


def test_nobody_is_told_to_ask_for_what_is_under_way() -> None:
    going_back = NodeReport(node="node-1", policy="inference", phase="RollingBack", reason="ApplyingFailed")
    names = {"node": "node-1", "policy": "inference", "driver": "example"}
    assert advice(going_back, Fate.UNDER_WAY, names) == PHASES["RollingBack"]
    assert "gpp retry node-1" in advice(replace(going_back, phase="Failed"), Fate.FAILED, names)
