"""Plans for people (tables) and for programs (JSON, YAML, names)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gpupartition.cli import prospects
from gpupartition.cli.forms import forms
from gpupartition.cli.paint import Cell, Line, Span, grid, line
from gpupartition.cli.targets import POLICY
from gpupartition.domain.plan import Fate, NodePlan, Plan
from gpupartition.domain.plan_summary import capacity, findings, sentence
from gpupartition.domain.prospect import Prospect
from gpupartition.domain.wording import few


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Plans, and what will fit once they have come true."""

    plans: Sequence[Plan]
    prospect: Prospect


def pictured(shown: Shown, _: datetime) -> Iterator[Line]:
    """Each policy: what it comes to, the nodes that do not have what is wanted, and the devices by profile. Then what will fit."""
    for number, plan in enumerate(shown.plans):
        if number:
            yield ()
        yield from _policy(plan)
    yield from prospects.drawn(shown.prospect)


def _policy(plan: Plan) -> Iterator[Line]:
    yield line(Span(plan.policy, "bold"), f" (driver {plan.driver}): {sentence(plan)}")
    rows = [n for n in plan.nodes if n.fate is not Fate.UP_TO_DATE]
    if rows:
        yield ()
        head = ("WAVE", "NODE", "STATE", "CHANGE", "DEVICES", "EVICTS", "BLOCKED BY", "WHY")
        yield from grid(head, [_row(n) for n in rows])
    moved = capacity(plan)
    if any(m.before != m.after for m in moved):
        yield ()
        yield from grid(("PROFILE", "NOW", "AFTER"), [(m.profile, str(m.before), str(m.after)) for m in moved])


_STYLES: Final = {
    Fate.BLOCKED: "magenta",
    Fate.UNDER_WAY: "yellow",
    Fate.FAILED: "red",
    Fate.SKIPPED: "red",
    Fate.REFUSED: "red",
    Fate.CONTESTED: "red",
}


def _row(node: NodePlan) -> tuple[Cell, ...]:
    devices = f"+{len(node.gained)} -{len(node.lost)}" if node.gained or node.lost else ""
    blockers = few(sorted({b.pod or b.claim for b in node.blockers}), most=2)
    return (
        str(node.wave or "-"),
        node.node,
        Span(str(node.fate), _STYLES.get(node.fate, "")),
        node.change,
        devices,
        few(node.evicted, most=2),
        blockers,
        node.why,
    )


def as_data(shown: Shown) -> dict[str, Any]:
    """Everything, in names that stay."""
    return {"policies": [_data(plan) for plan in shown.plans], "fit": prospects.as_data(shown.prospect)}


def _data(plan: Plan) -> dict[str, Any]:
    return {
        "policy": plan.policy,
        "driver": plan.driver,
        "summary": sentence(plan),
        "refused": plan.refused,
        "opens": plan.opens,
        "findings": list(findings(plan)),
        "waves": [list(wave) for wave in plan.waves],
        "stop": {"reason": plan.stop.reason, "message": plan.stop.message},
        "nodes": [
            {
                "node": n.node,
                "state": str(n.fate),
                "wave": n.wave,
                "change": n.change,
                "gained": list(n.gained),
                "lost": list(n.lost),
                "evicted": list(n.evicted),
                "blockers": [
                    {"claim": b.claim, "pod": b.pod, "device": b.device, "reason": b.reason} for b in n.blockers
                ],
                "why": n.why,
            }
            for n in plan.nodes
        ],
        "capacity": [{"profile": m.profile, "now": m.before, "after": m.after} for m in capacity(plan)],
    }


def names(shown: Shown) -> list[str]:
    """The policies, as kubectl takes them."""
    return [f"{POLICY}/{plan.policy}" for plan in shown.plans]


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
