"""Commands that write. They write a word beside a spec (who, why, until when), and never a spec, so that GitOps does not revert it.

What is written is bound to what was read: of two people who write at the same time the second one reads again, and is told of the first.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpupartition.cli.forms import NAMES, forms
from gpupartition.cli.options import OK, Unusable, add_cluster, add_output, complain
from gpupartition.cli.paint import Line, Span, line
from gpupartition.cli.targets import POLICY, must_be_there
from gpupartition.domain.wording import few

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.domain.reports import NodeReport
    from gpupartition.domain.suspension import Suspension
    from gpupartition.kube import Client, Kind, Object

T = TypeVar("T")

NONE, CLIENT, SERVER = DRY_RUNS = ("none", "client", "server")
TRIES: Final = 10  # of one write: the operator writes to the same objects, at most once a second
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN: Final = re.compile(r"(\d{1,6}[smhd])+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of one object. `about`: for people, `name`: as kubectl takes it; `says`: a sentence; `wrote`: the annotations, or data.

    `in_flight`: None where they could not be read; `fails`: why what was asked for is not so all the same.
    """

    about: str
    name: str
    says: str = ""
    wrote: Mapping[str, str | None] = field(default_factory=dict)
    in_flight: tuple[NodeReport, ...] | None = ()
    dry_run: str = NONE
    fails: str = ""


class Disturbed(Exception):  # noqa: N818  (reads as what happened)
    """What was to be written to has just come, or gone."""


Act = Callable[["Client"], Awaitable[Sequence[Done]]]


# ----------------------------------------------------------------------------------------------------------------------- options


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what all of these commands take."""
    parser.add_argument(
        "--dry-run",
        nargs="?",
        choices=DRY_RUNS,
        const=CLIENT,
        default=NONE,
        help="client: only say what would be written; server: have the API server check it too, and store nothing",
    )
    add_output(parser, NAMES)
    add_cluster(parser)


def add_why(parser: argparse.ArgumentParser) -> None:
    """Add why, until when, and what becomes of somebody else's word."""
    parser.add_argument("--reason", help="why, for everybody who looks at the status")
    parser.add_argument(
        "--until",
        type=moment_of,
        metavar="TIME",
        help="when it is over by itself: a duration from now, such as 90m, 2h or 1d12h, or a time such as 2026-12-01T06:00:00Z",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what somebody else has written")


def moment_of(text: str, now: datetime | None = None) -> str:
    """A time as it is written down, from a duration or a time. Raises ArgumentTypeError."""
    now = now or datetime.now(UTC)
    try:
        if _SPAN.fullmatch(text):
            parts = re.findall(r"(\d+)([smhd])", text)
            at = now + timedelta(seconds=sum(int(count) * _UNITS[unit] for count, unit in parts))
        else:
            at = datetime.fromisoformat(text)
        told = written(at) if at.tzinfo is not None else ""
    except (ValueError, OverflowError):
        told = ""
    if not told:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a duration such as 2h nor a time with its zone such as 2026-12-01T06:00:00Z"
        )
    if at <= now:
        raise argparse.ArgumentTypeError(f"{text} is over already; it is {written(now)}")
    return told


