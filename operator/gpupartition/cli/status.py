"""`gpupartition status`: how policies and their nodes stand, who is in the way, what failed. Reads the cluster and writes nothing."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from gpupartition.cli.forms import NAMES, forms, moment, painted
from gpupartition.cli.options import USAGE, add_cluster, add_output, add_selector, complain, describe
from gpupartition.cli.paint import Line, Span, age, grid, line, rendered
from gpupartition.cli.targets import POLICY, must_be_there
from gpupartition.domain.wording import few

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.domain.reports import NodeReport, PolicyReport
    from gpupartition.kube import Client, Object

ABOUT: Final = """
Says of each policy how many of its nodes have what is wanted, and names those that are being changed, those that are blocked, with the pods
that are in the way, and those that failed. Nodes that are done, or simply wait for their turn, are counted and not named. It only reads.
"""
EXAMPLES: Final = """
examples:
  %(prog)s                      all policies
  %(prog)s inference            one of them
  %(prog)s -l team=ml -w        those with a label, again whenever something changes
  %(prog)s -o json              every node, for programs

exit codes: 0 told; 1 the cluster could not be read, or a policy is not there (the message says so); 2 wrong usage
"""

TICK: Final = 1.0  # seconds between two pictures of a screen on which nothing but ages changed
CALM: Final = 0.2  # seconds from one picture to the next at least: faster nobody reads
SCREEN, BACK, CLEAR = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l", "\x1b[H\x1b[J"
"""A screen of our own without a cursor, in which what is too long ends at the edge: a line that wraps takes two, and pushes the first away."""

_STYLES: Final = {"UpToDate": "green", "Pending": "dim", "Failed": "red", "RolledBack": "red", "Skipped": "red"}


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("name", nargs="*", metavar="POLICY", help="a policy (default: all)")
    add_selector(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="go on telling what changes, until interrupted")
    add_output(parser, NAMES)
    add_cluster(parser)


async def run(options: argparse.Namespace) -> int:
    """Look, print, and return the exit code."""
    from gpupartition.cli.cluster import answer

    if options.watch and options.output != "table":
        complain(f"-w tells people what changes, and has no form {options.output}; leave one of them out")
        return USAGE

    async def ask(client: Client) -> Answer:
        if options.watch:
            await watch(client, options)
        return FORMS[options.output](await look(client, options)), ()

    return await answer(options, "status", ask)


async def look(client: Client, options: argparse.Namespace) -> list[PolicyReport]:
    """How the policies that are asked for stand now. Raises Unusable and ApiError."""
    from gpupartition.kinds import NODE_STATES, POLICIES

    policies, records = await asyncio.gather(
        client.list(POLICIES, label_selector=options.selector), client.list(NODE_STATES)
    )
    return chosen(policies.items, records.items, options.selector, options.name)


def chosen(
    policies: Collection[Object], records: Collection[Object], selector: str, names: Collection[str] = ()
) -> list[PolicyReport]:
    """Those of the policies that are asked for. Raises Unusable for one that is not there."""
    from gpupartition.domain.reports import reports

    there = {body["metadata"]["name"] for body in policies}
    found = reports(policies, records)
    if selector:  # the API server has applied it to policies, and nodes of others are nobody's here
        found = [each for each in found if each.policy in there]
    known = {each.policy for each in found}
    must_be_there(names, known)
    return [each for each in found if not names or each.policy in names]


# ------------------------------------------------------------------------------------------------------------------------ forms


def pictured(found: Sequence[PolicyReport], now: datetime) -> Iterator[Line]:
    """For people: each policy's sentence, then its nodes of which there is something to say."""
    if not found:
        yield line(
            Span("there is no GpuPartitionPolicy", "dim"), "; write one, or see what nodes have already with adopt"
        )
    for number, policy in enumerate(found):
        if number:
            yield ()
        yield from _policy(policy, now)


def _policy(policy: PolicyReport, now: datetime) -> Iterator[Line]:
    style = "green" if policy.ready == "True" else "red" if policy.stalled else "yellow"
    observes = " (observes)" if policy.mode == "Observe" else ""
    count = [": ", policy.progress] if policy.progress else []
    yield line(Span(policy.policy, "bold"), f" (driver {policy.driver}){observes}", *count)
    yield line("  ", Span(policy.reason, style), f": {policy.message}" if policy.message else "")
    if policy.also:
        yield line("  ", Span(policy.also, "yellow"))
    rows = [_row(node, now) for node in policy.nodes if node.telling]
    if rows:
        yield ()
        yield from grid(("NODE", "PHASE", "SINCE", "CHANGE", "BLOCKED BY", "WHY"), rows, indent="  ")


def _row(node: NodeReport, now: datetime) -> tuple[str | Span, ...]:
    return (
        node.node,
        Span(node.phase, _STYLES.get(node.phase, "yellow")),
        age(now - node.since) if node.since else "",
        node.change if node.change != "None" else "",
        Span(_who(node), "magenta"),
        _why(node),
    )


def _why(node: NodeReport) -> str:
    return ": ".join(part for part in (node.reason, node.message) if part)


