"""What commands that look at a cluster share: how they are told which one, what they say when it cannot be read, and their exit codes."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from kubernetes.aio.config import ConfigException

from gpupartition.cli.documents import Unusable
from gpupartition.kube import ApiError, Client, Forbidden, NotFound

OK: Final = 0
ERROR: Final = 1
FOUND: Final = 3  # 2 is argparse's, for usage

Answer = tuple[str, Collection[str]]
"""What is printed, and what was found of what --fail-on can name."""


def add_options(parser: argparse.ArgumentParser, findings: Collection[str]) -> None:
    """Add the options that all of them have; --fail-on takes some of these findings."""

    def named(text: str) -> tuple[str, ...]:
        asked = tuple(part.strip() for part in text.split(",") if part.strip())
        unknown = sorted(set(asked) - set(findings))
        if unknown or not asked:
            raise argparse.ArgumentTypeError(f"{next(iter(unknown), text)!r} is none of {', '.join(findings)}")
        return asked

    parser.add_argument(
        "--fail-on",
        type=named,
        default=(),
        metavar="FINDINGS",
        help=f"exit with {FOUND} if one of these, separated by commas, is found: {', '.join(findings)}",
    )
    parser.add_argument(
        "--kubeconfig", help="path of a kubeconfig (default: the pod's ServiceAccount, else $KUBECONFIG)"
    )
    parser.add_argument("--context", help="context of the kubeconfig")


async def answer(options: argparse.Namespace, what: str, ask: Callable[[Client], Awaitable[Answer]]) -> int:
    """Ask the cluster, print `what` was asked for, and return the exit code."""
    try:
        async with Client.connect(options.kubeconfig, options.context) as client:
            text, found = await ask(client)
    except Unusable as unusable:
        return complain(*unusable.lines)
    except (FileNotFoundError, ConfigException) as error:
        return complain(str(error))
    except ApiError as error:
        return complain(_explain(error))
    try:
        print(text, flush=True)  # noqa: T201
    except OSError as error:
        sys.stdout = io.StringIO()  # what is left in its buffer could not be written at the end either
        return complain(f"the {what} could not be written: {error.strerror}")
    asked = set(found) & set(options.fail_on)
    if asked:
        print(f"found: {', '.join(sorted(asked))}", file=sys.stderr)  # noqa: T201
    return FOUND if asked else OK


def complain(*lines: str) -> int:
    """Say what is wrong, one line for each mistake; returns the exit code."""
    for line in lines:
        print(f"error: {line}", file=sys.stderr)  # noqa: T201
    return ERROR


def _explain(error: ApiError) -> str:
    if isinstance(error, Forbidden):
        return f"{error}; grant the right: bind the ClusterRole gpupartition-plan (manifests/base/planner.yaml) to this account"
    if isinstance(error, NotFound):
        return f"{error}; install the CRDs first: kubectl apply -k crds"
    if error.status == 0:
        return f"{error}; is the cluster up, and is this the right kubeconfig and context?"
    return str(error)
