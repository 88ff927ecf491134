"""Measure: `python -m tests.bench [NAME...]`. Prints a table and JSON; exits 1 when a number is beyond its bound.

A measurement is a module `bench_NAME.py` beside this one, with `measure() -> list[Figure]`. Each runs in a process of its own, one after the
other, so that none is slowed down by what an earlier one left in memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from tests.bench.figures import Figure, measured

if TYPE_CHECKING:
    from collections.abc import Sequence

OK, BEYOND = 0, 1
LONG = {"scale", "rollout_scale"}  # only where it is asked for
WIDTH = 160  # where nobody says how wide it is


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurements that are named, or all."""
    known = [path.stem.removeprefix("bench_") for path in sorted(Path(__file__).parent.glob("bench_*.py"))]
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure, and compare with the bounds.")
    parser.add_argument(
        "name", nargs="*", help=f"what to measure: {', '.join(known)} (default: all but {', '.join(sorted(LONG))})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there instead of printing it")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.name) - set(known))
    if unknown:
        parser.error(f"there is no measurement {unknown[0]}; there are: {', '.join(known)}")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    figures: list[Figure] = []
    for name in options.name or sorted(set(known) - LONG):
        console.print(f"measuring {name} …", style="dim")
        figures += _apart(name)
    console.print(_table(figures))
    report = json.dumps({"figures": [figure.json() for figure in figures]}, indent=2)
    if options.json:
        options.json.write_text(f"{report}\n")
    else:
        print(report)  # noqa: T201
    return OK if all(figure.within for figure in figures) else BEYOND


def _apart(name: str) -> list[Figure]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        return other.submit(measured, name).result()


def _table(figures: Sequence[Figure]) -> Table:
    table = Table("measured", "value", "bound", "", "how", box=None, header_style="bold")
    for figure in figures:
        verdict = "" if figure.bound is None else "[green]ok[/]" if figure.within else "[bold red]beyond[/]"
        bound = "" if figure.bound is None else f"≤ {figure.bound:g}"
        table.add_row(figure.name, f"{figure.value:g} {figure.unit}", bound, verdict, figure.how)
    return table


if __name__ == "__main__":
    sys.exit(main())
