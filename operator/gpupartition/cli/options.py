"""What commands are told, and tell, in the same words: which cluster, in which form, exit codes, errors. Imports next to nothing."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from gpupartition.cli.paint import on_one_line

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2  # argparse's own
FOUND: Final = 3

STDOUT: Final = "-"


class Unusable(Exception):  # noqa: N818  (reads as what happened)
    """What was asked for cannot be done; one line for each mistake: where, what, what to do. `hint`: what else whoever asks could do."""

    def __init__(self, *mistakes: str, hint: str = "") -> None:
        self.mistakes, self.lines = mistakes, [mistake + hint for mistake in mistakes]
        super().__init__("\n".join(self.lines))


def describe(parser: argparse.ArgumentParser, about: str, examples: str) -> None:
    """Give a command its text, laid out as it is written."""
    parser.description, parser.epilog = about, examples
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def add_policies(parser: argparse.ArgumentParser) -> None:
    """Add names of policies, and -f for files of them."""
    parser.add_argument(
        "name", nargs="*", metavar="POLICY", help="a policy in the cluster (default: those of -f, else all)"
    )
    add_files(parser)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add -f."""
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML with drivers and policies, or a folder of such files; - is stdin",
    )


def add_selector(parser: argparse.ArgumentParser, of: str = "policies") -> None:
    """Add -l, which chooses by labels."""
    parser.add_argument("-l", "--selector", default="", help=f"label selector of {of}")


def add_output(parser: argparse.ArgumentParser, forms: Collection[str], default: str = "table") -> None:
    """Add -o with these forms."""
    parser.add_argument(
        "-o", "--output", choices=sorted(forms), default=default, help=f"form of the output (default: {default})"
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which cluster."""
    parser.add_argument(
        "--kubeconfig", help="path of a kubeconfig (default: the pod's ServiceAccount, else $KUBECONFIG)"
    )
    parser.add_argument("--context", help="context of the kubeconfig")
    parser.set_defaults(fail_on=())


def add_picture(parser: argparse.ArgumentParser, form: str) -> None:
    """Add --svg, or --html, which take a file."""
    parser.add_argument(
        f"--{form}", metavar="FILE", help=f"write it as {form.upper()} into this file too (-: to stdout instead)"
    )


def save(path: str, text: str) -> None:
    """Write a file whole. Raises Unusable where it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unusable(
            f"{path} could not be written: {error.strerror}; name a file in a folder that is there"
        ) from None


class Some:
    """The type of an option that takes some of these words, separated by commas."""

    def __init__(self, words: Collection[str]) -> None:
        self.words = words

    def __call__(self, text: str) -> tuple[str, ...]:
        """The words of the text. Raises ArgumentTypeError for another one, or none."""
        asked = tuple(part.strip() for part in text.split(",") if part.strip())
        unknown = sorted(set(asked) - set(self.words))
        if unknown or not asked:
            raise argparse.ArgumentTypeError(f"{next(iter(unknown), text)!r} is none of {', '.join(self.words)}")
        return asked


def add_fail_on(parser: argparse.ArgumentParser, findings: Collection[str]) -> None:
    """Add --fail-on, which takes some of these findings."""
    parser.add_argument(
        "--fail-on",
        type=Some(findings),
        default=(),
        metavar="FINDINGS",
        help=f"exit with {FOUND} if one of these, separated by commas, is found: {', '.join(findings)}",
    )


def tell(what: str, text: str) -> int:
    """Print `what` was asked for; returns the exit code."""
    try:
        print(text, end="\n" if text else "", flush=True)  # noqa: T201
    except OSError as error:
        return unwritten(what, error)
    return OK


def unwritten(what: str, error: OSError) -> int:
    """Say that it could not be written, to those who do not know: who has closed a pipe has seen enough. Returns the exit code."""
    sys.stdout = io.StringIO()  # what is left in its buffer could not be written at the end either
    return (
        ERROR if isinstance(error, BrokenPipeError) else complain(f"the {what} could not be written: {error.strerror}")
    )


def complain(*lines: str) -> int:
    """Say what is wrong, one line for each mistake; returns the exit code."""
    for line in lines:
        print(f"error: {on_one_line(line)}", file=sys.stderr)  # noqa: T201
    return ERROR