def written(at: datetime) -> str:
    """A time as it stands in an annotation."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def order(found: Suspension | None, options: argparse.Namespace, me: str, what: str) -> Suspension | None:
    """What is to be written in the place of what is found; None where that says it already.

    Of one's own word what is not said anew stays. Raises Unusable for somebody else's, unless it is to be replaced.
    """
    from gpupartition.domain.suspension import Suspension

    asked = Suspension(by=me, reason=options.reason or "", until=options.until or "")
    if found is None or not found.holds(datetime.now(UTC)):
        return asked
    if options.reason in {None, found.reason} and options.until in {None, found.until}:
        return None
    if found.by == me != "":
        return replace(asked, reason=asked.reason or found.reason, until=asked.until or found.until)
    if not options.overwrite:
        raise Unusable(f"{what}: {found}; --overwrite replaces that")
    return asked


# ---------------------------------------------------------------------------------------------------------------------- carrying


async def carry(options: argparse.Namespace, act: Act) -> int:
    """Do it, say what was done, and return the exit code: 1 where something that was asked for is not so."""
    from gpupartition.cli.cluster import answer

    fails: list[str] = []

    async def ask(client: Client) -> Answer:
        done = [replace(each, dry_run=options.dry_run) for each in await act(client)]
        fails.extend(f"{each.about}: {each.fails}" for each in done if each.fails)
        return FORMS[options.output](done), ()

    code = await answer(options, "answer", ask)
    return code if code != OK or not fails else complain(*fails)


async def annotate(
    client: Client,
    kind: Kind,
    name: str,
    decide: Callable[[Object], Mapping[str, str | None]],
    *,
    dry_run: str,
) -> Mapping[str, str | None]:
    """Have these annotations (None: taken away) on an object, decided from what it is now; {} where nothing is to be written.

    Raises what `decide` raises, NotFound, and ApiError.
    """

    async def write() -> Mapping[str, str | None]:
        body = await client.get(kind, name)
        notes = body["metadata"].get("annotations") or {}
        wanted = {key: value for key, value in decide(body).items() if notes.get(key) != value}
        if wanted and dry_run != CLIENT:
            patch = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"], "annotations": wanted}}
            await client.patch(kind, name, patch, dry_run=dry_run == SERVER)
        return wanted

    return await undisturbed(f"{kind} {name}", write)


async def undisturbed(what: str, write: Callable[[], Awaitable[T]]) -> T:
    """Look and write anew while somebody writes in between: by then it may say something else. Raises Unusable when that has no end."""
    from gpupartition.kube import Conflict

    for _ in range(TRIES):
        try:
            return await write()
        except (Conflict, Disturbed):
            continue
    raise Unusable(f"{what}: somebody writes to it all the time, and nothing was written; try again")


async def whoami(client: Client) -> str:
    """The name under which the API server knows whoever asks; "" where it does not tell."""
    from gpupartition.kube import ApiError

    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await client.raw("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
    except ApiError:
        return ""
    return str(answer["status"].get("userInfo", {}).get("username", ""))


async def chosen(client: Client, names: Sequence[str], selector: str) -> list[str]:
    """The policies of these names and this selector. Raises Unusable for one that is not there, or where none is asked for."""
    from gpupartition.kinds import POLICIES

    known = {body["metadata"]["name"] for body in (await client.list(POLICIES)).items}
    asked = [name.removeprefix(f"{POLICY}/") for name in names]
    must_be_there(asked, known)
    if selector:
        found = (await client.list(POLICIES, label_selector=selector)).items
        asked += [body["metadata"]["name"] for body in found]
        if not asked:
            raise Unusable(
                f"no GpuPartitionPolicy has labels {selector}; there are: {', '.join(sorted(known)) or 'none'}"
            )
    return list(dict.fromkeys(asked))


async def one_by_one(targets: Iterable[tuple[str, str]], write: Callable[[str, str], Awaitable[Done]]) -> list[Done]:
    """What became of each kind and name. One that fails says why: what was written is told, and the others are not left as they are."""
    from gpupartition.cli.cluster import explained
    from gpupartition.kube import ApiError

    done = []
    for kind, name in targets:
        try:
            done.append(await write(kind, name))
        except (Unusable, ApiError) as error:
            why = explained(error) if isinstance(error, ApiError) else "; ".join(error.lines)
            done.append(Done(about=name, name=f"{kind}/{name}", fails=why))
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """The nodes that are being changed, or why nobody can say: what has been written by then is in force all the same."""

    nodes: tuple[NodeReport, ...] = ()
    unread: str = ""

    def of(self, policy: str) -> Moving:
        """Those of one policy."""
        return replace(self, nodes=tuple(n for n in self.nodes if n.policy == policy))

    def added_to(self, done: Done) -> Done:
        """The same, which says what becomes of them when no other is taken."""
        nodes = None if self.unread else self.nodes
        return replace(done, says=f"{done.says}; {self}", in_flight=nodes)

    def __str__(self) -> str:
        if self.unread:
            return f"who is in flight, and goes on to the end, could not be read: {self.unread}"
        if not self.nodes:
            return "no node is in flight"
        told = few([f"{n.node} ({n.phase})" for n in self.nodes])
        return f"{len(self.nodes)} in flight {'goes' if len(self.nodes) == 1 else 'go'} on to the end: {told}"


async def in_flight(client: Client) -> Moving:
    """The nodes that are being changed."""
    from gpupartition.cli.cluster import explained
    from gpupartition.domain.reports import QUIET, STUCK, read_node
    from gpupartition.kinds import NODE_STATES
    from gpupartition.kube import ApiError

    try:
        nodes = map(read_node, (await client.list(NODE_STATES)).items)
    except ApiError as error:
        return Moving(unread=explained(error))
    return Moving(nodes=tuple(sorted((n for n in nodes if n.phase not in QUIET | STUCK), key=lambda n: n.node)))


# ------------------------------------------------------------------------------------------------------------------------- forms


def pictured(found: Iterable[Done], _: datetime) -> Iterator[Line]:
    """For people: a line for each object; what failed is told as an error."""
    for each in (each for each in found if not each.fails):
        tried = {NONE: "", CLIENT: " (dry run)", SERVER: " (server dry run)"}[each.dry_run]
        yield line(Span(each.about, "bold"), f": {each.says}", Span(tried, "yellow"))


def as_data(found: Iterable[Done]) -> dict[str, Any]:
    """Everything, in names that stay."""
    return {
        "objects": [
            {
                "name": each.name,
                "changed": bool(each.wrote),
                "dryRun": each.dry_run,
                "says": each.fails or each.says,
                "failed": bool(each.fails),
                "wrote": dict(each.wrote),
                "inFlight": None
                if each.in_flight is None
                else [{"node": n.node, "phase": n.phase} for n in each.in_flight],
            }
            for each in found
        ]
    }


def names(found: Iterable[Done]) -> list[str]:
    """The objects, as kubectl takes them."""
    return [each.name for each in found if not each.fails]


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
