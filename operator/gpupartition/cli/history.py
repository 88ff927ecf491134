"""`gpupartition history POLICY|NODE`: what happened, as far as anybody remembers. Reads the cluster and writes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.forms import NAMES, forms, moment
from gpupartition.cli.options import add_cluster, add_output, describe
from gpupartition.cli.paint import Line, Span, grid, line
from gpupartition.cli.targets import POLICY, target
from gpupartition.names import FIELD_MANAGER

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.domain.chronicle import Entry
    from gpupartition.kube import Client, Object

ABOUT: Final = """
Puts together, newest last, what events tell of a policy or a node, and what is older than the events that are kept: records remember when a
node entered its phase, got its layouts and was repaired, conditions since when they hold, policies who wrote them when. It only reads.
"""
EXAMPLES: Final = """
examples:
  %(prog)s inference               a policy, with all of its nodes
  %(prog)s node-2 --tail=20        a node (node/node-2, where a policy has that name too)
  %(prog)s node-2 -o json          for programs

exit codes: 0 told; 1 the cluster could not be read, or there is nothing of this name (the message says so); 2 wrong usage
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What happened, and what has to be known of it. `name`: as kubectl takes it; `unread`: why there are no events."""

    name: str
    entries: Sequence[Entry]
    unread: str = ""

    @property
    def kept(self) -> str:
        """How far back events go."""
        if self.unread:
            return f"without events: {self.unread}"
        first = next((e.at for e in self.entries if e.source == "event"), None)
        since = f"the oldest here is of {moment(first)}" if first else "there are none here"
        return f"events are kept for an hour, or as long as the API server is told to; {since}"


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("name", metavar="POLICY|NODE", help="a policy or a node")
    parser.add_argument("--tail", type=_count, metavar="N", help="only the last N (default: all)")
    add_output(parser, NAMES)
    add_cluster(parser)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


async def run(options: argparse.Namespace) -> int:
    """Look, print, and return the exit code."""
    from gpupartition.cli.cluster import answer

    async def ask(client: Client) -> Answer:
        found = await look(client, options.name)
        if options.tail:
            found = History(name=found.name, entries=found.entries[-options.tail :], unread=found.unread)
        return FORMS[options.output](found), ()

    return await answer(options, "history", ask)


async def look(client: Client, text: str) -> History:
    """What is known of a policy or a node. Raises Unusable where there is neither, and ApiError."""
    from gpupartition.domain import chronicle
    from gpupartition.kinds import DRIVERS, NODE_STATES, POLICIES

    policies, records = (await client.list(POLICIES)).items, (await client.list(NODE_STATES)).items
    events, unread = await _events(client)
    told = [entry for entry in map(chronicle.of_event, events) if entry is not None]
    known = {
        "policies": {body["metadata"]["name"] for body in policies} | {e.policy for e in told if e.policy},
        "nodes": {body["metadata"]["name"] for body in records} | {e.node for e in told if e.node},
    }
    kind, name = target(text, known["policies"], known["nodes"])

    def mine(entry: Entry) -> bool:
        return (entry.policy if kind == POLICY else entry.node) == name

    found = list(told)
    for record in records:
        found += chronicle.of_record(record)
    for driver in (await client.list(DRIVERS)).items:
        for grant in driver.get("status", {}).get("inFlight", ()):
            found += chronicle.of_grant(grant)
    for body in policies:
        found += chronicle.of_policy(body)
    return History(name=f"{kind}/{name}", entries=chronicle.in_order(filter(mine, found)), unread=unread)


async def _events(client: Client) -> tuple[list[Object], str]:
    from gpupartition.kube import EVENTS, Forbidden

    try:
        return (await client.list(EVENTS, field_selector=f"source={FIELD_MANAGER}")).items, ""
    except Forbidden as error:
        return [], f"{error}; grant the right: bind the ClusterRole gpupartition-plan (manifests/base/planner.yaml)"


# ------------------------------------------------------------------------------------------------------------------------- forms


def pictured(found: History, _: datetime) -> Iterator[Line]:
    """For people: a line for each, and how far back events go."""
    rows = [
        (
            moment(each.at.replace(microsecond=0)) or "",
            each.node or each.policy,
            Span(each.what, "yellow" if each.warning else ""),
            Span(each.source, "dim"),
            each.says,
        )
        for each in found.entries
    ]
    yield from grid(("TIME", "ABOUT", "WHAT", "FROM", "SAYS"), rows)
    yield ()
    yield line(Span(found.kept, "dim"))


def as_data(found: History) -> dict[str, Any]:
    """Everything, in names that stay."""
    return {
        "name": found.name,
        "kept": found.kept,
        "entries": [
            {
                "at": moment(each.at),
                "from": each.source,
                "policy": each.policy,
                "node": each.node,
                "what": each.what,
                "says": each.says,
                "warning": each.warning,
            }
            for each in found.entries
        ],
    }


def names(found: History) -> list[str]:
    """What it is about, as kubectl takes it."""
    return [found.name]


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
