"""`python -m gpupartition run`: the operator against a cluster. `plan`: what it would do there. `adopt`: what is there already."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from kubernetes.aio.config import ConfigException

from gpupartition.cli import adopt, plan
from gpupartition.controller.operator import NotServing, Operator, Stopped
from gpupartition.kube import Client
from gpupartition.kube.lease import Lost
from gpupartition.settings import Settings

log = logging.getLogger(__name__)

READERS = {"plan": plan.run, "adopt": adopt.run}

ABOUT = ("policy", "driver", "node")  # what a line is about stands in front, so that it can be searched for


class Line(logging.Formatter):
    """One line per record: time, level, what it is about, the sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """Put the fields in front of the message."""
        record.about = "".join(f"{k}={v} " for k in ABOUT if (v := getattr(record, k, "")))
        return super().format(record)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gpupartition", description="Rolls GPU partition layouts over a cluster, node by node."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator (settings: environment variables GPUPARTITION_*)")
    run.add_argument("--kubeconfig", help="path of a kubeconfig (default: the pod's ServiceAccount, else $KUBECONFIG)")
    run.add_argument("--context", help="context of the kubeconfig")
    run.add_argument("--verbose", action="store_true", help="log what is read, too")
    plan.add_to(commands)
    adopt.add_to(commands)
    options = parser.parse_args(arguments)
    _log(verbose=options.command == "run" and options.verbose, quiet=options.command != "run")
    try:
        settings = Settings.from_environment(os.environ)
    except ValueError as error:
        parser.error(str(error))
    if options.command in READERS:
        return asyncio.run(READERS[options.command](options, settings))
    try:
        return asyncio.run(_run(options.kubeconfig, options.context, settings))
    except (FileNotFoundError, ConfigException, NotServing) as error:
        log.critical("%s", error)
        return 1


async def _run(kubeconfig: str | None, context: str | None, settings: Settings) -> int:
    async with Client.connect(kubeconfig, context) as client:
        loop = asyncio.get_running_loop()

        def end_when_asked() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, running.cancel)

        operator = Operator(client, settings, on_start=end_when_asked)
        running = asyncio.create_task(operator.run(), name="operator")
        end_when_asked()
        lost: Sequence[BaseException] = ()
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await running
            except* Stopped:
                pass
            except* Lost as group:
                lost = group.exceptions
            except* NotServing as group:
                raise group.exceptions[0] from None
        log.info("stopped%s", "".join(f": {each}" for each in lost))
    return 1 if lost else 0


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
