"""The phase table as people read it. `python -m tests.unit.phase_table` writes it into docs/architecture.md."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from tests.unit.worlds import record, world

from gpupartition.api.v1alpha1 import DrainMode, Phase
from gpupartition.domain.phases import PHASES, Row

PAGE: Final = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN, END = "<!-- phases -->", "<!-- /phases -->"


def render() -> str:
    """One line for each exit, in the order in which they are tried; the limit stands where it opens an exit."""
    lines = ["| phase | leaves when | to | after |", "|---|---|---|---|"]
    for phase, row in PHASES.items():
        name = f"`{phase}`"
        for way in row.exits:
            lines.append(f"| {name} | {way.note} | {_to(phase, way.to)} | |")
            name = ""
        lines += [f"| {name} | {way.note} | {_to(phase, way.to)} | {limit(phase, row)} |" for way in row.late]
    return "\n".join(lines)


def _to(phase: Phase, to: Phase) -> str:
    return "stays" if to is phase else f"`{to}`"


def limit(phase: Phase, row: Row) -> str:
    """In words, with all values where the policy's drain mode chooses."""
    assert row.limit is not None, phase
    state = record(phase)
    limits = {mode: row.limit(state, world(drain=mode)) or timedelta.max for mode in DrainMode}
    if len(set(limits.values())) == 1:
        return _words(limits[DrainMode.WAIT])
    return ", ".join(f"{_words(limit)} ({mode})" for mode, limit in limits.items())


def _words(limit: timedelta) -> str:
    return f"{limit.total_seconds():g} s"


def written(page: str) -> str:
    """The page with the table as it is now between its markers."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{render()}\n{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    text = PAGE.read_text()
    if BEGIN not in text or END not in text:
        sys.exit(f"{PAGE} has no {BEGIN} … {END} for the table")
    PAGE.write_text(written(text))
