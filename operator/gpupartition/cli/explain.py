"""`gpupartition explain NODE`: why a node is where it is, who is in the way, what would free it. Reads the cluster and writes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.forms import NAMES, forms, moment
from gpupartition.cli.options import Unusable, add_cluster, add_output, describe
from gpupartition.cli.paint import Line, Span, age, grid, line
from gpupartition.cli.targets import NODE, no_node

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.cli.planned import Planned
    from gpupartition.domain.plan import NodePlan, Plan
    from gpupartition.domain.reports import Blocking, NodeReport
    from gpupartition.kube import Client, Object
    from gpupartition.settings import Settings

ABOUT: Final = """
Says of a node which policy has it, in which phase it is and since when, whether it has a grant, what a plan foresees, and who holds devices
that would change: claim, pod, disruption budget, since when, and what would free them. Holders are read now; what became of their eviction
is what the operator has written last. It only reads.
"""
EXAMPLES: Final = """
examples:
  %(prog)s node-2
  %(prog)s node-2 -o json       for programs

exit codes: 0 told; 1 the cluster could not be read, or there is no such node (the message says so); 2 wrong usage
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """The nodes with which a node shares its pool: who leads, who follows, and what becomes of the one who leads."""

    name: str
    leader: str
    followers: tuple[str, ...]
    foreseen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that is known of one node. `unforeseen`: why nothing could be planned for it."""

    node: str
    policy: str = ""
    driver: str = ""
    report: NodeReport | None = None
    grant: Mapping[str, Any] | None = None
    foreseen: NodePlan | None = None
    opens: str = ""
    unforeseen: str = ""
    blockers: tuple[Blocking, ...] = ()
    group: Grouped | None = None
    next: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfNode:
    """What plans say of one node: its row in the one that takes it, if any; `unforeseen`: why there is none."""

    plan: Plan | None = None
    row: NodePlan | None = None
    group: Grouped | None = None
    unforeseen: str = ""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("node", metavar="NODE", help="name of a node")
    add_output(parser, NAMES)
    add_cluster(parser)


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Look, print, and return the exit code."""
    from gpupartition.cli.cluster import answer

    async def ask(client: Client) -> Answer:
        return FORMS[options.output](await explain(client, settings, options.node)), ()

    return await answer(options, "explanation", ask)


async def explain(client: Client, settings: Settings, name: str) -> Explanation:
    """What is known of a node. Raises Unusable where there is neither a node nor a record of this name, and ApiError."""
    from gpupartition.controller.records import Record
    from gpupartition.domain.plan import Fate
    from gpupartition.domain.remedies import ENFORCE, advice
    from gpupartition.domain.reports import read_node
    from gpupartition.kinds import DRIVERS, NODE_STATES, POLICIES
    from gpupartition.kube import NODES

    node, record = await client.find(NODES, name), await client.find(NODE_STATES, name)
    if node is None and record is None:
        raise no_node(name)
    report = read_node(record) if record else None
    if report and record and (known := Record.read(record)).unreadable:
        report = replace(report, reason=known.state.reason, message=known.state.message)
    planned = await _of_node(client, settings, name, report)
    plan, row = planned.plan, planned.row
    policy = report.policy if report else plan.policy if plan else ""
    driver = report.driver if report else plan.driver if plan else ""
    drivers = (await client.list(DRIVERS)).items
    found = Explanation(
        node=name,
        policy=policy,
        driver=driver,
        report=report,
        grant=_grant(drivers, name),
        foreseen=row,
        opens=plan.opens if plan else "",
        unforeseen=planned.unforeseen,
        blockers=await _blockers(client, report, row),
        group=planned.group,
    )
    about = {"node": name, "policy": policy, "driver": driver}
    if row is not None and row.fate in {Fate.STARTS, Fate.BLOCKED, Fate.WAITS}:
        body = await client.find(POLICIES, policy)
        if body is not None and body["spec"].get("mode") == "Observe":
            return replace(found, next=ENFORCE.format(**about))
    return replace(found, next=advice(report, row.fate if row else None, about))


async def _of_node(client: Client, settings: Settings, name: str, report: NodeReport | None) -> _OfNode:
    from gpupartition.cli.planned import planned_for
    from gpupartition.domain.plan import Fate
    from gpupartition.kube.pauses import unhurried

    try:
        with unhurried():
            seen = await planned_for(client, settings, (), [report.policy] if report else [])
    except Unusable as unusable:
        return _OfNode(unforeseen="; ".join(unusable.mistakes))
    group = _group(seen, name)
    planned = [(plan, row) for plan in seen.plans for row in plan.nodes if row.node == name]
    for plan, row in sorted(planned, key=lambda each: each[1].fate is Fate.CONTESTED):
        return _OfNode(plan=plan, row=row, group=group)
    if report is not None:
        return _OfNode(unforeseen=f"{report.policy} no longer selects it, or it is as it should be", group=group)
    refused = "; ".join(plan.refused for plan in seen.plans if plan.refused and not plan.nodes)
    return _OfNode(unforeseen=refused or "no policy selects it", group=group)


def _grant(drivers: Sequence[Object], node: str) -> Mapping[str, Any] | None:
    """The node's entry in the ledger of its driver."""
    grants = (grant for body in drivers for grant in body.get("status", {}).get("inFlight", ()))
    return next((grant for grant in grants if grant["node"] == node), None)


