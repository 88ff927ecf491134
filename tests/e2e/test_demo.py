"""`make demo` keeps its word: what it shows was so, and nothing is left when it ends, however it ends."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from testbed.build import cache_folder
from testbed.controlplane import ROOT, python_env
from tests.e2e.harness import eventually

NUMBERS: Final = itertools.count(1)


@asynccontextmanager
async def demo() -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run a demo of its own, without a terminal; killed if the test does not end it."""
    name = f"demo-{os.getpid()}-{next(NUMBERS)}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "testbed.demo", "--name", name),
        cwd=ROOT,
        env=python_env(),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        yield name, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, cache_folder() / "state" / name, ignore_errors=True)


def processes(name: str) -> list[str]:
    """Command lines of all processes that belong to this demo."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if name in line]


async def until_it_says(words: str, process: asyncio.subprocess.Process) -> None:
    """Read its output up to the line with these words."""
    assert process.stdout
    seen = b""
    async with asyncio.timeout(180):
        async for line in process.stdout:
            seen += line
            if words in line.decode():
                return
    raise AssertionError(f"it never said {words!r}, but\n{seen.decode()}")


def nothing_is_left(name: str) -> bool:
    assert processes(name) == []
    assert not (cache_folder() / "state" / name).exists()
    return True


async def test_without_a_terminal_it_prints_plain_lines_and_ends_well_with_nothing_left() -> None:
    async with demo() as (name, process):
        async with asyncio.timeout(300):
            output, _ = await process.communicate()
        said = output.decode()
        assert process.returncode == 0, said
        assert "\x1b" not in said
        assert "\r" not in said
        assert "node-4 waits for pod jobs/train-b, which has gpu-0" in said
        assert "Ready: all 4 nodes are verified" in said
        assert "it does not get one; the scheduler: 0/4 nodes are available" in said
        assert nothing_is_left(name)


async def test_interrupted_in_the_middle_of_the_roll_out_it_cleans_up() -> None:
    async with demo() as (name, process):
        await until_it_says("Verifying", process)
        assert len(processes(name)) > 7  # itself, its background, five programs, the driver host and the operator
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            output, _ = await process.communicate()
        assert process.returncode == 130, output.decode()
        assert "nothing is left running" in output.decode()
        assert nothing_is_left(name)


async def test_interrupted_again_while_it_cleans_up_it_still_leaves_nothing() -> None:
    async with demo() as (name, process):
        await until_it_says("etcd and API server", process)
        process.send_signal(signal.SIGINT)
        await until_it_says("ending everything", process)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            await process.communicate()
        await eventually(lambda: nothing_is_left(name))  # the kernel ends what is on a leash, a moment later


async def test_killed_outright_it_takes_everything_with_it() -> None:
    async with demo() as (name, process):
        await until_it_says("operator:", process)
        process.kill()
        await process.communicate()
        await eventually(lambda: processes(name) == [])


async def test_a_second_demo_of_the_same_name_says_how_to_end_the_first() -> None:
    async with demo() as (name, first):
        await until_it_says("etcd and API server", first)
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "testbed.demo", "--name", name),
            cwd=ROOT,
            env=python_env(),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        output, _ = await second.communicate()
        assert second.returncode == 1
        said = " ".join(output.decode().split())
        assert f"testbed {name} " in said
        assert "make demo-down" in said
        assert "this one has started nothing" in said
        assert "nothing is left running" not in said
        first.send_signal(signal.SIGINT)
        await first.communicate()
        assert nothing_is_left(name)
