"""Where the demo shows itself: a terminal on which a board moves, or plain lines for a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpupartition.cli import drawing
from testbed.demo.scene import Row, Scene

STYLES: Final = {
    "": "bright_black",
    "Pending": "bright_black",
    "UpToDate": "green",
    "Failed": "red",
    "RolledBack": "red",
    "Skipped": "red",
}
IN_HAND_STYLE: Final = "yellow"
INDENT: Final = 2
WIDEST: Final = 110  # columns: a line of text that is longer is hard to read


class Screen:
    """Writes to stdout. `lively` on a terminal that can move its cursor; otherwise everything is a line, without colours."""

    def __init__(self) -> None:
        lively = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.lively = lively
        self._console = Console(highlight=False) if lively else _plain_console()
        self.ascii = not self._console.encoding.lower().startswith("utf")
        self._chapter = 0
        self.statements = 0
        self._after_gap = False
        self._lines = Lines(self)
        self._began = time.monotonic()

    @property
    def width(self) -> int:
        """Columns to write in."""
        return min(self._console.width, WIDEST) - INDENT

    @property
    def seconds(self) -> float:
        """How long the demo has been running."""
        return time.monotonic() - self._began

    def title(self, title: str, below: str) -> None:
        """Say what this is."""
        self.gap()
        self.show(Text(title, style="bold"))
        self.say(below)

    def chapter(self, title: str) -> None:
        """Begin the next part of the story."""
        self._chapter += 1
        self.gap()
        self._write(Text.assemble((f"{self._chapter}  ", "bold cyan"), (title, "bold")))
        self.gap()

    def say(self, text: str) -> None:
        """Tell something, in running text."""
        self.show(Text(text))

    def whisper(self, text: str) -> None:
        """Tell something that need not be read."""
        self.show(Text(text, style="bright_black"))

    def code(self, text: str) -> None:
        """Show what can be typed or what a file says; lines are never broken."""
        self._after_gap = False
        for line in text.splitlines():
            self._console.print(Text(f"    {line}", style="cyan"), soft_wrap=True)

    def held(self, sentence: str) -> None:
        """Show that something was looked at and is so."""
        self.statements += 1
        self._marked(Text("ok" if self.ascii else "✓", style="bold green"), sentence)

    def failed(self, sentence: str) -> None:
        """Show that something is not as it should be."""
        self._marked(Text("not so:" if self.ascii else "✗", style="bold red"), sentence)

    def show(self, what: RenderableType) -> None:
        """Show anything."""
        self._write(Padding(what, (0, 0, 0, INDENT)))

    def gap(self) -> None:
        """Leave a line free, but never two."""
        if not self._after_gap:
            self._console.print()
        self._after_gap = True

    def map(self, scene: Scene) -> None:
        """Draw the GPUs."""
        self.show(self._map(scene))
        self.gap()

    @contextmanager
    def board(self) -> Iterator[Board]:
        """Show nodes and GPUs while they change."""
        if not self.lively:
            yield self._lines
            return
        with Live(console=self._console, refresh_per_second=8) as live:
            yield Moving(self, live)
        self._after_gap = False

    def picture(self, scene: Scene) -> RenderableType:
        """The board of this moment: how far the policy is, each node, each GPU."""
        done, reason, message = scene.ready()
        head = Text.assemble(
            ("policy inference  ", "bold"),
            (scene.progress() or "-", "bold"),
            " nodes up to date  ",
            (reason or "not seen yet", "green" if done else "yellow"),
            (f"  {self.seconds:.0f} s", "bright_black"),
        )
        below = Text(message, style="bright_black")
        return Padding(
            Group(head, Text(), nodes(scene.rows()), Text(), self._map(scene), Text(), below), (0, 0, 0, INDENT)
        )

    def _marked(self, mark: Text, sentence: str) -> None:
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(mark, sentence)
        self.show(line)

    def _map(self, scene: Scene) -> RenderableType:
        maps = scene.maps()
        drawn = [*drawing.draw(maps, width=self.width, plain=self.ascii), (), drawing.legend(maps, plain=self.ascii)]
        return Group(*(Text.assemble(*((span.text, span.style) for span in line)) for line in drawn))

    def _write(self, what: RenderableType) -> None:
        self._after_gap = False
        width = min(self._console.width, WIDEST)
        if self.lively:
            self._console.print(what, width=width)
            return
        with self._console.capture() as captured:
            self._console.print(what, width=width)
        for line in captured.get().splitlines():  # rich fills lines up with spaces, which a log need not have
            self._console.out(line.rstrip(), highlight=False)


def _plain_console() -> Console:
    width = None if os.environ.get("COLUMNS") else WIDEST
    return Console(highlight=False, force_terminal=False, color_system=None, width=width)


class Board:
    """Where one scene after the other is shown."""

    def update(self, scene: Scene) -> None:
        """Show this scene now."""
        raise NotImplementedError


class Moving(Board):
    """In place, on a terminal."""

    def __init__(self, screen: Screen, live: Live) -> None:
        self._screen, self._live = screen, live

    def update(self, scene: Scene) -> None:
        """Draw it over the one before."""
        self._live.update(self._screen.picture(scene))


class Lines(Board):
    """A line for each node's each new phase, in a log."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._shown: dict[str, tuple[str, str]] = {}

    def update(self, scene: Scene) -> None:
        """Tell what is new."""
        for row in scene.rows():
            now = row.phase, row.waits
            if row.phase and self._shown.get(row.node) != now:
                self._shown[row.node] = now
                waits = f"waits for {row.waits}" if row.waits else ""
                self._screen.say(f"{self._screen.seconds:5.1f} s  {row.node}  {row.phase:<10} {waits}".rstrip())


def nodes(rows: list[Row]) -> Table:
    """A table of the nodes."""
    table = Table(box=None, pad_edge=False, header_style="bright_black", padding=(0, 3, 0, 0))
    table.add_column("NODE", no_wrap=True)
    table.add_column("PHASE", no_wrap=True, min_width=10)
    table.add_column("WAITS FOR")
    for row in rows:
        style = STYLES.get(row.phase, IN_HAND_STYLE)
        waits = Text(row.waits, style="bold red" if row.blocked else "")
        table.add_row(row.node, Text(row.phase or "-", style=style), waits)
    return table
