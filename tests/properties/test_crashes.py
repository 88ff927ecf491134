"""Whole roll-outs, in which the operator dies after any write, and a second one that knows only what was comes in at any moment after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pytest
from tests.properties import server
from tests.properties.invariants import broken, quiet
from tests.properties.rollout import Rollout
from tests.properties.state import State, Step, renamed
from tests.properties.stories import Told, broken_by, calm_down, tell, undisturbed
from tests.properties.workers import readings

STORY: Final = """
n0: new record
n0: record Pending
admit (0,)
n0: record Admitted
n0: record Quiescing
n0: create
n0: activate
n0: record Draining
n0: record Applying
n0: patch: layout 1
n0: record Verifying
n0: record Releasing
n0: delete
n0: record UpToDate
n0: give back
n0: record UpToDate
ready
"""
ONE, TWO, CORDON = Rollout(), Rollout(nodes=2), Rollout(quiesce="Cordon")


def test_a_roll_out_is_this_story() -> None:
    story = tell(ONE, ["until ready"])
    assert story.written == STORY.split("\n")[1:-1]
    assert quiet(story.state)
    assert story.state.ready


def test_a_roll_out_by_cordon_is_the_same_story_with_one_write_fewer() -> None:
    instead = {
        "n0: create": [],
        "n0: activate": ["n0: patch: layout 0, cordon True"],
        "n0: delete": ["n0: patch: layout 1, cordon False"],
    }
    story = tell(CORDON, ["until ready"])
    assert story.written == [line for each in STORY.split("\n")[1:-1] for line in instead.get(each, [each])]


def test_two_nodes_are_the_same_story_one_after_the_other() -> None:
    writes = tell(TWO, ["until ready"]).written
    assert [w.removeprefix("n1: ") for w in writes if w.startswith("n1: ")] == [
        w.removeprefix("n0: ") for w in writes if w.startswith("n0: ")
    ]
    assert writes.index("n0: give back") < writes.index("admit (1,)")


UNDISTURBED: Final = ("until ready",)


@dataclass(frozen=True)
class Tale:
    """A roll-out, and how it goes."""

    rollout: Rollout
    lines: tuple[str, ...] = UNDISTURBED

    def told(self) -> Told:
        """From the beginning to its end."""
        story = tell(self.rollout, self.lines)
        assert not story.refused
        assert not story.all_broken
        assert quiet(story.state)
        return story


FAILED: Final = (
    "until patch: layout 1",
    "the driver fails half-way",
    "reads Applying, wants Verifying",
    "written: record Verifying",
    "reads Verifying, wants RollingBack",
    "written: record RollingBack",
    "until give back",
    "until record RolledBack",
)
TALES: Final = {
    "one node": Tale(ONE),
    "two nodes": Tale(TWO),
    "a cordoned node": Tale(CORDON),
    "a node that is cordoned and tainted": Tale(Rollout(quiesce="Both")),
    "a driver that fails": Tale(Rollout(failures=1), FAILED),
    "another target while the first is applied": Tale(
        Rollout(path=(1, 2)), ("until record Applying", "the user wants layout 2", "until ready")
    ),
    "pods that are evicted": Tale(
        Rollout(evicts=True), ("until record Pending", "the scheduler allocates a claim", "until ready")
    ),
    "a driver that cuts, answers and starts anew": Tale(Rollout(cuts=True)),
    "a driver that has to start anew": Tale(Rollout(path=(3,), restarts=True)),
    "a node that is deleted and comes back": Tale(
        Rollout(departures=1),
        ("until record Applying", "the node is deleted", "a node comes under the same name", "until ready"),
    ),
    "a node that is restarted": Tale(
        Rollout(reboots=1), ("until ready", "the node is restarted", "until record UpToDate", "until record UpToDate")
    ),
    "a policy that gives back what was there": Tale(
        Rollout(deletion=True, reverts=True), ("until ready", "the user deletes the policy", "until finish")
    ),
}


@pytest.mark.parametrize("tale", TALES.values(), ids=TALES)
def test_it_ends_the_same_when_the_operator_dies_after_any_write(tale: Tale) -> None:
    story = tale.told()
    for step in story.steps:
        end = ends(tale, step.state)
        same = end == outcome(story.state)
        assert same or tale.lines != UNDISTURBED, f"it dies after {step.what}, and it ends with {end}"


@pytest.mark.parametrize("tale", TALES.values(), ids=TALES)
def test_nothing_is_broken_by_a_second_operator_that_decides_at_any_moment_and_writes_at_any_later_one(
    tale: Tale,
) -> None:
    a_second_one_comes_in(tale)


@pytest.mark.parametrize(
    ("bug", "tale"),
    [
        ("a node is written without its version", "one node"),
        ("a record is written without its version", "one node"),
        ("the ledger is written without its version", "one node"),
        ("a rule is born active", "one node"),
        ("a rule is deleted by its name", "a node that is deleted and comes back"),
    ],
)
def test_a_second_operator_whose_writes_prove_too_little_is_found(bug: str, tale: str) -> None:
    known = TALES[tale]
    with pytest.raises(AssertionError):
        a_second_one_comes_in(replace(known, rollout=replace(known.rollout, bug=bug)))


def a_second_one_comes_in(tale: Tale) -> None:
    """At every moment of the tale it reads, and for all it may decide it writes at every later moment."""
    rollout, seen = tale.rollout, set[State]()
    for step in tale.told().steps:
        for reading in readings(rollout, step.state._replace(late=())):
            for late in landings(rollout, renamed(reading.state)):
                assert not broken_by(rollout, late), f"{reading.what} after {step.what}, then {late.what}"
                if late.state not in seen:
                    seen.add(late.state)
                    ends(tale, late.state)


def landings(rollout: Rollout, state: State) -> list[Step]:
    """What comes of the late write in this state and in every one that follows while it is not void, as the others go on."""
    patient, found = replace(rollout, patient=True), list[Step]()
    while state.late:
        (write,) = state.late
        done = server.done(rollout, state._replace(late=()), write)
        found.append(done._replace(state=renamed(done.state)))
        step = undisturbed(patient, state)
        if step is None or step.state == state:
            break
        state = step.state
    return found


def ends(tale: Tale, state: State) -> object:
    """How it ends from here with a new operator that knows nothing but what it reads."""
    end, found = calm_down(tale.rollout, state)
    assert not found, f"{found} is broken on the way from {state}"
    assert not broken(end)
    return outcome(end)


def outcome(state: State) -> object:
    """What nodes have in the end, and what is left of us."""
    return [(n.label, n.pool, n.taken, n.rule, n.cordon) for n in state.nodes]
