"""A real control plane on this machine: etcd, API server, scheduler, controller manager, and kwok as everybody's kubelet.

    async with ControlPlane(folder, shape=Shape(nodes=4, gpus=8)) as controlplane:
        async with controlplane.client() as client: ...

Everything listens on 127.0.0.1, on ports that were free, so any number of them run side by side. Every program is on a leash: it
dies with this process, however this process dies.
"""

import asyncio
import importlib.util
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
import yaml

from gpupartition.kube import (
    NODES,
    PODS,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
    ApiError,
    Client,
)
from gpupartition.names import OPERATOR_NAMESPACE
from testbed import components, nodes, ports
from testbed.admin import Admin
from testbed.build import Builder, cache_folder, control_plane
from testbed.programs import POLL_SECONDS, Program, TestbedError, leashed
from testbed.progress import Progress

ROOT: Final = Path(__file__).parent.parent
OPERATOR_ACCOUNT: Final = "gpupartition"
OPERATOR_TOKEN_SECONDS: Final = 24 * 3600
START_SECONDS: Final = 90
"""For each program. They need 1 to 4 s on two idle cores; a busy CI machine may be many times slower."""
FURNISH_SECONDS: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the cluster looks like when it is up."""

    nodes: int = 4
    gpus: int = 8
    """GPUs of each node, as the example driver's NUM_DEVICES says."""
    feature_gates: str = ""
    """Away from the defaults, for all components: `Name=true,Other=false`."""


