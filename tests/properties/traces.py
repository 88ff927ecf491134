"""Ways in which "check, then act" goes wrong, told line by line, each with the rule that keeps it from happening.

Whoever changes a rule finds here what it is for. How a line is read: stories.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.properties.rollout import Rollout

ROLLOUT: Final = Rollout()


@dataclass(frozen=True, kw_only=True)
class Trace:
    """`without`: the rule that is taken away, and `breaks` which invariant that breaks.

    `refused`: the first line that cannot happen as long as the rule is there; "": all of them can, and harm nobody.
    """

    without: str
    breaks: str
    story: str
    refused: str = ""
    rollout: Rollout = ROLLOUT

    @property
    def lines(self) -> list[str]:
        """What happens, one thing after another."""
        return [line.strip() for line in self.story.splitlines() if line.strip()]


def walks(*phases: str) -> str:
    """A worker takes the record from each of these phases to the next, and nothing comes between."""
    return "".join(f"reads {here}, wants {there}\n written: record {there}\n" for here, there in pairwise(phases))


def admitted(nodes: str = "(0,)") -> str:
    """The ledger gives grants to these nodes."""
    return f"may admit {nodes}\n written: admit {nodes}\n"


GIVEN_UP: Final = """
    until record Quiescing
    reads Quiescing, wants to create
    reads Quiescing, wants Aborting
    written: record Aborting
    until record Pending
"""
ASSIGNS_AND_GOES_BACK: Final = """
    until record Applying
    reads Applying, wants to patch
    reads Applying, wants RollingBack
    written: record RollingBack
"""
GIVEN_UP_AND_BEGUN_AGAIN: Final = f"""
    {GIVEN_UP}
    reads Pending, gives its grant back
    written: create
    written: give back
    {walks("Pending", "Pending")}
    reads Pending, wants to delete
    {admitted()}
    until activate
"""
DELETES_LATE: Final = f"""
    {GIVEN_UP_AND_BEGUN_AGAIN}
    until record Draining
    written: delete
"""
SOLD: Final = """
    the scheduler sees the quiesce as it is
    the scheduler allocates a claim
"""
CUT: Final = """
    written: patch: layout 1
    the driver publishes layout 1
"""
SOLD_AND_CUT: Final = f"until delete {SOLD} {CUT}"
OPENED_AND_CUT: Final = f"""
    reads Aborting, wants to delete
    written: delete
    {SOLD}
    the driver publishes layout 1
"""
READS_LATE: Final = f"""
    until record Applying
    reads Applying, wants RollingBack
    reads Applying, and nothing else yet
    written: record RollingBack
    until patch: layout 0
    who has read Applying reads on, wants to patch
    until record Releasing
    {SOLD_AND_CUT}
"""
SOLD_BEFORE_IT_IS_CUT: Final = f"""
    until activate
    the scheduler allocates a claim
    the scheduler sees the quiesce as it is
    {walks("Quiescing", "Draining", "Applying")}
"""
FAILS: Final = f"""
    reads Applying, wants to patch
    reads Applying, wants RollingBack
    written: patch: layout 1
    written: record RollingBack
    {walks("RollingBack", "Failed")}
