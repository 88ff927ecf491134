"""Who may be touched now, in which order, and what keeps the next one out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import pytest
from tests.unit.worlds import T0

from gpupartition.api.v1alpha1 import Grant, NodeCount, Phase
from gpupartition.domain.admission import LEDGER_SIZE, Admission, Rules, Standing, admit, resolve

SECOND: Final = timedelta(seconds=1)
LOOKS: Final[dict[str, Any]] = {"looks": 3 * SECOND, "now": T0}


def standing(node: str, phase: Phase = Phase.PENDING, **more: Any) -> Standing:
    fields: dict[str, Any] = {"at_target": phase is Phase.UP_TO_DATE}
    return Standing(node=node, uid=f"uid-{node}", phase=phase, **(fields | more))


def nodes(*names: str, **more: Any) -> list[Standing]:
    return [standing(name, **more) for name in names]


def grants(*names: str) -> list[Grant]:
    return [Grant(node=n, uid=f"uid-{n}", policy="p", token=f"token-{n}", since=T0) for n in names]


def decide(
    standings: Sequence[Standing],
    *,
    mine: int = 1,
    driver: int = 100,
    limit: int = 100,
    ledger: Sequence[Grant] = (),
    others: Iterable[str] = (),
    vanished: Collection[str] = (),
    **brakes: Any,
) -> Admission:
    rules = Rules(max_unavailable=mine, driver_max_unavailable=driver, limit=limit, **brakes)
    return admit(nodes=standings, others=others, ledger=ledger, rules=rules, vanished=vanished)


# -------------------------------------------------------------------------------------------------------------- first looks


def test_nobody_begins_while_a_node_has_not_been_looked_at_because_it_may_be_the_one_to_go_first() -> None:
    found = decide([standing("a", holders=1), standing("b", startable=False, unseen=True)], **LOOKS)
    assert (found.nodes, found.left, found.until) == ((), 2, T0 + 3 * SECOND)
    assert found.message == "1 node waits to be looked at"
    assert decide([standing("a", holders=1), standing("b")], **LOOKS).nodes == ("b",)


def test_nodes_that_nobody_looks_at_hold_the_others_up_for_a_while_only() -> None:
    unseen = standing("b", startable=False, unseen=True)
    assert decide([standing("a"), unseen]).nodes == ("a",)


def test_whatever_is_not_looked_at_a_lost_node_is_closed() -> None:
    lost = standing("a", Phase.UP_TO_DATE, lost=T0)
    assert decide([lost, standing("b", startable=False, unseen=True)], **LOOKS).lost == ("a",)


# ---------------------------------------------------------------------------------------------------------------- percentages


@pytest.mark.parametrize(
    ("count", "of", "number"),
    [
        (3, 10, 3),
        (3, 1, 3),
        ("25%", 10, 2),
        ("99%", 10, 9),
        ("100%", 10, 10),
        ("10%", 9, 1),
        ("1%", 1, 1),
        ("50%", 0, 1),
        ("34%", 3, 1),
        ("67%", 3, 2),
    ],
)
def test_a_percentage_is_rounded_down_but_never_below_one(count: NodeCount, of: int, number: int) -> None:
    assert resolve(count, of) == number


# --------------------------------------------------------------------------------------------------------------------- budgets


def test_as_many_nodes_begin_as_may_be_unavailable() -> None:
    assert decide(nodes("a", "b", "c"), mine=2).nodes == ("a", "b")


@pytest.mark.parametrize(
    "phase", sorted(set(Phase) - {Phase.PENDING, Phase.UP_TO_DATE, Phase.ROLLED_BACK, Phase.SKIPPED})
)
def test_a_node_that_is_not_at_rest_is_unavailable(phase: Phase) -> None:
    assert decide([standing("a", phase), standing("b")]).nodes == ()
    assert decide([standing("a", phase), standing("b")], mine=2).nodes == ("b",)


def test_a_node_with_a_grant_is_unavailable_even_while_its_record_is_at_rest() -> None:
    for phase in (Phase.PENDING, Phase.UP_TO_DATE):
        assert decide([standing("a", phase), standing("b")], ledger=grants("a")).nodes == ()


def test_a_node_counts_once_however_many_reasons_it_has() -> None:
    busy = standing("a", Phase.DRAINING, ready=False)
    assert decide([busy, standing("b")], mine=2, ledger=grants("a")).nodes == ("b",)


def test_a_node_that_is_not_ready_is_unavailable_and_is_not_begun_with() -> None:
    assert decide([standing("a", ready=False), standing("b")]).nodes == ()
    assert decide([standing("a", ready=False), standing("b")], mine=2).nodes == ("b",)
    assert decide([standing("a", Phase.UP_TO_DATE, ready=False), standing("b")]).nodes == ()


def test_a_node_that_has_not_been_ready_for_an_hour_stops_nobody_and_is_not_begun_with() -> None:
    assert decide([standing("a", ready=False, ignored=True), standing("b")]).nodes == ("b",)
    assert decide([standing("a", ready=False, ignored=True)]).nodes == ()


def test_nodes_of_other_policies_count_against_the_driver_and_not_against_the_policy() -> None:
    assert decide(nodes("a", "b"), mine=2, driver=2, others=["x"]).nodes == ("a",)
    assert decide(nodes("a", "b"), mine=2, driver=2, ledger=grants("x")).nodes == ("a",)
    assert decide(nodes("a", "b"), mine=2, driver=2, ledger=grants("x"), others=["x"]).nodes == ("a",)


@pytest.mark.parametrize("more", [{"blocked": True}, {"startable": False}, {"at_target": True}])
def test_nobody_begins_with_a_node_that(more: Any) -> None:
    assert decide([standing("a", **more), standing("b")]).nodes == ("b",)


def test_a_grant_whose_record_is_gone_counts_until_it_is_given_back() -> None:
    assert decide(nodes("a"), ledger=grants("gone"), vanished=["gone"]).nodes == ()
    assert decide(nodes("a"), mine=2, ledger=grants("gone"), vanished=["gone"]).nodes == ("a",)


def test_a_full_ledger_takes_nobody() -> None:
    everybody = grants(*(f"n{i}" for i in range(LEDGER_SIZE)))
    full = decide(nodes("a"), mine=LEDGER_SIZE * 2, driver=LEDGER_SIZE * 2, ledger=everybody)
    assert (full.nodes, full.reason) == ((), "LedgerFull")
    assert decide(nodes("a"), mine=LEDGER_SIZE * 2, driver=LEDGER_SIZE * 2, ledger=everybody[1:]).nodes == ("a",)


# ----------------------------------------------------------------------------------------------------------------------- limit


def test_no_more_nodes_than_the_limit_get_the_new_layout() -> None:
    done = nodes("a", "b", phase=Phase.UP_TO_DATE)
    assert decide([*done, *nodes("c", "d")], mine=5, limit=3).nodes == ("c",)
    assert decide([*done, *nodes("c", "d")], mine=5, limit=2).nodes == ()


def test_nodes_on_their_way_count_towards_the_limit() -> None:
    assert decide([standing("a", Phase.APPLYING), standing("b")], mine=5, limit=1).nodes == ()
    assert decide(nodes("a", "b"), mine=5, limit=1, ledger=grants("a")).nodes == ()


def test_a_node_that_is_verified_and_still_in_the_ledger_counts_once() -> None:
    done = standing("a", Phase.UP_TO_DATE)
    assert decide([done, standing("b")], mine=5, limit=2, ledger=grants("a")).nodes == ("b",)


# ----------------------------------------------------------------------------------------------------------------------- order


def test_those_given_up_come_last_then_those_with_holders_then_zone_by_zone_by_name() -> None:
    line = [
        standing("z", zone="1"),
        standing("y", zone="2"),
        standing("a", zone="2"),
        standing("b", zone="1", holders=3),
        standing("c", zone="1", attempts=1),
        standing("d", zone="1", attempts=1, holders=1),
        standing("e", zone="1", attempts=2),
    ]
    expected = ("z", "a", "y", "b", "c", "d", "e")
    assert decide(line, mine=9).nodes == expected
    assert decide(line[::-1], mine=9).nodes == expected, "the order in which they are read does not matter"


def test_the_number_of_holders_does_not_change_the_order() -> None:
    assert decide([standing("a", holders=9), standing("b", holders=1)]).nodes == ("a",)


# ---------------------------------------------------------------------------------------------------------------------- brakes


@pytest.mark.parametrize(
    ("brakes", "reason", "words"),
    [
        ({"paused": "spec.rollout.paused is true"}, "Paused", "spec.rollout.paused is true"),
        ({"frozen": "storage is being moved"}, "Frozen", "storage is being moved"),
        ({"stopped": "BaseMissing: it is gone"}, "Stopped", "BaseMissing: it is gone"),
    ],
)
def test_a_brake_stops_everybody_and_says_why(brakes: Any, reason: str, words: str) -> None:
    assert decide(nodes("a", "b"), **brakes) == Admission(reason=reason, message=words)


def test_a_failed_node_halts_the_others_and_is_named() -> None:
    stopped = decide([standing("b", halted=True), standing("c", Phase.FAILED, halted=True), standing("a")], mine=9)
    assert (stopped.nodes, stopped.reason) == ((), "RolloutHalted")
    assert stopped.message == "no other node is touched since b failed"


def test_the_strongest_brake_is_named() -> None:
    everything: dict[str, Any] = {"paused": "p", "frozen": "f", "stopped": "s"}
    halted = [standing("a", halted=True)]
    assert decide(halted, **everything).reason == "Stopped"
    assert decide(halted, **(everything | {"stopped": ""})).reason == "Frozen"
    assert decide(halted, paused="p").reason == "Paused"


# ------------------------------------------------------------------------------------------------------------- the reason of a gate


def test_when_all_is_done_nothing_is_said() -> None:
    assert decide(nodes("a", phase=Phase.UP_TO_DATE)) == Admission()
    assert decide([]) == Admission()


def test_while_the_last_one_is_on_its_way_the_roll_out_goes_on() -> None:
    assert decide([standing("a", Phase.VERIFYING)]).reason == "RollingOut"


def test_the_limit_is_named_with_how_many_wait() -> None:
    gate = decide([standing("a", Phase.UP_TO_DATE), *nodes("b", "c")], limit=1)
    assert (gate.reason, gate.message) == (
        "LimitReached",
        "spec.rollout.limit is reached; 2 nodes wait for it to be raised",
    )


def test_when_all_that_is_left_is_held_the_holders_are_waited_for() -> None:
    gate = decide([standing("a", Phase.UP_TO_DATE), *nodes("b", "c", blocked=True, holders=1)])
    assert (gate.nodes, gate.reason) == ((), "WaitingForHolders")
    assert gate.message == "2 nodes wait until all devices are free"


def test_when_all_that_is_left_is_not_ready_nobody_blames_holders() -> None:
    gate = decide(nodes("a", ready=False, ignored=True))
    assert (gate.nodes, gate.reason, gate.message) == ((), "RollingOut", "1 node waits to become Ready")


def test_others_that_use_up_the_budget_are_named() -> None:
    gate = decide(nodes("a"), driver=2, others=["y", "x"])
    assert (gate.nodes, gate.reason) == ((), "BudgetExhausted")
    assert gate.message == "the driver's maxUnavailable is used up by x, y"


def test_nodes_that_use_up_the_budget_by_not_being_ready_are_named() -> None:
    gate = decide([standing("down", ready=False), standing("a")])
    assert (gate.nodes, gate.reason) == ((), "BudgetExhausted")
    assert gate.message == "spec.rollout.maxUnavailable is used up by down, not Ready for other reasons"
    assert decide([standing("down", ready=False), standing("a", Phase.APPLYING), standing("b")]).reason == "RollingOut"


def test_of_many_others_five_are_named_and_the_rest_counted() -> None:
    others = [f"n{number}" for number in range(8)]
    gate = decide(nodes("a"), driver=2, others=others)
    assert gate.message == "the driver's maxUnavailable is used up by n0, n1, n2, n3, n4 and 3 more"
    cordoned = [standing(node, at_work="it is cordoned") for node in others]
    assert decide(cordoned).message.endswith("; node n4: it is cordoned and 3 more")


def test_a_budget_used_up_by_the_policy_itself_is_just_a_roll_out() -> None:
    assert decide([standing("a", Phase.APPLYING), standing("b")], driver=1, others=["x"]).reason == "RollingOut"