class ControlPlane:
    """One cluster in one folder. `async with` starts and stops it; the parts can be stopped and started one by one meanwhile."""

    def __init__(
        self, folder: Path, *, shape: Shape | None = None, progress: Progress | None = None, cache: Path | None = None
    ) -> None:
        self.files = components.Layout(root=folder.resolve())
        self.shape = shape or Shape()
        self.programs: dict[str, Program] = {}
        """By name: etcd, kube-apiserver, kube-scheduler, kube-controller-manager, kwok, driver-host."""
        self._progress = progress or Progress(None)
        self._cache = cache or cache_folder()
        self._ports = ports.Ports(self._cache / "ports")
        self._parts: components.Components | None = None
        self._ready: dict[str, Callable[[], Awaitable[bool]]] = {}

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator (group system:masters)."""
        return self.files.kubeconfig("admin")

    @property
    def parts(self) -> components.Components:
        """Command lines, ports and tokens. Raises TestbedError before the start."""
        if self._parts is None:
            raise TestbedError(f"the control plane in {self.files.root} was not started")
        return self._parts

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://127.0.0.1:{self.parts.ports.apiserver}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Build what is missing, start everything, furnish the cluster; returns when nodes, driver and slices are ready.

        Raises TestbedError, and leaves nothing running, when that fails.
        """
        if (self.files.root / "etcd").exists():
            raise TestbedError(f"{self.files.root} belongs to an earlier testbed: choose a folder that is empty or new")
        binaries = await self._builder().tools()
        began = time.monotonic()
        try:
            await self._start(binaries)
        except BaseExceptionGroup as several:
            await self.stop()
            raise _explained(several) from several
        except BaseException:
            await self.stop()
            raise
        self._progress.say(f"ready after {time.monotonic() - began:.1f} s")

    async def stop(self) -> None:
        """End everything that runs, last started first. Files stay."""
        for program in reversed(self.programs.values()):
            await program.kill()  # nothing that they would still write is wanted
        self._ports.close()

    async def restart(self, name: str) -> None:
        """Stop a program and start it again, as a crash and its repair; returns when it is ready."""
        await self.programs[name].kill()
        await self.start_again(name)

    async def start_again(self, name: str) -> None:
        """Start a program that was stopped (`programs[name].stop()`) or that died; returns when it is ready."""
        program = self.programs[name]
        await program.start()
        await program.until(self._ready[name], within=START_SECONDS)

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        """Have etcd take nothing but deletions until the block ends, as when its quota of space is used up."""
        await self._alarm("ACTIVATE")
        try:
            yield
        finally:
            await self._alarm("DEACTIVATE")

    async def _alarm(self, action: str) -> None:
        url = f"http://127.0.0.1:{self.parts.ports.etcd}/v3/maintenance/alarm"
        body = {"action": action, "memberID": "0", "alarm": "NOSPACE"}
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.post(url, json=body):
            pass

    async def second_apiserver(self, feature_gates: str = "", *, runtime_config: str = "", of: str = "") -> Path:
        """Start one more API server on the same etcd with other gates and APIs; returns its administrator's kubeconfig.

        `of` another release, as while a control plane is upgraded server by server.
        """
        port = self._ports.take()
        command = self.parts.apiserver(port=port, feature_gates=feature_gates, runtime_config=runtime_config)
        if of:
            (command[0],) = (await self._builder().tools([control_plane(of)["kube-apiserver"]])).values()
        await self._run(f"kube-apiserver-{port}", command, partial(answers, f"https://127.0.0.1:{port}/readyz"))
        kubeconfig = yaml.safe_load(self.kubeconfig.read_text())
        kubeconfig["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        path = self.files.root / f"admin-{port}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(kubeconfig))
        return path

    async def kubectl(self, *arguments: str, stdin: str = "", kubeconfig: Path | None = None) -> str:
        """Run kubectl as the administrator and return what it prints. Raises TestbedError with its complaint."""
        process = await asyncio.create_subprocess_exec(
            *leashed([self.parts.binaries["kubectl"], f"--kubeconfig={kubeconfig or self.kubeconfig}", *arguments]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, complaint = await process.communicate(stdin.encode())
        if process.returncode != 0:
            raise TestbedError(f"kubectl {' '.join(arguments)}: {complaint.decode(errors='replace').strip()}")
        return out.decode()

    async def install_crds(self) -> None:
        """Install the operator's kinds; returns when the API server serves them. Harmless when they are there."""
        await self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        await self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))

    async def install_operator(self) -> Path:
        """Install the CRDs and the manifests, and return a kubeconfig of the operator's own ServiceAccount.

        The operator itself is to run as a process of this machine, with exactly the rights that the manifests give, so its
        Deployment is installed with no replicas.
        """
        await self.install_crds()
        objects = list(yaml.safe_load_all(await self.kubectl("kustomize", str(ROOT / "manifests"))))
        for each in objects:
            if each["kind"] == "Deployment":
                each["spec"]["replicas"] = 0
        await self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(objects))
        token = await self.token(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)
        return self.parts.write_kubeconfig("operator", token)

    async def token(self, namespace: str, account: str) -> str:
        """Mint a token of a ServiceAccount, good for a day."""
        async with self.client() as client:
            path = f"{SERVICE_ACCOUNTS.path(namespace, account)}/token"
            body = {"spec": {"expirationSeconds": OPERATOR_TOKEN_SECONDS}}
            answer = await client.raw("POST", path, body=body)
        return str(answer["status"]["token"])

    def client(self) -> AbstractAsyncContextManager[Admin]:
        """Open a client as the administrator."""
        return Admin.connect(self.kubeconfig, user_agent="testbed")

    async def _start(self, binaries: Mapping[str, Path]) -> None:
        take = self._ports.take
        chosen = components.Ports(
            etcd=take(), etcd_peer=take(), apiserver=take(), scheduler=take(), controller_manager=take()
        )
        parts = components.Components(
            binaries=binaries, files=self.files, ports=chosen, feature_gates=self.shape.feature_gates
        )
        self._parts = parts
        parts.write_files()
        async with self._progress.step("etcd and API server"):
            await self._run("etcd", parts.etcd(), partial(answers, f"http://127.0.0.1:{chosen.etcd}/health"))
            await self._run("kube-apiserver", parts.apiserver(), partial(answers, f"{self.server}/readyz"))
        parts.write_kubeconfigs()
        async with (
            self._progress.step("scheduler, controller manager, kubelets, drivers"),
            asyncio.TaskGroup() as tasks,
        ):
            for name, command, port in (
                ("kube-scheduler", parts.scheduler(), chosen.scheduler),
                ("kube-controller-manager", parts.controller_manager(), chosen.controller_manager),
            ):
                url = f"https://127.0.0.1:{port}/healthz"
                tasks.create_task(self._run(name, command, partial(answers, url)))
            tasks.create_task(self._run("kwok", parts.kwok(), _at_once))
            if importlib.util.find_spec("testbed.driverhost"):
                tasks.create_task(self._run("driver-host", self._driver_host(), _at_once, env=python_env()))
            tasks.create_task(self._furnish())
        async with self._progress.step(f"{self.shape.nodes} nodes with {self.shape.gpus} GPUs each"):
            await self._until_furnished()

    def _builder(self) -> Builder:
        return Builder(cache=self._cache, progress=self._progress, env=os.environ)

    async def _run(
        self,
        name: str,
        command: list[str | Path],
        ready: Callable[[], Awaitable[bool]],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.programs[name] = Program(name, command, log=self.files.log(name), env=env)
        self._ready[name] = ready
        await self.start_again(name)

    def _driver_host(self) -> list[str | Path]:
        kubeconfig = self.files.kubeconfig("testbed:driver-host")
        return [sys.executable, "-m", "testbed.driverhost", "--kubeconfig", kubeconfig, "--state", self.files.root]

    async def _furnish(self) -> None:
        """Create the example driver and the nodes."""
        async with self.client() as client:
            for kind, body in nodes.example_driver(self.shape.gpus):
                await client.create(kind, body)
            for number, name in enumerate(nodes.names(self.shape.nodes)):
                zone = nodes.ZONES[number % len(nodes.ZONES)]
                await client.create(NODES, nodes.node(name, zone=zone))

    async def _until_furnished(self) -> None:
        missing = "nothing was looked at"
        try:
            async with self.client() as client, asyncio.timeout(FURNISH_SECONDS):
                while True:
                    missing = await self._missing(client)
                    if not missing:
                        return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise TestbedError(
                f"the cluster was not complete after {FURNISH_SECONDS} s: {missing}. Logs are in {self.files.root / 'logs'}"
            ) from None

    async def _missing(self, client: Client) -> str:
        """What a complete cluster still lacks, in words; empty when it is complete. Raises TestbedError for a dead program."""
        for program in self.programs.values():
            if not program.alive:
                raise TestbedError(program.obituary())
        listing = await client.list(NODES)
        not_ready = [each["metadata"]["name"] for each in listing.items if not nodes.is_ready(each)]
        if not_ready:
            return f"nodes are not Ready: {', '.join(not_ready)}"
        if not (await client.list(SERVICE_ACCOUNTS, namespace="default")).items:
            return "namespace default has no ServiceAccount yet"
        if "driver-host" not in self.programs:
            return ""
        pods = await client.list(PODS, namespace=nodes.DRIVER_NAMESPACE)
        running = {each["spec"].get("nodeName") for each in pods.items if nodes.is_ready(each)}
        slices = await client.list(RESOURCE_SLICES)
        published = {each["spec"].get("nodeName") for each in slices.items}
        without = [name for name in nodes.names(self.shape.nodes) if name not in running or name not in published]
        return f"no Ready driver pod, or no ResourceSlice: {', '.join(without)}" if without else ""


def _explained(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of the errors of programs that start together, the one that a person wants to read."""
    known = several.subgroup((TestbedError, ApiError))
    first = known.exceptions[0] if known else several
    return (
        TestbedError(f"the API server refused to furnish the cluster: {first}")
        if isinstance(first, ApiError)
        else first
    )


async def _at_once() -> bool:
    return True


async def answers(url: str) -> bool:
    """Whether a program answers there that all is well, whoever signed its certificate."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url, ssl=_trust_anyone()) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def _trust_anyone() -> ssl.SSLContext:
    """For probes of our own programs on the loopback interface, whose certificates nobody has signed."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def python_env() -> dict[str, str]:
    """The environment in which this checkout's packages can be imported from anywhere."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), str(ROOT)]), "PYTHONUNBUFFERED": "1"}
