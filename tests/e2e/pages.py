"""A page of the documentation, played from top to bottom: what stands in its boxes is typed, and what it says is printed has to come.

Boxes are `sh` (commands that have to succeed), `console` (commands behind a `$`, and what they print) and `yaml` (a file, named by a comment in
its first line). What happens in the world in between stands in the page too, as a comment that readers do not see: `<!-- meanwhile: … -->`.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from asyncio.subprocess import PIPE, STDOUT
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

BOX: Final = re.compile(r"^```(sh|console|yaml)\n(.*?)^```|^<!-- (.*?) -->", re.MULTILINE | re.DOTALL)
LOOKS: Final = frozenset({"get", "check", "plan", "status", "map", "explain", "history", "diff"})
"""Commands that change nothing: asked until they print what the page shows."""
DIFFERS: Final = 1  # what `kubectl gpp diff` ends with where something does

PASSING: Final[Mapping[str, str]] = {
    r"\b\d{4}-\d\d-\d\dT[\d:]+Z": "TIME",
    r"\b(\d+[dhms])+(?=\s|$)": "AGE",
    r"(?<=-)[bcdfghjklmnpqrstvwxz2456789]{5}\b": "DRAWN",  # the end of a name that the API server has made up
    r" +": " ",
}
"""What is another one each time, and how wide it makes a column."""


@dataclass(frozen=True, slots=True)
class Typed:
    """Commands that have to succeed."""

    script: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A command and what it prints."""

    command: str
    prints: str

    @property
    def looks(self) -> bool:
        """Whether it changes nothing."""
        words = [word for word in shlex.split(self.command) if word not in {"kubectl", "gpp"}]
        return words[0] in LOOKS


@dataclass(frozen=True, slots=True)
class Written:
    """A file that somebody writes."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Direction:
    """What happens meanwhile, in words."""

    words: str


Step = Typed | Shown | Written | Direction


def steps(page: str, *, but: Collection[str] = ()) -> Iterator[Step]:
    """What a page has its reader do, in its order, without the lines `but`."""
    for kind, text, words in BOX.findall(page):
        match kind:
            case "sh":
                yield Typed("".join(line for line in text.splitlines(keepends=True) if line.strip() not in but))
            case "console":
                for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                    command, _, prints = part.partition("\n")
                    yield Shown(command, prints)
            case "yaml":
                named = re.match(r"# (\S+\.yaml)\n", text)
                assert named, f"nobody knows into which file this goes:\n{text}"
                yield Written(named[1], text)
            case _:
                yield Direction(words)


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody at a shell in a folder who does what the page says."""

    folder: Path
    env: Mapping[str, str]

    async def does(self, step: Typed | Shown | Written) -> None:
        """Do it, and insist that it comes to what the page says."""
        match step:
            case Typed(script):
                code, said = await self._types(script)
                assert code == 0, f"{script}\nended with {code}:\n{said}"
            case Shown(command, prints) if step.looks:
                await eventually(lambda: self._prints(command, prints), within=60)
            case Shown(command, prints):
                await self._prints(command, prints)
            case Written(name, text):
                await asyncio.to_thread((self.folder / name).write_text, text)

    async def _prints(self, command: str, prints: str) -> bool:
        code, said = await self._types(command)
        assert code in {0, DIFFERS if " diff " in command else 0}, f"{command}\nended with {code}:\n{said}"
        assert lasting(said) == lasting(prints), f"{command}\nprints\n{said}\nand not\n{prints}"
        return True

    async def _types(self, script: str) -> tuple[int | None, str]:
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", script),
            cwd=self.folder,
            env={**self.env, "COLUMNS": "110"},
            stdout=PIPE,
            stderr=STDOUT,
        )
        said, _ = await shell.communicate()
        return shell.returncode, said.decode()


def lasting(text: str) -> list[str]:
    """What of an output is the same whenever it is printed."""
    for passing, word in PASSING.items():
        text = re.sub(passing, word, text)
    return [line.strip() for line in text.strip().splitlines()]
