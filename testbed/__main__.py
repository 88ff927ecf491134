"""Bring a testbed up and down from a shell: `python -m testbed up`."""

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from testbed import components
from testbed.build import Builder, cache_folder
from testbed.controlplane import ROOT, ControlPlane, Shape
from testbed.programs import TestbedError, tail
from testbed.progress import Progress

POLL_SECONDS: Final = 0.1
DOWN_SECONDS: Final = 30
EXAMPLES: Final = """\
examples:
  python -m testbed up --nodes 4 --gpus 8      a cluster of four nodes with eight GPUs each
  eval "$(python -m testbed env)"              kubectl now speaks to it
  kubectl get nodes,resourceslices
  python -m testbed down                       nothing is left running

The first `up` builds etcd, Kubernetes and kwok from source: some minutes, once. Set GPUPARTITION_CACHE to keep them elsewhere, and
KUBEBUILDER_ASSETS to use etcd, kube-apiserver and kubectl that are there already.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """What `up` leaves behind for the other commands: `testbed.json` in the testbed's folder."""

    folder: Path

    @property
    def file(self) -> Path:
        """Written when the testbed begins to start, and again when it is ready."""
        return self.folder / "testbed.json"

    def read(self) -> dict[str, Any] | None:
        """What it says, or None when no such testbed runs."""
        try:
            content: dict[str, Any] = json.loads(self.file.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return content if _started(content["pid"]) == content["started"] else None

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Make the folder anew, and let nobody else do so until this one runs. Raises TestbedError where that cannot be."""
        self._refuse_a_second()
        name, locks = self.folder.name, self.folder.parent.parent / "locks"
        try:
            locks.mkdir(parents=True, exist_ok=True)
            lock = (locks / name).open("w")
        except OSError as error:
            raise TestbedError(
                f"cannot start a testbed: {error}; set GPUPARTITION_CACHE to a folder that can be written to"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TestbedError(
                    f"somebody else is starting testbed {name}: wait until it is up, or choose another --name"
                ) from None
            self._refuse_a_second()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            yield

    def _refuse_a_second(self) -> None:
        if running := self.read():
            name = self.folder.name
            raise TestbedError(
                f"testbed {name} runs already, as process {running['pid']}: end it with python -m testbed down --name {name} "
                "(the demo's with make demo-down), or choose another --name"
            )

    def write(self, controlplane: ControlPlane | None = None) -> None:
        """Say how this process can be found and, when it is ready, its control plane."""
        content: dict[str, Any] = {
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "ready": controlplane is not None,
        }
        if controlplane:
            content["server"] = controlplane.server
            content["programs"] = {name: program.pid for name, program in controlplane.programs.items()}
            content["ports"] = asdict(controlplane.parts.ports)
        unfinished = self.file.with_suffix(".new")
        unfinished.write_text(json.dumps(content, indent=1))
        unfinished.rename(self.file)


def up(arguments: argparse.Namespace) -> int:
    """Start a testbed in the background, show its progress, return when it is ready."""
    record = _record(arguments)
    if running := record.read():
        state = (
            f"up already, at {running['server']}" if running["ready"] else f"being started by process {running['pid']}"
        )
        print(f"testbed {arguments.name} is {state}")
        return 0 if running["ready"] else 1
    with record.starting():
        return _up(arguments, record)


def _up(arguments: argparse.Namespace, record: Record) -> int:
    log = record.folder / "testbed.log"
    command = [sys.executable, "-m", "testbed", "serve", f"--name={arguments.name}"]
    command += [f"--nodes={arguments.nodes}", f"--gpus={arguments.gpus}", f"--feature-gates={arguments.feature_gates}"]
    command += ["--operator"] if arguments.operator else []
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        with log.open() as shown:
            while server.poll() is None and not (record.read() or {}).get("ready"):
                _show(shown.read())
                time.sleep(POLL_SECONDS)
            _show(shown.read())
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        return 130
    if server.poll() is not None:
        return 1
    print(f'use it:  eval "$(python -m testbed env --name {arguments.name})"')
    return 0


def serve(arguments: argparse.Namespace) -> int:
    """Run a testbed in the foreground until SIGTERM or SIGINT."""
    asyncio.run(_serve(arguments))
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    ended = asyncio.Event()
    serving = asyncio.current_task()
    record = _record(arguments)
    record.folder.mkdir(parents=True, exist_ok=True)
    record.write()

    def end() -> None:
        ended.set()
        if serving and not (record.read() or {}).get("ready"):
            serving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    shape = Shape(nodes=arguments.nodes, gpus=arguments.gpus, feature_gates=arguments.feature_gates)
    with contextlib.suppress(asyncio.CancelledError):
        async with ControlPlane(record.folder, shape=shape, progress=Progress(sys.stdout)) as controlplane:
            if arguments.operator:
                kubeconfig = await controlplane.install_operator()
                print(f"the operator is to use {kubeconfig}", flush=True)
            record.write(controlplane)
            await ended.wait()
            record.file.unlink()


def down(arguments: argparse.Namespace) -> int:
    """Stop a testbed and delete its folder. Harmless when there is none."""
    record = _record(arguments)
    if running := record.read():
        os.kill(running["pid"], signal.SIGTERM)
        _wait_until(lambda: _started(running["pid"]) != running["started"], f"process {running['pid']} does not end")
    shutil.rmtree(record.folder, ignore_errors=True)
    return 0


def status(arguments: argparse.Namespace) -> int:
    """Show the processes, ports and nodes of a testbed; exit code 1 when it is not up."""
    record = _record(arguments)
    running = record.read()
    if running is None or not running["ready"]:
        print(f"testbed {arguments.name} is not up; start it with: python -m testbed up --name {arguments.name}")
        return 1
    print(f"server     {running['server']}\nfolder     {record.folder}\nprocess    {running['pid']}")
    for name, pid in running["programs"].items():
        state = "runs" if _started(pid) else "DIED"
        print(f"  {name:<24} {pid:>8}  {state}")
        if state == "DIED":
            print(tail(components.Layout(root=record.folder).log(name), 5))
    print("ports      " + ", ".join(f"{name} {port}" for name, port in running["ports"].items()), flush=True)
    files = components.Layout(root=record.folder)
    kubectl = [str(files.bin / "kubectl"), f"--kubeconfig={files.kubeconfig('admin')}"]
    return subprocess.run(
        [*kubectl, "get", "nodes", "-L", "pool,topology.kubernetes.io/zone,gpupartition.dev/layout"], check=False
    ).returncode


def env(arguments: argparse.Namespace) -> int:
    """Print what a shell must export so that kubectl speaks to the testbed."""
    record = _record(arguments)
    if not (record.read() or {}).get("ready"):
        print(f"testbed {arguments.name} is not up", file=sys.stderr)
        return 1
    files = components.Layout(root=record.folder)
    print(f"export KUBECONFIG='{files.kubeconfig('admin')}'")
    print(f"export PATH='{files.bin}':\"$PATH\"")
    if files.kubeconfig("operator").exists():
        print(f"export GPUPARTITION_KUBECONFIG='{files.kubeconfig('operator')}'")
    return 0


def build(_: argparse.Namespace) -> int:
    """Build what is missing and print where everything is."""
    builder = Builder.here(Progress(sys.stderr))
    for name, path in asyncio.run(builder.tools()).items():
        print(f"{name:<24} {path}")
    return 0


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "up": up,
    "down": down,
    "status": status,
    "env": env,
    "build": build,
    "serve": serve,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m testbed",
        description="A real Kubernetes control plane on this machine, with simulated nodes and GPU drivers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, run in COMMANDS.items():
        help_text = (run.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name != "build":
            command.add_argument(
                "--name",
                type=testbed_name,
                default="testbed",
                help="which testbed; several run side by side (default: %(default)s)",
            )
        if name in {"up", "serve"}:
            shape = Shape()
            command.add_argument(
                "--nodes", type=int, default=shape.nodes, help="simulated nodes (default: %(default)s)"
            )
            command.add_argument(
                "--gpus", type=int, default=shape.gpus, help="GPUs of each node (default: %(default)s)"
            )
            command.add_argument(
                "--feature-gates", default="", help="Kubernetes feature gates, as Name=true,Other=false"
            )
            command.add_argument(
                "--operator", action="store_true", help="install the CRDs and the operator's rights, too"
            )
    return parser


def testbed_name(text: str) -> str:
    """A testbed's name as given by a user. It becomes a folder that is deleted whole, so it must not lead anywhere else."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of a testbed: write letters, digits, dots, dashes and underscores, and begin with a letter or digit"
        )
    return text


def _record(arguments: argparse.Namespace) -> Record:
    return Record(cache_folder() / "state" / arguments.name)


def _started(pid: int) -> int | None:
    """When a process started, in ticks since boot: with the pid it names one process for ever. None when there is none (any more)."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if after_name[0] in {"Z", "X"} else int(after_name[19])


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + DOWN_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TestbedError(f"{complaint} (waited {DOWN_SECONDS} s)")
        time.sleep(POLL_SECONDS)


def _show(text: str) -> None:
    if text:
        print(text, end="", flush=True)


def main() -> int:
    """Run one command; the exit code says whether it worked."""
    arguments = _parser().parse_args()
    try:
        return COMMANDS[arguments.command](arguments)
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
