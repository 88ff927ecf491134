"""`gpupartition simulate`: which claims would find devices now, and which after a policy. Reads the cluster and writes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.forms import NAMES, forms
from gpupartition.cli.options import Unusable, add_cluster, add_fail_on, add_output, describe
from gpupartition.cli.paint import Cell, Line, grid, line

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.cli.documents import Document
    from gpupartition.domain.asks import Ask
    from gpupartition.domain.fit import Outcome
    from gpupartition.kube import Client
    from gpupartition.settings import Settings

FINDINGS: Final = ("unfit", "unknown")

ABOUT: Final = """
Gives devices to claims as the scheduler would, in the order of the files, beside all that is allocated: which claims fit, on which node, with
which devices. With a policy it says the same of the cluster after all waves of its roll-out. Of a pod it looks at its claims, and at what
nodes themselves say of it (nodeName, nodeSelector, required node affinity, taints), not at CPU, memory or anything else.

Files may have ResourceClaims, ResourceClaimTemplates, Pods, Deployments, StatefulSets, ReplicaSets and Jobs. Claims and templates that pods
name and no file has are looked up in the cluster. Nothing is written: the ClusterRole gpupartition-plan is all that it needs.
"""
EXAMPLES: Final = """
examples:
  %(prog)s -f claims.yaml                        what fits now
  %(prog)s -f job.yaml --policy quarters.yaml    and after a policy
  kustomize build . | %(prog)s -f -              both from stdin; other kinds are passed over
  %(prog)s -f job.yaml --fail-on=unfit           for pipelines

exit codes: 0 told; 1 could not be told (the message says why); 2 wrong usage; 3 one of --fail-on was found: unfit (something finds no devices;
after the policy, if there is one) or unknown (nobody can say, or the time was up)
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    what = "YAML with claims, templates, pods or workloads; - is stdin"
    parser.add_argument("-f", "--filename", action="append", required=True, metavar="FILE", help=what)
    what = "YAML with policies and drivers, which may be among the others too"
    parser.add_argument("--policy", action="append", default=[], metavar="FILE", help=what)
    parser.add_argument("-n", "--namespace", default="default", help="of objects that say none (default: %(default)s)")
    parser.add_argument(
        "--patience", type=float, default=10.0, metavar="SECONDS", help="how long to look (default: %(default)g)"
    )
    add_output(parser, NAMES)
    add_cluster(parser)
    add_fail_on(parser, FINDINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What comes of one who asks. `after` None: no policy was given."""

    ask: Ask
    now: Outcome
    after: Outcome | None

    @property
    def last(self) -> Outcome:
        """What comes of it in the end."""
        return self.now if self.after is None else self.after


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Simulate, print, and return the exit code."""
    from gpupartition.cli.cluster import answer
    from gpupartition.cli.documents import read
    from gpupartition.cli.workloads import KINDS
    from gpupartition.domain.fit import Fits

    documents = read([*options.filename, *options.policy], kinds=KINDS)

    async def ask(client: Client) -> Answer:
        rows = await simulate(client, settings, documents, options.namespace, options.patience)
        fits = {row.last.fits for row in rows}
        found = {"unfit"} if Fits.NO in fits else set()
        found |= {"unknown"} if fits & {Fits.UNKNOWN, Fits.UNSEEN} else set()
        return FORMS[options.output](rows), found

    return await answer(options, "simulation", ask)


async def simulate(
    client: Client, settings: Settings, documents: Sequence[Document], namespace: str, patience: float
) -> list[Row]:
    """What comes of each who asks in these documents. Raises Unusable and ApiError."""
    from gpupartition.cli.board import Board
    from gpupartition.cli.documents import OURS
    from gpupartition.cli.fitting import look, until
    from gpupartition.cli.planned import planned_for
    from gpupartition.cli.workloads import asks_of, placed
    from gpupartition.domain.asks import Desk, key_of
    from gpupartition.kube.pauses import unhurried

    policies = [document for document in documents if document.kind in OURS.versions]
    bodies = placed(documents, namespace)
    claims, templates = (_of(bodies, kind) for kind in ("ResourceClaim", "ResourceClaimTemplate"))
    with unhurried():
        seen = await planned_for(client, settings, policies, ()) if policies else None
        sight = await look(client, seen)
        sight = sight.without({key_of(claim) for claim in claims}).with_classes(_of(bodies, "DeviceClass"))
        desk = Desk([*sight.claims, *claims], [*sight.templates, *templates], sight.classes)
        asks = asks_of(bodies, desk)
        if not asks:
            raise Unusable("nothing in the files asks for devices: add a ResourceClaim, or a pod that names one")
        board, late = Board(sight, seen), until(patience)
        now, after = board.now(), board.after() if seen is not None else None
        return [
            Row(ask=each, now=now.place([each], late)[each], after=after.place([each], late)[each] if after else None)
            for each in asks
        ]


def _of(bodies: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [body for body in bodies if body["kind"] == kind]


# ------------------------------------------------------------------------------------------------------------------------ forms


def pictured(rows: Sequence[Row], _: datetime) -> Iterator[Line]:
    """A line for each who asks: on which node it fits now and then, with which devices, or why not."""
    from gpupartition.domain.fit import Fits

    yield from grid(("WHO", "NOW", "AFTER", "DEVICES", "WHY"), [_cells(row) for row in rows])
    left = sum(row.last.fits is Fits.UNSEEN for row in rows)
    if left:
        yield ()
        yield line(f"looked at {len(rows) - left} of {len(rows)}, then the time was up; give it more --patience")


def _cells(row: Row) -> tuple[Cell, ...]:
    from gpupartition.cli.prospects import outcome

    devices = ", ".join(f"{pool}/{name}" for _, pool, name in row.last.devices)
    return f"{row.ask.kind} {row.ask}", outcome(row.now), outcome(row.after), devices, row.last.why


def as_data(rows: Sequence[Row]) -> Mapping[str, Any]:
    """Everything, in names that stay."""
    from gpupartition.cli.prospects import outcome_data

    return {
        "asks": [
            {
                "kind": row.ask.kind,
                "namespace": row.ask.namespace,
                "name": row.ask.name,
                "now": outcome_data(row.now),
                **({"after": outcome_data(row.after)} if row.after is not None else {}),
            }
            for row in rows
        ]
    }


def names(rows: Sequence[Row]) -> list[str]:
    """Those that fit in the end, as kubectl takes them."""
    from gpupartition.cli.workloads import SPECS
    from gpupartition.domain.fit import Fits

    found: dict[str, bool] = {}
    for row in rows:
        group, slash, _ = SPECS[row.ask.kind][0].rpartition("/")
        name = f"{row.ask.kind.lower()}{slash and '.'}{group}/{row.ask.name.partition(' ')[0]}"
        found[name] = found.get(name, True) and row.last.fits is Fits.YES
    return [name for name, fits in found.items() if fits]


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
