"""The demo's background: a testbed and the operator, in a process of their own. `python -m testbed down` ends it like any testbed."""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from testbed import ports
from testbed.__main__ import Record
from testbed.build import cache_folder
from testbed.controlplane import ControlPlane, Shape, answers, python_env
from testbed.programs import Program, TestbedError
from testbed.progress import Progress

SHAPE: Final = Shape(nodes=4, gpus=8)
READY_SECONDS: Final = 60
LOOK_SECONDS: Final = 0.5
SHORTENED: Final[Mapping[str, float]] = {"settle": 1, "idle_gap": 1, "min_ready": 2, "summary": 1}
"""Waiting times of the operator in this demo, in seconds; by default they are 5, 5, 10 and 5."""


def record(name: str) -> Record:
    """Where the testbed of this name says how it can be found."""
    return Record(cache_folder() / "state" / name)


async def serve(name: str) -> None:
    """Run the testbed and the operator until SIGTERM or SIGINT."""
    ended, ready = asyncio.Event(), False
    serving = asyncio.current_task()
    own = record(name)
    own.folder.mkdir(parents=True, exist_ok=True)
    own.write()

    def end() -> None:
        ended.set()
        if serving and not ready:
            serving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    with contextlib.suppress(asyncio.CancelledError):
        progress = Progress(sys.stdout)
        async with ControlPlane(own.folder, shape=SHAPE, progress=progress) as controlplane:
            async with progress.step("operator"):
                kubeconfig = await controlplane.install_operator()
                await _start_operator(controlplane, kubeconfig)
            ready = True
            own.write(controlplane)
            await _until_ended(ended, controlplane)
            own.file.unlink()


async def _until_ended(ended: asyncio.Event, controlplane: ControlPlane) -> None:
    """Wait for the end. Raises TestbedError when a program dies: what the demo would wait for cannot come any more."""
    while not ended.is_set():
        for program in controlplane.programs.values():
            if not program.alive:
                raise TestbedError(program.obituary())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), LOOK_SECONDS)


async def _start_operator(controlplane: ControlPlane, kubeconfig: Path) -> None:
    """Start it as one of the control plane's programs, so that it is shown and ended with them."""
    chosen = ports.Ports(cache_folder() / "ports")
    try:
        port = chosen.take()
        shortened = {f"GPUPARTITION_{name.upper()}_SECONDS": str(value) for name, value in SHORTENED.items()}
        env = {**python_env(), **shortened, "GPUPARTITION_HOST": "127.0.0.1", "GPUPARTITION_PORT": str(port)}
        command: list[str | Path] = [sys.executable, "-m", "gpupartition", "run", "--kubeconfig", kubeconfig]
        operator = Program("operator", command, log=controlplane.files.log("operator"), env=env)
        controlplane.programs[operator.name] = operator
        await operator.start()
        await operator.until(partial(answers, f"http://127.0.0.1:{port}/readyz"), within=READY_SECONDS)
    finally:
        chosen.close()


def main() -> int:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m testbed.demo.host", description="The background of the demo.")
    parser.add_argument("--name", required=True, help="name of the testbed")
    try:
        asyncio.run(serve(parser.parse_args().name))
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
