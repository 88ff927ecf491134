"""Argo CD on a control plane: its own manifests, and its own programs with the rights that those give them.

    async with ArgoCD(controlplane, folder) as argocd:
        await argocd("app", "list")

What the manifests would have run as pods are processes of this machine: the application controller, the repository server and the API
server, which asks nobody for a password. Their cache is the server that Argo CD itself starts where there is no Redis. They listen on
127.0.0.1, but for the controller's metrics, of which only the port can be said.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import yaml

from gpupartition.kube import NAMESPACES
from testbed.build import ARGOCD, REDIS, Builder, cache_folder
from testbed.controlplane import START_SECONDS, ControlPlane, answers
from testbed.ports import Ports
from testbed.programs import Program, TestbedError, leashed
from testbed.progress import Progress

NAMESPACE: Final = "argocd"
WORKLOADS: Final = frozenset({"Deployment", "StatefulSet", "Service", "NetworkPolicy"})
KUSTOMIZE: Final = """\
#!/bin/sh
# The kustomize that is in kubectl.
[ "$1" = build ] || { echo v5.7.1; exit; }
shift
exec "%s" kustomize "$@"
"""


class ArgoCD:
    """One Argo CD of a control plane. `async with` installs, starts and stops it; calling it runs `argocd` as administrator."""

    def __init__(self, controlplane: ControlPlane, folder: Path, *, progress: Progress | None = None) -> None:
        self.controlplane = controlplane
        self.programs: dict[str, Program] = {}
        """By name: redis, argocd-repo-server, argocd-server, argocd-application-controller."""
        self.source = Path()
        """Of this version: the folder of its module, with its manifests."""
        self._binary = Path()
        self._folder = folder
        self._progress = progress or Progress(None)
        self._ports = Ports(cache_folder() / "ports")
        self._redis = Path()
        self._server = ""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End its programs. What it has installed stays."""
        for program in reversed(self.programs.values()):
            await program.kill()
        self._ports.close()

    async def __call__(self, *arguments: str | Path, folder: Path | None = None) -> str:
        """Run `argocd`, in a folder, as `run` does."""
        away = {"ARGOCD_SERVER": self._server, "ARGOCD_OPTS": "--plaintext"}
        kubeconfig = {"KUBECONFIG": str(self.controlplane.kubeconfig)}
        return await run(self._binary, *arguments, home=self._folder, folder=folder, env=away | kubeconfig)

    async def asks(self, method: str, path: str, body: object = None) -> Any:
        """What its API server answers to the browser, such as `GET applications/gpus/resource-tree`. Raises TestbedError."""
        url = f"http://{self._server}/api/v1/{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as response:
            answer = await response.json()
        if response.status != 200:
            raise TestbedError(f"{method} {path}: {response.status} {answer.get('message')}")
        return answer

    async def _start(self) -> None:
        builder = Builder.here(self._progress)
        built = await builder.tools([ARGOCD, REDIS])
        self._binary, self._redis = built[ARGOCD.name], built[REDIS.name]
        async with self._progress.step("Argo CD"):
            self.source = await builder.source(ARGOCD)
            await self._install()
            await asyncio.to_thread(self._furnish)
            await self._run_all()

    async def _install(self) -> None:
        """Apply the manifests of this version, but for what runs pods and what leads to them."""
        text = await asyncio.to_thread((self.source / "manifests" / "install.yaml").read_text)
        objects = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each and each["kind"] not in WORKLOADS]
        async with self.controlplane.client() as client:
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        apply = ("apply", "--server-side", "--namespace", NAMESPACE, "-f", "-")
        await self.controlplane.kubectl(*apply, stdin=yaml.dump_all(objects, Dumper=yaml.CSafeDumper))

    def _furnish(self) -> None:
        """Make the folders that its programs write to, and the programs that they call."""
        for name in ("tls", "ssh", "gpg", "bin"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "bin" / "argocd").symlink_to(self._binary)
        kustomize = self._folder / "bin" / "kustomize"
        kustomize.write_text(KUSTOMIZE % self.controlplane.parts.binaries["kubectl"])
        kustomize.chmod(0o755)

    async def _run_all(self) -> None:
        redis, repository, server = (f"127.0.0.1:{self._ports.take()}" for _ in range(3))
        self._server = server
        await self._run("redis", [self._redis, redis], partial(_listens, redis))
        cached = ["--redis", redis, "--loglevel", "warn"]
        repositories = ["--repo-server", repository, "--repo-server-plaintext"]
        unguarded: list[str | Path] = ["--insecure", "--disable-auth", "--staticassets", self._folder]
        await asyncio.gather(
            self._serve("argocd-repo-server", [*cached, *_bound(repository), "--disable-tls"]),
            self._serve("argocd-server", [*cached, *repositories, *_bound(server), *unguarded]),
            self._serve("argocd-application-controller", [*cached, *repositories, "--app-resync", "3600"]),
        )

    async def _serve(self, name: str, flags: list[str | Path]) -> None:
        """Run one of its programs, as the account of that name."""
        token = await self.controlplane.token(NAMESPACE, name)
        kubeconfig = self.controlplane.parts.write_kubeconfig(name, token)
        metrics = self._ports.take()
        where = ["--metrics-port", str(metrics)]
        where += ["--metrics-address", "127.0.0.1"] if name != "argocd-application-controller" else []
        where += ["--namespace", NAMESPACE] if name != "argocd-repo-server" else []
        env = {
            "ARGOCD_BINARY_NAME": name,
            "ARGOCD_FAKE_IN_CLUSTER": "true",
            "ARGOCD_GPG_ENABLED": "false",
            "ARGOCD_SYNC_WAVE_DELAY": "0",  # not the 2 s for those whose status cannot say what it is of
            "ARGOCD_TLS_DATA_PATH": str(self._folder / "tls"),
            "ARGOCD_SSH_DATA_PATH": str(self._folder / "ssh"),
            "ARGOCD_GNUPGHOME": str(self._folder / "gpg"),
            "HOME": str(self._folder),
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(self._folder),
        }
        ready = partial(answers, f"http://127.0.0.1:{metrics}/metrics")
        await self._run(name, [self._binary, *flags, *where], ready, env)

    async def _run(
        self,
        name: str,
        command: list[str | Path],
        ready: Callable[[], Awaitable[bool]],
        env: Mapping[str, str] | None = None,
    ) -> None:
        log = self.controlplane.files.log(name)
        program = self.programs[name] = Program(name, command, log=log, env={**os.environ, **(env or {})})
        await program.start()
        await program.until(ready, within=START_SECONDS)


async def run(
    binary: Path, *arguments: str | Path, home: Path, folder: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run `argocd`, and return what it prints. Raises TestbedError with its complaint. `home`: where it may write."""
    process = await asyncio.create_subprocess_exec(
        *leashed([binary, *arguments]),
        cwd=folder,
        env={**os.environ, "HOME": str(home), "TMPDIR": str(home), **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaint = await process.communicate()
    if process.returncode != 0:
        raise TestbedError(f"argocd {' '.join(map(str, arguments))}: {complaint.decode(errors='replace').strip()}")
    return out.decode()


def _bound(address: str) -> list[str]:
    host, port = address.split(":")
    return ["--address", host, "--port", port]


async def _listens(address: str) -> bool:
    host, port = address.split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True