async def _blockers(client: Client, report: NodeReport | None, row: NodePlan | None) -> tuple[Blocking, ...]:
    """Who is in the way now. Whose eviction was refused only the record says: of those in it, the ones that still hold their device."""
    from gpupartition.domain.plan import Fate
    from gpupartition.domain.reports import Blocking

    now = tuple(
        Blocking(claim=b.claim, pod=b.pod, pdb=b.pdb, device=b.device, reason=b.reason, since=b.since)
        for b in (row.blockers if row else ())
    )
    if report is None or (row is not None and row.fate is not Fate.UNDER_WAY):
        return now
    held = await _held(client) if report.blockers else frozenset()
    still = [each for each in report.blockers if (each.claim, each.device) in held]
    known = {(each.claim, each.device) for each in still}
    return (*still, *(each for each in now if (each.claim, each.device) not in known))


async def _held(client: Client) -> frozenset[tuple[str, str]]:
    """Which claim has which device. All are read: names in a record are not put into an address before they are known to be some."""
    from gpupartition.kube import RESOURCE_CLAIMS
    from gpupartition.kube.reflector import key_of

    return frozenset(
        (key_of(claim), result["device"])
        for claim in (await client.list(RESOURCE_CLAIMS)).items
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    )


def _group(seen: Planned, node: str) -> Grouped | None:
    group = next((group for scope in seen.scopes if (group := scope.groups.get(node)) is not None), None)
    if group is None:
        return None
    rows = ((plan, row) for plan in seen.plans for row in plan.nodes if row.node == group.leader)
    return Grouped(
        name=group.name,
        leader=group.leader,
        followers=tuple(sorted(group.names - {group.leader})),
        foreseen=next((_plan(row, plan.opens) for plan, row in rows), ""),
    )


# ------------------------------------------------------------------------------------------------------------------------ forms


def pictured(found: Explanation, now: datetime) -> Iterator[Line]:
    """For people: where it is, why, who is in the way, what leads on."""
    from gpupartition.domain.remedies import remedy

    report, row = found.report, found.foreseen
    phase = report.phase if report else "no record of it"
    since = f" for {age(now - report.since)}" if report and report.since else ""
    whose = f" (policy {found.policy}, driver {found.driver})" if found.policy else ""
    yield line(Span(found.node, "bold"), ": ", Span(phase, "yellow"), since, whose)
    if found.blockers:
        yield ()
        yield from grid(
            ("CLAIM", "POD", "DEVICE", "HOLDS IT", "SINCE", "PDB", "WHAT WOULD FREE IT"),
            [
                (b.claim, b.pod, b.device, b.reason, age(now - b.since) if b.since else "", b.pdb, remedy(b.reason))
                for b in found.blockers
            ],
            indent="  ",
        )
    told = {
        "why": ": ".join(p for p in (report.reason, report.message) if p) if report else "",
        "group": _in_group(found.group, found.node) if found.group else "",
        "change": _change(found),
        "grant": f"{found.grant.get('purpose', 'RollOut')} since {found.grant['since']}" if found.grant else "none",
        "plan": _plan(row, found.opens) or found.unforeseen,
        "next": found.next,
    }
    yield ()
    yield from (line(Span(f"  {name:<8}", "dim"), text) for name, text in told.items() if text)


def _change(found: Explanation) -> str:
    row = found.foreseen
    if row is None or row.change == "None":
        return ""
    return f"{row.change}, +{len(row.gained)} -{len(row.lost)} devices" if row.gained or row.lost else row.change


def _in_group(group: Grouped, node: str) -> str:
    from gpupartition.domain.wording import few

    others = group.followers
    follow = f", {few(others)} follow{'s' if len(others) == 1 else ''} it" if others else ""
    leader = f"; {group.leader}: {group.foreseen}" if group.foreseen and group.leader != node else ""
    return f"{group.name}: {group.leader} leads{follow}{leader}"


def _plan(row: NodePlan | None, opens: str) -> str:
    if row is None:
        return ""
    wave = f"begins in wave {row.wave}{f', {opens}' if opens else ''}" if row.wave else ""
    return "; ".join(part for part in (str(row.fate), wave, row.why) if part)


def as_data(found: Explanation) -> dict[str, Any]:
    """Everything, in names that stay."""
    from gpupartition.domain.remedies import remedy

    report, row = found.report, found.foreseen
    return {
        "node": found.node,
        "policy": found.policy,
        "driver": found.driver,
        "phase": report.phase if report else None,
        "since": moment(report.since) if report else None,
        "reason": report.reason if report else "",
        "message": report.message if report else "",
        "attempts": report.attempts if report else 0,
        "grant": {key: found.grant.get(key) for key in ("purpose", "since", "policy")} if found.grant else None,
        "blockers": [{**asdict(b), "since": moment(b.since), "wouldFree": remedy(b.reason)} for b in found.blockers],
        "plan": {
            "state": str(row.fate),
            "wave": row.wave,
            "opens": found.opens,
            "change": row.change,
            "gained": list(row.gained),
            "lost": list(row.lost),
            "evicted": list(row.evicted),
            "why": row.why,
        }
        if row
        else None,
        "unforeseen": found.unforeseen,
        "group": asdict(found.group) if found.group else None,
        "next": found.next,
    }


def names(found: Explanation) -> list[str]:
    """The node's record as kubectl takes it, or the node where there is none."""
    return [f"{NODE}/{found.node}" if found.report else f"node/{found.node}"]


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
