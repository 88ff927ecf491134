"""`python -m gpupartition`, or `kubectl gpp`: the operator, and the commands that say what it does, did and would do."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gpupartition.cli.options import Unusable, complain
from gpupartition.cli.paint import on_one_line

PLUGIN: Final = "kubectl-gpp"
COLLECTS: Final = (20_000, 4, 100)
"""When Python looks for cycles of garbage. By itself it does so for much less than a page of a list, of which nothing is in a cycle: that took
reading a large cluster twice the time. With 50,000 it took up to a tenth of a second, in which nothing else moves.
"""
ASK: Final = "__complete"  # as shells ask what may be written next
INTERRUPTED: Final = 130  # 128 and the number of the signal, as shells have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: what it is for, and whether settings of the operator change what it says. Its module is cli/<name>.py.

    Each is imported only when it is asked for: what the operator is made of takes most of a second to load.
    """

    help: str
    has_settings: bool = False


COMMANDS: Final = {
    "run": Command(help="run the operator (settings: environment variables GPUPARTITION_*)", has_settings=True),
    "plan": Command(help="say what a policy would do, and touch nothing", has_settings=True),
    "simulate": Command(help="say which claims would find devices, now and after a policy", has_settings=True),
    "classes": Command(help="print DeviceClasses for what policies make", has_settings=True),
    "diff": Command(help="say what a file changes, or what nodes lack, in devices", has_settings=True),
    "status": Command(help="say how policies stand, which nodes are on their way, and who is in the way"),
    "map": Command(help="draw how GPUs are cut and used"),
    "explain": Command(help="say why a node is where it is, and what would free it", has_settings=True),
    "history": Command(help="say what happened to a policy or a node, as far as anybody remembers"),
    "check": Command(help="say whether a cluster is ready, and what to do where it is not", has_settings=True),
    "profiles": Command(help="say into what GPUs can be cut, without a cluster"),
    "pause": Command(help="have no further node of a policy taken, beside its spec"),
    "resume": Command(help="take a pause back"),
    "retry": Command(help="try again what failed, of a policy or a node"),
    "freeze": Command(help="have nothing begun, in the whole cluster", has_settings=True),
    "unfreeze": Command(help="take a freeze back", has_settings=True),
    "adopt": Command(help="print policies that say what nodes have already, and touch nothing", has_settings=True),
    "completion": Command(help="print a script by which a shell completes commands and names"),
}

ABOUT = ("policy", "driver", "node")  # what a line is about stands in front, so that it can be searched for


class Line(logging.Formatter):
    """One line per record: time, level, what it is about, the sentence.

    What others wrote into the cluster neither begins a line nor moves a cursor; tracebacks, which may quote it, are indented.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (as it is called by its base)
        """Put the fields in front of the message."""
        record.about = "".join(f"{k}={v} " for k in ABOUT if (v := getattr(record, k, "")))
        return on_one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  (as it is called by its base)
        """Without what would move a cursor in any of its lines."""
        return "\n".join(f"    {on_one_line(line)}" for line in super().formatException(ei).splitlines())


class Version(argparse.Action):
    """Prints the version, and is done. To find it out takes as long as all the rest: so only who asks waits for that."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it."""
        from importlib.metadata import version

        sys.stdout.write(f"gpupartition {version('gpupartition')}\n")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments[:1]) == [ASK]:
        return _complete(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="kubectl gpp" if Path(sys.argv[0]).stem == PLUGIN else "gpupartition",
        description="Rolls GPU partition layouts over a cluster, node by node.",
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print the version, which should be the operator's")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help)
        if name in arguments[:1]:
            _module(name).add_to(own)
    options = parser.parse_args(arguments)
    _log(verbose=options.command == "run" and options.verbose, quiet=options.command != "run")
    given: tuple[Any, ...] = ()
    if COMMANDS[options.command].has_settings:
        from gpupartition.settings import Settings

        try:
            given = (Settings.from_environment(os.environ),)
        except ValueError as error:
            parser.error(str(error))
    gc.set_threshold(*COLLECTS)
    try:
        return int(asyncio.run(_module(options.command).run(options, *given)))
    except Unusable as unusable:
        return complain(*unusable.lines)
    except KeyboardInterrupt:
        return INTERRUPTED


def complete() -> int:
    """Answer kubectl, which asks `kubectl_complete-gpp WORD...` what may be written next."""
    return _complete(sys.argv[1:])


def _complete(words: Sequence[str]) -> int:
    commands = {name: command.help for name, command in COMMANDS.items()}
    return int(_module("completion").complete(words, commands, parser_of))


def parser_of(command: str) -> argparse.ArgumentParser:
    """The options of one command."""
    parser = argparse.ArgumentParser(prog=command)
    _module(command).add_to(parser)
    return parser


def _module(command: str) -> Any:
    return import_module(f"gpupartition.cli.{command}")


def _log(*, verbose: bool, quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line("%(asctime)s %(levelname)s %(about)s%(message)s"))
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO, handlers=[handler]
    )
    for chatty in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
