"""`gpupartition run`: the operator against a cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpupartition.cli.options import ERROR, OK, add_cluster

if TYPE_CHECKING:
    from gpupartition.settings import Settings

log = logging.getLogger(__name__)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    add_cluster(parser)
    parser.add_argument("--verbose", action="store_true", help="log what is read, too")


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run until it is asked to end, has lost its lease, or hears of nothing any more; returns the exit code."""
    from kubernetes.aio.config import ConfigException

    from gpupartition.controller.serving import NotServing
    from gpupartition.kube import ApiError

    try:
        return await _run(options.kubeconfig, options.context, settings)
    except (FileNotFoundError, ConfigException, NotServing) as error:
        log.critical("%s", error)
        return ERROR
    except ApiError as error:
        log.critical("%s; see to its rights, and to the CRDs (kubectl apply -k crds): started anew, it goes on", error)
        return ERROR


async def _run(kubeconfig: str | None, context: str | None, settings: Settings) -> int:
    from gpupartition.controller.handlers import Deaf
    from gpupartition.controller.operator import Operator
    from gpupartition.controller.serving import NotServing
    from gpupartition.kube import ApiError, Client
    from gpupartition.kube.lease import Lost

    async with Client.connect(kubeconfig, context) as client:
        loop = asyncio.get_running_loop()

        def end_when_asked() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, running.cancel)

        operator = Operator(client, settings, on_start=end_when_asked)
        running = asyncio.create_task(operator.run(), name="operator")
        end_when_asked()
        why: Sequence[BaseException] = ()
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await running
            except* (Lost, Deaf) as group:
                why = tuple(_single(group))
            except* (NotServing, ApiError) as group:
                raise next(_single(group)) from None
        log.info("stopped%s", "".join(f": {each}" for each in why))
    return ERROR if why else OK


def _single(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions of a group, and of the groups in it."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _single(each)
        else:
            yield each
