"""Plans for people (tables) and for programs (JSON, YAML)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from gpupartition.domain.outlook import capacity, findings, sentence
from gpupartition.domain.plan import Fate, NodePlan, Plan

GAP: Final = "   "


def table(plans: Sequence[Plan]) -> str:
    """Each policy: what it comes to, the nodes that do not have what is wanted, and the devices by profile."""
    return "\n\n".join("\n".join(_policy(plan)) for plan in plans)


def _policy(plan: Plan) -> Iterator[str]:
    yield f"{plan.policy} (driver {plan.driver}): {sentence(plan)}"
    rows = [n for n in plan.nodes if n.fate is not Fate.UP_TO_DATE]
    if rows:
        yield ""
        yield from _grid(
            ("WAVE", "NODE", "STATE", "CHANGE", "DEVICES", "EVICTS", "BLOCKED BY", "WHY"), [_row(n) for n in rows]
        )
    moved = capacity(plan)
    if any(m.before != m.after for m in moved):
        yield ""
        yield from _grid(("PROFILE", "NOW", "AFTER"), [(m.profile, str(m.before), str(m.after)) for m in moved])


def _row(node: NodePlan) -> tuple[str, ...]:
    devices = f"+{len(node.gained)} -{len(node.lost)}" if node.gained or node.lost else ""
    blockers = _some(sorted({b.pod or b.claim for b in node.blockers}))
    return (
        str(node.wave or "-"),
        node.node,
        str(node.fate),
        node.change,
        devices,
        _some(node.evicted),
        blockers,
        node.why,
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as what is in them; those that are empty are left out."""
    used = [n for n in range(len(head)) if any(row[n] for row in rows)]
    widths = {n: max(len(row[n]) for row in (head, *rows)) for n in used}
    for row in (head, *rows):
        yield GAP.join(row[n].ljust(widths[n]) for n in used).rstrip()


def as_data(plans: Sequence[Plan]) -> dict[str, Any]:
    """Everything, in names that stay."""
    return {"policies": [_data(plan) for plan in plans]}


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


def as_json(plans: Sequence[Plan]) -> str:
    """The data as JSON."""
    return json.dumps(as_data(plans), indent=2)


def as_yaml(plans: Sequence[Plan]) -> str:
    """The data as YAML."""
    return yaml.safe_dump(as_data(plans), sort_keys=False).rstrip()


FORMS: Final[Mapping[str, Callable[[Sequence[Plan]], str]]] = {"table": table, "json": as_json, "yaml": as_yaml}
