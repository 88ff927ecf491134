"""What must always hold, whoever is late, dies or comes back: gone through state by state, and shown to fail for each rule that is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.moves import steps
from tests.properties.rollout import Rollout
from tests.properties.search import explore
from tests.properties.state import State, renamed
from tests.properties.stories import broken_by, calm_down

MOST: Final = 80_000  # more states than any of these clusters has; who sees this many has found a way to grow for ever

SOUND: Final = {
    "a roll-out, and a driver that fails": Rollout(failures=1),
    "another target, and a driver that fails": Rollout(path=(1, 2), failures=1),
    "another target and back": Rollout(path=(1, 2, 1)),
    "what a node had, after a change that failed": Rollout(path=(1, 0), failures=1),
    "draining that believes a cache": Rollout(bug="draining ends on a cache"),
    "three workers": Rollout(workers=3),
    "a policy that is deleted": Rollout(failures=1, deletion=True),
    "a node that is deleted and comes back": Rollout(departures=1),
    "a policy and a node that are deleted": Rollout(departures=1, deletion=True),
    "two nodes": Rollout(nodes=2, workers=1),
    "cordoned nodes, and a driver that fails": Rollout(quiesce="Cordon", failures=1),
    "cordoned nodes, and another target": Rollout(quiesce="Cordon", path=(1, 2)),
    "cordoned nodes, and a policy that is deleted": Rollout(quiesce="Cordon", deletion=True),
    "a cordoned node that is deleted and comes back": Rollout(quiesce="Cordon", departures=1),
    "nodes that are cordoned and tainted": Rollout(quiesce="Both", failures=1, deletion=True),
    "pods that have to be evicted": Rollout(evicts=True),
    "pods that do not end in time, and that is a failure": Rollout(halts=True, path=(1, 2), deletion=True),
    "another target, and pods that have to be evicted": Rollout(path=(1, 2), evicts=True, workers=1),
    "a node that is restarted": Rollout(reboots=1),
    "a node that is restarted and does not come back with its layout": Rollout(reboots=1, failures=1),
    "a node that is restarted while another target is wanted": Rollout(path=(1, 2), reboots=1),
    "a cordoned node that is restarted": Rollout(quiesce="Cordon", reboots=1, failures=1),
    "a policy and a failed node that are given up": Rollout(failures=1, deletion=True, abandons=True),
    "a driver that cuts, answers and starts anew, and fails": Rollout(cuts=True, failures=1, deletion=True),
    "a driver that cuts, answers and starts anew, and another target": Rollout(
        cuts=True, path=(1, 2), failures=1, workers=1
    ),
    "a driver that has to start anew, and fails": Rollout(path=(3,), restarts=True, failures=1),
    "a driver that has to start anew, and a node that is deleted": Rollout(path=(3,), restarts=True, departures=1),
    "a driver that has to start anew, and another target": Rollout(path=(3, 1), restarts=True),
    "a driver that has to start anew, and a failed node that is given up": Rollout(
        path=(3,), restarts=True, failures=1, deletion=True, abandons=True
    ),
    "a policy that gives back what was there": Rollout(deletion=True, reverts=True, failures=1),
    "another target, and a policy that gives back what was there": Rollout(
        path=(1, 2), deletion=True, reverts=True, workers=1
    ),
    "a node that leaves the policy and comes back": Rollout(leavings=2),
    "a node that leaves a policy that gives back what was there": Rollout(leavings=1, reverts=True),
    "a policy that is paused while pods are evicted": Rollout(pauses=2, evicts=True),
    "two nodes of a policy that is paused": Rollout(nodes=2, pauses=1, workers=1),
    "two nodes, and a driver that fails": Rollout(nodes=2, failures=1, workers=1),
    "everything frozen while a node is restarted": Rollout(pauses=1, freezes=True, reboots=1, workers=1),
    "a record that somebody deletes": Rollout(hands=1),
    "a record that somebody deletes, and a cordoned and tainted node": Rollout(quiesce="Both", hands=1),
    "a node that others cordon": Rollout(quiesce="Cordon", strangers=True, deletion=True),
    "a claim of a pod group": Rollout(kind="of a pod group"),
    "a claim that nobody has reserved": Rollout(kind="not reserved"),
    "a claim with admin access": Rollout(kind="with admin access"),
}


@pytest.mark.parametrize("rollout", SOUND.values(), ids=SOUND)
def test_nothing_is_broken_and_nobody_is_stuck(rollout: Rollout) -> None:
    found = explore(rollout, most=MOST)
    assert not found.violated, f"{found.violated} is broken:\n" + "\n".join(found.story)
    assert found.complete
    assert not found.stuck, f"{found.stuck} states lead nowhere:\n" + "\n".join(found.story)


PLANTED: Final = {
    "nobody counts": ("1", Rollout(nodes=2, workers=1)),
    "settling is not waited for": ("2", Rollout()),
    "holders are read from a cache": ("10", Rollout()),
    "a claim that nobody has reserved is no holder": ("2", Rollout(kind="of a pod group")),
    "the way back is not on record": ("4", Rollout()),
    "applying is left without using up the step": ("3", Rollout(deletion=True)),
    "rolling back believes the label": ("2", Rollout()),
    "a failed node is opened whatever its step": ("2", Rollout()),
    "a step is used twice": ("stuck", Rollout()),
    "dirty is forgotten": ("3", Rollout(path=(1, 2), failures=1, deletion=True)),
    "a failed node is let go": ("3", Rollout(failures=1, deletion=True)),
    "a late verification is given up": ("3", Rollout(path=(1, 2), deletion=True)),
    "opening is no step": ("6", Rollout(quiesce="Cordon")),
    "whoever has cordoned it, it is uncordoned": ("6", Rollout(quiesce="Cordon", strangers=True)),
    "a superseded target is released": ("5", Rollout(path=(1, 2))),
    "a rule is born active": ("6", Rollout()),
    "a rule is deleted by its name": ("6", Rollout()),
    "a rule is deleted by its UID alone": ("6", Rollout()),
    "a rule is activated without its version": ("3", Rollout()),
    "a node is written without its version": ("2", Rollout()),
    "a record is written without its version": ("6", Rollout()),
    "the record is read before the node": ("2", Rollout()),
    "the record is read before the rule": ("6", Rollout(workers=3)),
    "the grant is looked at instead of the record": ("2", Rollout()),
    "the ledger is written without its version": ("3", Rollout()),
    "the entry leaves before the node is at rest": ("3", Rollout()),
    "the token leaves before the entry": ("stuck", Rollout()),
    "an entry without a record is simply removed": ("3", Rollout(hands=1)),
    "no finalizer": ("6", Rollout(departures=1)),
    "the finalizer goes when the node is at rest": ("3", Rollout(hands=1)),
    "a grant for the node before is not seen": ("stuck", Rollout(departures=1)),
    "ready while the ledger has entries": ("5", Rollout(path=(1, 2, 1))),
    "which pod is to go is not on record": ("3", Rollout(path=(3,), restarts=True, deletion=True)),
    "a restart of an earlier step counts": ("stuck", Rollout(cuts=True)),
    "a pod that was to go is forgotten with its step": ("4", Rollout(path=(3, 1), restarts=True)),
    "a pod is evicted by its name": ("7", Rollout(evicts=True, path=(1, 2))),
    "nobody is spared": ("7", Rollout(evicts=True)),
    "nobody asks whether to stand still": ("9", Rollout(pauses=1, evicts=True)),
    "nobody counts failures": ("9", Rollout(nodes=2, failures=1, workers=1)),
    "nobody sweeps up behind a policy": ("stuck", Rollout(deletion=True)),
    "nobody asks what a node had": ("13", Rollout(deletion=True, reverts=True)),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_each_rule_is_needed(bug: str) -> None:
    invariant, rollout = PLANTED[bug]
    planted = replace(rollout, bug=bug)
    if invariant == "stuck":
        assert explore(planted, most=MOST).stuck, "nobody was left behind"
    else:
        assert invariant in explore(planted, most=MOST, only=invariant).violated.split(), "nothing was broken"


BREAKS: Final = {
    1: "nobody counts",
    2: "settling is not waited for",
    3: "a rule is activated without its version",
    4: "the way back is not on record",
    5: "ready while the ledger has entries",
    6: "a rule is deleted by its name",
    7: "nobody is spared",
    8: "the token leaves before the entry",
    9: "nobody asks whether to stand still",
    10: "holders are read from a cache",
    11: "a claim that nobody has reserved is no holder",
    12: "a step is used twice",
    13: "nobody asks what a node had",
}


def test_no_invariant_is_there_that_nothing_breaks() -> None:
    assert list(BREAKS) == list(range(1, 14))
    assert set(BREAKS.values()) <= set(PLANTED)


# ---------------------------------------------------------------------------------------------- some nodes, some workers, by chance


def walk(rollout: Rollout, choices: list[int]) -> tuple[State, list[str]]:
    """Let happen what the numbers choose, checking every state on the way."""
    state, story = renamed(rollout.initial()), []
    for choice in choices:
        ways = list(steps(rollout, state))
        if not ways:
            break
        step = ways[choice % len(ways)]
        story.append(step.what)
        state = renamed(step.state)
        violated = broken_by(rollout, step._replace(state=state))
        assert not violated, f"{violated} is broken:\n" + "\n".join(story)
    return state, story


ALL: Final = Rollout(
    nodes=2,
    path=(1, 2, 1),
    failures=2,
    departures=1,
    reboots=1,
    pauses=2,
    hands=1,
    leavings=2,
    deletion=True,
    reverts=True,
)
ALL_AT_ONCE: Final = [
    ALL,
    replace(ALL, nodes=3, workers=3),
    replace(ALL, quiesce="Cordon", strangers=True, abandons=True),
    replace(ALL, quiesce="Both", evicts=True, halts=True),
    replace(ALL, path=(3, 1, 3), restarts=True, reverts=False, reboots=0),
    replace(ALL, path=(3, 1, 3), restarts=True, reverts=False, reboots=0, abandons=True, freezes=True),
]


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(st.sampled_from(ALL_AT_ONCE), st.lists(st.integers(0, 2**16), min_size=40, max_size=160))
def test_whatever_happens_to_some_nodes_nothing_is_broken_and_they_come_to_rest(
    rollout: Rollout, choices: list[int]
) -> None:
    state, story = walk(rollout, choices)
    _, violated = calm_down(rollout, state)
    assert not violated, f"{violated} is broken after:\n" + "\n".join(story)
