"""What all commands have in common: they are there at once, say their own name, and paint only for those who see it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from testbed.controlplane import python_env

from gpupartition.__main__ import COMMANDS, PLUGIN, Line, main
from gpupartition.cli.paint import Cell, Span, age, colourful, grid, line, rendered

HEAVY = ("aiohttp", "kubernetes", "kopf", "pydantic", "yaml")
LIGHT_COMMANDS = [[], *([name] for name in COMMANDS if name != "run")]  # that one stays for longer


@pytest.mark.parametrize("command", LIGHT_COMMANDS, ids=" ".join)
def test_help_is_told_before_anything_heavy_is_loaded(command: list[str]) -> None:
    script = (
        "import atexit, sys; from gpupartition.__main__ import main\n"
        f"atexit.register(lambda: print('loaded:', [m for m in {HEAVY} if m in sys.modules]))\n"
        f"main([*{command}, '--help'])"
    )
    told = subprocess.run([sys.executable, "-c", script], env=python_env(), capture_output=True, text=True, check=True)
    assert told.stdout.startswith("usage: ")
    assert told.stdout.endswith("loaded: []\n")


FORGED: Final = "a\x1b[2J\r\n2026-01-01 00:00:00,000 INFO forged\x9b1m\u2028\u202e"


@pytest.mark.parametrize("fails", [False, True], ids=["a sentence", "with a traceback"])
def test_what_others_wrote_neither_begins_a_line_of_the_log_nor_moves_a_cursor(fails: bool) -> None:
    error = (ValueError, ValueError(FORGED), None) if fails else None
    about = {"msg": FORGED, "node": FORGED, "policy": FORGED, "exc_info": error}
    told = Line("%(asctime)s %(levelname)s %(about)s%(message)s").format(logging.makeLogRecord(about))
    first, *rest = told.split("\n")
    assert first.count("a\\x1b[2J\\x0d 2026-01-01 00:00:00,000 INFO forged\\x9b1m \\u202e") == 3
    assert bool(rest) == fails
    assert all(each.startswith("    ") for each in rest)
    assert all(each.isprintable() for each in (first, *rest))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_help_text(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"{command} [-h]" in capsys.readouterr().out


@pytest.mark.parametrize(("program", "called"), [(PLUGIN, "kubectl gpp"), ("__main__.py", "gpupartition")])
def test_it_calls_itself_as_it_was_called(
    program: str, called: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{program}", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith(f"usage: {called} ")


def test_styles_are_codes_in_colour_and_nothing_without() -> None:
    picture = [line(Span("Failed", "red"), " node-1")]
    assert rendered(picture, colour=True) == "\x1b[31mFailed\x1b[0m node-1"
    assert rendered(picture, colour=False) == "Failed node-1"


@pytest.mark.parametrize("colour", [True, False])
def test_what_others_wrote_cannot_steer_the_terminal(colour: bool) -> None:
    assert rendered([line("a\x1b[2Jb\x9bc\nd")], colour=colour) == "a\\x1b[2Jb\\x9bc d"


def test_columns_are_as_wide_as_what_is_in_them_and_empty_ones_are_left_out() -> None:
    rows: list[tuple[Cell, ...]] = [("node-1", "", Span("Failed", "red")), ("n", "", "Pending")]
    assert rendered(grid(("NODE", "CHANGE", "PHASE"), rows), colour=False).splitlines() == [
        "NODE     PHASE",
        "node-1   Failed",
        "n        Pending",
    ]


@pytest.mark.parametrize(
    ("seconds", "told"), [(-5, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")]
)
def test_ages_have_one_unit(seconds: int, told: str) -> None:
    assert age(timedelta(seconds=seconds)) == told


def test_colours_are_for_terminals_that_have_them_and_for_those_who_want_them(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, (tmp_path / "file").open("w") as file:
        assert colourful(terminal, {"TERM": "xterm"})
        assert not colourful(terminal, {"TERM": "dumb"})
        assert not colourful(terminal, {"TERM": "xterm", "NO_COLOR": "1"})
        assert not colourful(file, {"TERM": "xterm"})
    os.close(ours)
