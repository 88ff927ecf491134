"""What may be written next: the words of a command line that is not finished, against the options of the very commands.

It is asked in the words that kubectl asks its plugins in (`kubectl_complete-gpp`, the protocol of cobra): the words so far, the last one
unfinished; answered by a line for each candidate, what it means behind a tab, and at the end whether files are meant. Libraries for argparse
speak to shells alone, so that kubectl would need a second answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpupartition.cli.options import Some

NO_FILES, FILES = ":4", ":0"  # cobra's directives
POLICIES, NODES = "POLICY", "NODE"
LONGEST: Final = 72  # characters of what a candidate means
# What a metavar stands for, beside the names of the cluster.
_SAID: Final[Mapping[str, Sequence[str]]] = {"TIME": ("30m", "2h", "1d")}
_CLUSTER: Final = ("--kubeconfig", "--context")

Candidate = tuple[str, str]
Names = Callable[[Sequence[str], Mapping[str, str]], Iterable[str]]
"""Names of the cluster: of which kinds, and with which options that say which cluster."""


@dataclass(slots=True)
class _Line:
    """What was read of a line: the option whose value comes next, how many words stand by themselves, and what was said of the cluster."""

    expects: argparse.Action | None = None
    alone: int = 0
    used: set[str] = field(default_factory=set)
    cluster: dict[str, str] = field(default_factory=dict)


def candidates(
    words: Sequence[str], commands: Mapping[str, str], parser_of: Callable[[str], argparse.ArgumentParser], names: Names
) -> tuple[list[Candidate], str]:
    """What may stand in the place of the last word, and a directive. `commands`: what each is for."""
    *before, word = words or [""]
    if not before:
        return [(name, says) for name, says in commands.items() if name.startswith(word)], NO_FILES
    if before[0] not in commands:
        return [], NO_FILES
    actions = parser_of(before[0])._actions  # noqa: SLF001 - argparse tells it in no other way
    options = {text: action for action in actions for text in action.option_strings}
    line = _read(before[1:], options)
    if line.expects is not None:
        return _values(line.expects, word, "", names, line.cluster)
    option, equals, value = word.partition("=")
    if equals and option in options:
        return _values(options[option], value, f"{option}=", names, line.cluster)
    if word.startswith("-"):
        return sorted(_options(options, word, line.used)), NO_FILES
    alone = [action for action in actions if not action.option_strings]
    if not alone or (line.alone >= len(alone) and alone[-1].nargs != "*"):
        return [], NO_FILES
    return _values(alone[min(line.alone, len(alone) - 1)], word, "", names, line.cluster)


def _read(words: Sequence[str], options: Mapping[str, argparse.Action]) -> _Line:
    line = _Line()
    for word in words:
        option, equals, value = word.partition("=")
        if line.expects is not None:
            _note(line, line.expects.option_strings, word)
            line.expects = None
        elif option in options:
            line.used |= set(options[option].option_strings)
            if equals:
                _note(line, options[option].option_strings, value)
            elif options[option].nargs is None:
                line.expects = options[option]
        elif not word.startswith("-"):
            line.alone += 1
    return line


def _note(line: _Line, option: Sequence[str], value: str) -> None:
    line.cluster |= {name.strip("-"): value for name in option if name in _CLUSTER}


def _options(options: Mapping[str, argparse.Action], word: str, used: set[str]) -> Iterator[Candidate]:
    for text, action in options.items():
        again = type(action).__name__ == "_AppendAction"
        if text.startswith(word) and (again or text not in used) and (text.startswith("--") or word == text):
            yield text, _about(action)


def _values(
    action: argparse.Action, word: str, prefix: str, names: Names, cluster: Mapping[str, str]
) -> tuple[list[Candidate], str]:
    said = str(action.metavar or "")
    if said == "FILE" or action.dest == "kubeconfig":
        return [], FILES
    found: Iterable[str] = action.choices or _SAID.get(said, ())
    if isinstance(action.type, Some):
        before, comma, word = word.rpartition(",")
        prefix, found = f"{prefix}{before}{comma}", set(action.type.words) - set(before.split(","))
    kinds = [kind for kind in said.split("|") if kind in {POLICIES, NODES}]
    if kinds:
        found = names(kinds, cluster)
    return [(f"{prefix}{value}", "") for value in sorted(map(str, found)) if value.startswith(word)], NO_FILES


def _about(action: argparse.Action) -> str:
    """Its help, as far as a list has room for."""
    says = (action.help or "").partition(" (")[0]
    return says if len(says) <= LONGEST else f"{says[: LONGEST - 1]}…"


def told(found: Iterable[Candidate], directive: str) -> str:
    """As cobra's callers read it."""
    return "\n".join([*(f"{value}\t{says}" if says else value for value, says in found), directive])