"""
ANEW: Final = Rollout(path=(3, 1), restarts=True)

TRACES: Final = {
    "a rule that is created after its node was given up keeps nobody away": Trace(
        without="a rule is born active",
        breaks="6",
        story=f"{GIVEN_UP} written: create",
    ),
    "a rule that is created late does not make a second node unavailable": Trace(
        without="a rule is born active",
        breaks="1",
        rollout=Rollout(nodes=2),
        story=f"""
            n1: a worker finds no record
            n1: written: new record
            {admitted("(1,)")}
            until n1: record Quiescing
            n1: a worker reads Quiescing, wants to create
            n1: a worker reads Quiescing, wants Aborting
            n1: written: record Aborting
            n1: a worker reads Aborting, wants Pending
            n1: written: record Pending
            n1: a worker reads Pending, gives its grant back
            n1: written: give back
            n1: written: create
            {admitted()}
            until record Quiescing
            reads Quiescing, wants to create
            written: create""",
    ),
    "a rule that is created late is not left behind by its policy": Trace(
        without="a rule is born active",
        breaks="13",
        rollout=Rollout(deletion=True),
        story=f"""{GIVEN_UP}
            the user deletes the policy
            until give back
            until record Pending
            reads Pending, lets the node go
            written: create
            written: let go
            finds nothing left of the policy
            written: finish""",
    ),
    "a rule is not activated for a node that was deleted with its record": Trace(
        without="no finalizer",
        breaks="6",
        rollout=Rollout(departures=1),
        story="""
            until create
            reads Quiescing, wants to activate
            the node is deleted
            the record is collected with its node
            written: activate""",
        refused="the record is collected with its node",
    ),
    "a delete by name does not take away the rule of the next attempt": Trace(
        without="a rule is deleted by its name",
        breaks="3",
        story=f"{GIVEN_UP_AND_BEGUN_AGAIN} written: delete",
        refused="written: delete",
    ),
    "a delete by name does not open a node that is being drained": Trace(
        without="a rule is deleted by its name",
        breaks="6",
        story=DELETES_LATE,
        refused="written: delete",
    ),
    "a delete by UID does not open a node whose left-over rule was activated meanwhile": Trace(
        without="a rule is deleted by its UID alone",
        breaks="6",
        story=DELETES_LATE,
        refused="written: delete",
    ),
    "a rule is not activated by who knows only of a record that has moved on": Trace(
        without="the record is read before the rule",
        breaks="6",
        rollout=Rollout(workers=3),
        story="""
            until record Quiescing
            reads Quiescing, wants to create
            reads Quiescing, wants Aborting
            reads Quiescing, and nothing else yet
            written: record Aborting
            reads Aborting, wants Pending
            written: create
            who has read Quiescing reads on, wants to activate
            written: activate
            written: record Pending""",
        refused="reads Quiescing, and nothing else yet",
    ),
    "an assignment does not come after a roll-back that found nothing to undo": Trace(
        without="rolling back believes the label",
        breaks="2",
        story=f"{ASSIGNS_AND_GOES_BACK} {walks('RollingBack', 'Releasing')} {SOLD_AND_CUT}",
        refused="reads RollingBack, wants Releasing",
    ),
    "an assignment and a roll-back that cross do not leave the new layout": Trace(
        without="rolling back believes the label",
        breaks="4",
        story=f"""{ASSIGNS_AND_GOES_BACK}
            reads RollingBack, wants Releasing
            written: patch: layout 1
            written: record Releasing
            until record RolledBack""",
        refused="reads RollingBack, wants Releasing",
    ),
    "an assignment does not come after the one that undid it": Trace(
        without="a node is written without its version",
        breaks="2",
        story=f"{ASSIGNS_AND_GOES_BACK} until record Releasing \n {SOLD_AND_CUT}",
        refused="written: patch: layout 1",
    ),
    "nobody assigns who has read the node only after its record had moved on": Trace(
        without="the record is read before the node",
        breaks="2",
        story=READS_LATE,
        refused="reads Applying, and nothing else yet",
    ),
    "a grant that is still right does not say that its record is": Trace(
        without="the grant is looked at instead of the record",
        breaks="2",
        story=READS_LATE,
        refused="reads Applying, and nothing else yet",
    ),
    "a device is not taken away while a scheduler that has not seen the taint gives it out": Trace(
        without="settling is not waited for",
        breaks="2",
        story=f"""
            until activate
            {walks("Quiescing", "Draining", "Applying")}
            reads Applying, wants to patch
            the scheduler allocates a claim
            {CUT}""",
        refused="reads Quiescing, wants Draining",
    ),
    "a claim that no cache knows yet keeps its device": Trace(
        without="holders are read from a cache",
        breaks="2",
        story=f"{SOLD_BEFORE_IT_IS_CUT} reads Applying, wants to patch {CUT}",
        refused="reads Draining, wants Applying",
    ),
    "a node goes back to draining only when its step can no longer be done": Trace(
        without="applying is left without using up the step",
        breaks="2",
        rollout=Rollout(deletion=True),
        story=f"""{SOLD_BEFORE_IT_IS_CUT}
            the user deletes the policy
            reads Applying, wants Draining
            a claim ends
            reads Applying, wants to patch
            written: record Draining
            until record Aborting
            {SOLD_AND_CUT}""",
        refused="reads Draining, wants Applying",
    ),
    "hardware that nobody has verified is not let go with another target": Trace(
        without="dirty is forgotten",
        breaks="2",
        rollout=Rollout(path=(1, 2), deletion=True),
        story=f"""
            until record Applying
            the user wants layout 2
            {FAILS}
            {walks("Failed", "Draining")}
            the user deletes the policy
            {walks("Draining", "Aborting")}
            {OPENED_AND_CUT}""",
        refused="reads Draining, wants Aborting",
    ),
    "a node that failed is not let go with its policy": Trace(
        without="a failed node is let go",
        breaks="2",
        rollout=Rollout(deletion=True),
        story=f"""
            until record Applying
            the user deletes the policy
            {FAILS}
            {walks("Failed", "Aborting")}
            {OPENED_AND_CUT}""",
        refused="reads Failed, wants Aborting",
    ),
    "a grant is not given back while its node is being opened": Trace(
        without="the entry leaves before the node is at rest",
        breaks="3",
        story=f"""
            until activate
            {walks("Quiescing", "Aborting")}
            reads Aborting, gives its grant back
            written: give back""",
        refused="reads Aborting, gives its grant back",
    ),
    "a record that somebody deletes stays until its grant is given back": Trace(
        without="the finalizer goes when the node is at rest",
        breaks="3",
        rollout=Rollout(hands=1),
        story=f"""
            {GIVEN_UP}
            somebody deletes the record
            reads Pending, gives its grant back
            the record that somebody deleted is gone
            written: create
            finds no record
            written: new record
            reads Pending, wants Admitted
            written: give back
            written: record Admitted
            until activate""",
        refused="the record that somebody deleted is gone",
    ),
    "a grant whose record is gone is given back only by a record that took it": Trace(
        without="an entry without a record is simply removed",
        breaks="3",
        rollout=Rollout(hands=1),
        story=f"""
            until new record
            {admitted()}
            somebody deletes the record
            finds no record
            wants no such entry
            written: new record
            reads Pending, wants Admitted
            written: give back
            written: record Admitted
            until activate""",
        refused="wants no such entry",
    ),
    "success is not told while somebody has a grant": Trace(
        without="ready while the ledger has entries",
        breaks="5",
        rollout=Rollout(path=(1, 2, 1)),
        story=f"""
            until record UpToDate
            until give back
            until record UpToDate
            the user wants layout 2
            {admitted()}
            reads UpToDate, wants Admitted
            the user wants layout 1
            finds all nodes up to date
            written: ready
            written: record Admitted""",
        refused="finds all nodes up to date",
    ),
    "a node that was opened is not cordoned any more": Trace(
        without="opening is no step",
        breaks="6",
        rollout=Rollout(quiesce="Cordon"),
        story="""
            until record Quiescing
            reads Quiescing, wants to patch
            reads Quiescing, wants Aborting
            written: record Aborting
            reads Aborting, wants Pending
            written: patch: layout 0, cordon True
            written: record Pending""",
        refused="reads Aborting, wants Pending",
    ),
    "a driver's pod is not deleted after the roll-back that did without": Trace(
        without="which pod is to go is not on record",
        breaks="3",
        rollout=Rollout(path=(3,), restarts=True),
        story="""
            until patch: layout 0
            reads Applying, wants to restart
            reads Applying, wants RollingBack
            written: record RollingBack
            until record Releasing
            until give back
            written: restart""",
        refused="reads Applying, wants to restart",
    ),
    "a driver's pod is not deleted after a roll-back from where it need not have been": Trace(
        without="a pod that was to go is forgotten with its step",
        breaks="4",
        rollout=ANEW,
        story=f"""
            until patch: layout 0
            until record Applying
            the user wants layout 1
            reads Applying, wants RollingBack
            reads Applying, wants to restart
            written: record RollingBack
            {walks("RollingBack", "Failed", "Draining")}
            until record Applying
            {walks("Applying", "RollingBack")}
            until record RolledBack
            written: restart""",
        refused="written: restart",
    ),
}
