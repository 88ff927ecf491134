"""`python -m testbed.demo`: start everything, tell the story, clean up; the exit code says whether all of it was so."""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpupartition.kube import ApiError
from testbed.__main__ import testbed_name
from testbed.admin import Admin
from testbed.build import Builder, control_plane
from testbed.controlplane import ROOT
from testbed.demo.background import Background
from testbed.demo.host import SHAPE
from testbed.demo.screen import Screen
from testbed.demo.story import DidNotHoldError, Story
from testbed.programs import TestbedError
from testbed.progress import Progress

NAME: Final = "demo"
ABOUT: Final = """\
Starts a real Kubernetes control plane on this machine, with simulated nodes and GPUs, and lets the operator roll a policy over it.
On a terminal the board stays until Ctrl-C, which ends and removes everything. Without one it prints plain lines, ends by itself, and
exits with 0 only if all that it showed was so.
"""
INTERRUPTED: Final = 130  # what shells report for a program that Ctrl-C has ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m testbed.demo", description=ABOUT)
    parser.add_argument(
        "--keep", action="store_true", help="leave testbed and operator running; make demo-down ends them"
    )
    parser.add_argument("--name", type=testbed_name, default=NAME, help="name of its testbed (default: %(default)s)")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    return asyncio.run(_main(options.name, keep=options.keep))


async def _main(name: str, *, keep: bool) -> int:
    screen, background = Screen(), Background(name, keep=keep)
    telling = asyncio.create_task(_tell(screen, background, keep=keep))

    def interrupt() -> None:
        """The first time end in good order; the second time at once."""
        background.kill() if background.ending else telling.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    code = INTERRUPTED
    try:
        with contextlib.suppress(asyncio.CancelledError):
            code = await telling
    finally:
        if not background.started:
            screen.whisper("this one has started nothing")
        elif not (keep and code == 0):
            screen.gap()
            screen.whisper("ending everything")
            await background.end()
            screen.whisper("nothing is left running")
    return code


async def _tell(screen: Screen, background: Background, *, keep: bool) -> int:
    screen.title("GPU partitions, rolled out node by node", SUMMARY)
    try:
        screen.chapter("A cluster: a real control plane, simulated kubelets and GPUs")
        builder = Builder.here(Progress(sys.stdout))
        if not all(builder.place(tool).exists() for tool in control_plane().values()):
            screen.say("etcd, Kubernetes and kwok are built from source first: some 8 minutes on two cores, once.")
            screen.gap()
        await builder.tools()
        await background.start(screen.whisper)
        async with Admin.connect(background.kubeconfig, user_agent="demo") as client:
            story = Story(screen, client)
            await story.tell()
            screen.gap()
            screen.held(
                f"all {screen.statements} statements above were looked up in the cluster and were so ({screen.seconds:.0f} s)"
            )
            _next(screen, background, keep=keep)
            if screen.lively and not keep:
                await _stay(story, background)
    except TestbedError as error:
        screen.failed(str(error))
        return 1
    except (DidNotHoldError, ApiError) as error:
        screen.failed(str(error))
        screen.whisper(background.last_words())
        return 1
    return 0


async def _stay(story: Story, background: Background) -> None:
    """Show the board until Ctrl-C, the expected end, or until somebody else ends the testbed."""
    try:
        await story.keep_showing()
    except asyncio.CancelledError:
        return
    except ApiError:
        if background.alive:
            raise


def _next(screen: Screen, background: Background, *, keep: bool) -> None:
    """Say what can be tried now; nothing where everything is about to end."""
    if not keep and not screen.lively:
        return
    screen.chapter("Your turn")
    python = Path(sys.executable)
    shown = python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    screen.say("It goes on running:" if keep else "In another terminal:")
    screen.gap()
    screen.code(
        f"""\
cd {ROOT}
eval "$({shown} -m testbed env --name {background.name})"
kubectl get gpp,gpd,gpn
kubectl describe gpn node-1
kubectl delete pods --all         # give the GPUs back
kubectl edit gpp inference"""
    )
    screen.gap()
    screen.say(
        "With parts: 4 all GPUs become quarters, one node at a time. With mode: Observe the policy only says what would change, and "
        "with rollout: {paused: true} no further node is taken."
    )
    screen.gap()
    screen.say(f"{_down(background)} ends it." if keep else "Ctrl-C ends and removes everything.")
    screen.gap()


def _down(background: Background) -> str:
    return "make demo-down" if background.name == NAME else f"python -m testbed down --name {background.name}"


SUMMARY: Final = f"{SHAPE.nodes} simulated nodes with {SHAPE.gpus} GPUs each, and everything else as in a real cluster."

if __name__ == "__main__":
    sys.exit(main())