def _who(node: NodeReport) -> str:
    return few(sorted({each.who for each in node.blockers}), most=2)


def as_data(found: Sequence[PolicyReport]) -> dict[str, Any]:
    """Everything, in names that stay."""
    return {
        "policies": [
            {
                **{key: getattr(each, key) for key in ("policy", "driver", "mode", "ready", "stalled")},
                "reason": each.reason,
                "message": each.message,
                "suspended": dict(each.suspended),
                "counts": dict(each.counts),
                "nodes": [_node_data(node) for node in each.nodes],
            }
            for each in found
        ]
    }


def _node_data(node: NodeReport) -> dict[str, Any]:
    body = asdict(node)
    del body["policy"], body["driver"]
    body["hasGrant"] = body.pop("has_grant")
    body["since"] = moment(node.since)
    body["blockers"] = [{**asdict(each), "since": moment(each.since)} for each in node.blockers]
    return body


def names(found: Sequence[PolicyReport]) -> list[str]:
    """The policies, as kubectl takes them."""
    return [f"{POLICY}/{each.policy}" for each in found]


FORMS: Final = forms(picture=pictured, data=as_data, names=names)


# ------------------------------------------------------------------------------------------------------------------------ watch


async def watch(client: Client, options: argparse.Namespace) -> NoReturn:
    """Tell what changes until interrupted. Raises Unusable and ApiError for how it begins, and OSError where it cannot be written."""
    from gpupartition.kinds import NODE_STATES, POLICIES
    from gpupartition.kube.reflector import Reflector

    changed = asyncio.Event()
    policies = Reflector(client, POLICIES, _as_it_is, lambda *_: changed.set(), label_selector=options.selector)
    records = Reflector(client, NODE_STATES, _as_it_is, lambda *_: changed.set())
    for each in (policies, records):
        await each.read()

    # At first, to complain of names that are nowhere.
    chosen(policies.values(), records.values(), options.selector, options.name)

    def now() -> list[PolicyReport]:
        found = chosen(policies.values(), records.values(), options.selector)
        return [each for each in found if not options.name or each.policy in options.name]

    lively = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    as_of = datetime.now(UTC)
    keeping = [asyncio.create_task(each.run()) for each in (policies, records)]
    try:
        with Screen() if lively else Log() as display:
            while True:
                changed.clear()
                trouble = next((each.trouble for each in (policies, records) if each.trouble is not None), None)
                as_of = as_of if trouble else datetime.now(UTC)
                display.show(now(), f"as of {as_of:%H:%M:%S}: {trouble}" if trouble else "")
                await asyncio.sleep(CALM)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), TICK)
    finally:
        for task in keeping:
            task.cancel()


def _as_it_is(body: Object) -> Object:
    return body


class Display(AbstractContextManager["Display"]):
    """Where one picture follows the other."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it as it was found."""

    def show(self, found: Sequence[PolicyReport], old: str = "") -> None:
        """Show how things stand now, or (`old`) stood when they could last be read. Raises OSError where that cannot be written."""
        raise NotImplementedError


class Screen(Display):
    """A terminal: the whole picture, again and again, in a screen of its own."""

    def __enter__(self) -> Self:
        sys.stdout.write(SCREEN)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.write(BACK)
        sys.stdout.flush()

    def show(self, found: Sequence[PolicyReport], old: str = "") -> None:
        """Draw over what was there, as much as there is room for."""
        above = [line(Span(old, "red")), ()] if old else []
        lines = painted([*above, *pictured(found, datetime.now(UTC))]).splitlines()
        room = shutil.get_terminal_size().lines - 1
        if len(lines) > room:
            lines = [*lines[: room - 1], f"… and {len(lines) - room + 1} more lines; see them all without -w"]
        sys.stdout.write(CLEAR + "\n".join(lines))
        sys.stdout.flush()


class Log(Display):
    """A pipe or a file: a line for whatever is new."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._old = ""

    def show(self, found: Sequence[PolicyReport], old: str = "") -> None:
        """Tell what was not told before."""
        at = datetime.now(UTC).strftime("%H:%M:%S")
        before, self._said = self._said, dict(_in_lines(found))
        news = [(about, text) for about, text in self._said.items() if before.get(about) != text]
        news += [(about, "gone") for about in before if about not in self._said]
        if old != self._old:
            self._old = old
            news.append(("cluster", old or "can be read again"))
        for about, text in news:
            sys.stdout.write(rendered([line(f"{at}  {about}  {text}")], colour=False) + "\n")
        sys.stdout.flush()


def _in_lines(found: Sequence[PolicyReport]) -> Iterator[tuple[str, str]]:
    """What each policy and each node is told as, by what it is about."""
    for policy in found:
        parts = (policy.progress, f"{policy.reason}: {policy.message}", policy.also)
        yield f"policy/{policy.policy}", "; ".join(part for part in parts if part)
        for node in policy.nodes:
            blocked = f"blocked by {_who(node)}" if node.blockers else ""
            yield f"node/{node.node}", "  ".join(part for part in (node.phase, blocked, _why(node)) if part)
