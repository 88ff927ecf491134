"""What tests of Argo CD speak: a Git repository of their own, an Application that syncs it, and how that went."""

from __future__ import annotations

import asyncio
import copy
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

import yaml
from testbed.argocd import NAMESPACE, ArgoCD
from testbed.controlplane import ROOT
from testbed.programs import TestbedError, leashed
from tests.e2e.harness import eventually, follow

from gpupartition.kube import Kind
from gpupartition.names import GROUP, VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

APPLICATIONS: Final = Kind("argoproj.io/v1alpha1", "applications")
PROJECTS: Final = Kind("argoproj.io/v1alpha1", "appprojects")
EXAMPLES: Final = ROOT / "manifests" / "argocd" / "examples"
BRANCH: Final = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A Git repository on this machine, with one branch."""

    folder: Path

    @classmethod
    async def begun(cls, folder: Path) -> Repository:
        """Begin one in a folder that may be there."""
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
        repository = cls(folder=folder)
        await repository.git("init", "--quiet", "--initial-branch", BRANCH)
        return repository

    async def git(self, *arguments: str) -> str:
        """Run git in it, and return what it prints. Raises TestbedError with its complaint."""
        who = {
            f"GIT_{role}_{what}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        process = await asyncio.create_subprocess_exec(
            *leashed(["git", *arguments]),
            cwd=self.folder,
            env={**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        if process.returncode != 0:
            raise TestbedError(f"git {' '.join(arguments)}: {said.decode(errors='replace').strip()}")
        return said.decode().strip()

    async def commit(self, **files: Sequence[Object] | None) -> None:
        """Commit what is there, with these objects in files of these names; None takes a file away."""
        for name, objects in files.items():
            path = self.folder / "policies" / f"{name}.yaml"
            path.parent.mkdir(exist_ok=True)
            if objects is None:
                path.unlink()
            else:
                path.write_text(yaml.safe_dump_all(objects))
        await self.git("add", "--all")
        await self.git("commit", "--quiet", "--message", ", ".join(files) or "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An Application of a test, named like the test, and its repository."""

    cluster: Cluster
    argocd: ArgoCD
    repository: Repository
    body: Object

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])

    async def get(self) -> Object:
        """It as it is now."""
        return await self.cluster.client.get(APPLICATIONS, self.name, namespace=NAMESPACE)

    async def refreshed(self) -> Object:
        """Have it compared with its repository, as a webhook does; returns it as it is then."""
        again = {"metadata": {"annotations": {"argocd.argoproj.io/refresh": "normal"}}}
        await self.cluster.client.patch(APPLICATIONS, self.name, again, namespace=NAMESPACE)
        return await eventually(self._compared, within=60)

    async def _compared(self) -> Object:
        body = await self.get()
        assert "argocd.argoproj.io/refresh" not in body["metadata"].get("annotations", {})
        return body

    async def commits(self, **files: Sequence[Object] | None) -> None:
        """Commit, and wait until it has been applied."""
        await self.repository.commit(**files)
        await self.synced()

    async def synced(self) -> Object:
        """Wait until what is in the repository has been applied, and looked at; returns the Application."""
        await self.refreshed()
        await eventually(self._applied, within=60)
        return await self.refreshed()

    async def _applied(self) -> Object:
        body, head = await self.get(), await self.repository.git("rev-parse", BRANCH)
        operation = body.get("status", {}).get("operationState", {})
        assert operation.get("syncResult", {}).get("revision") == head, operation
        assert operation["phase"] == "Succeeded", operation
        return body

    async def failed(self) -> Object:
        """How applying what is in the repository failed; an AssertionError while it has not."""
        body, head = await self.get(), await self.repository.git("rev-parse", BRANCH)
        operation: Object = body.get("status", {}).get("operationState", {})
        assert operation.get("syncResult", {}).get("revision") == head, operation
        assert "completed unsuccessfully" in operation["message"], operation
        return operation

    async def becomes(self, health: str, *, within: float = 60) -> None:
        """Wait until it is of this health."""

        async def look() -> bool:
            status = (await self.get()).get("status", {})
            assert status.get("health", {}).get("status") == health, status
            return True

        await eventually(look, within=within)

    async def health(self, policy: str) -> tuple[str, str]:
        """What is shown of a policy: its health, and in words."""
        tree = await self.argocd.asks("GET", f"applications/{self.name}/resource-tree")
        (node,) = [each for each in tree["nodes"] if (each["kind"], each["name"]) == ("GpuPartitionPolicy", policy)]
        return node["health"]["status"], node["health"].get("message", "")

    async def shows(self, policy: str, health: str, words: str = "") -> str:
        """Wait until a policy is shown to be of this health, with these words; returns all of them.

        Of a policy whose health stays the same Argo CD shows the words of when it last compared it with Git.
        """

        async def look() -> str:
            await self.refreshed()
            found, message = await self.health(policy)
            assert found == health, (found, message)
            assert words in message, message
            return message

        return await eventually(look, within=60)

    async def acts(self, policy: str, action: str, **parameters: str) -> None:
        """Run an action as the browser does. Raises TestbedError with its complaint."""
        asked = {"name": self.name, "group": GROUP, "version": VERSION, "kind": "GpuPartitionPolicy"}
        asked |= {"resourceName": policy, "action": action}
        given = [{"name": name, "value": value} for name, value in parameters.items()]
        path = f"applications/{self.name}/resource/actions/v2"
        await self.argocd.asks("POST", path, {**asked, "resourceActionParameters": given})


@asynccontextmanager
async def application(
    cluster: Cluster, argocd: ArgoCD, folder: Path, *, sync: Sequence[str] | None = None, **source: Any
) -> AsyncIterator[Application]:
    """Apply the Application and the project that the manifests show, for a repository of this test, until the block ends.

    `sync`: other options of syncs; `source`: where in the repository, instead of `path: policies`.
    """
    repository = await Repository.begun(folder)
    await repository.commit(nothing=())
    project, body = example("project"), example("gpus")
    for each in (project, body):
        each["metadata"]["name"] = cluster.name
    project["spec"]["sourceRepos"] = [f"file://{folder}"]
    del project["spec"]["roles"]  # which name the project
    body["spec"] |= {
        "project": cluster.name,
        "source": {**body["spec"]["source"], **source, "repoURL": f"file://{folder}"},
    }
    body["spec"]["syncPolicy"]["retry"]["backoff"] = {"duration": "1s", "factor": 1}
    if sync is not None:
        body["spec"]["syncPolicy"]["syncOptions"] = list(sync)
    await cluster.client.create(PROJECTS, project)
    try:
        yield Application(
            cluster=cluster,
            argocd=argocd,
            repository=repository,
            body=await cluster.client.create(APPLICATIONS, body),
        )
    finally:
        for kind in (APPLICATIONS, PROJECTS):
            await cluster.client.delete(kind, cluster.name, namespace=NAMESPACE)
        # Nobody creates again what is swept away.
        await cluster.gone(APPLICATIONS, cluster.name, namespace=NAMESPACE)


def example(name: str) -> Object:
    """An object that the manifests show, by its file."""
    return copy.deepcopy(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")))


class History:
    """What an Application has said, one after another: `async with History(application) as history`."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._tasks: list[asyncio.Task[None]] = []
        self.bodies: list[Object] = []

    async def __aenter__(self) -> Self:
        body = await self._application.get()
        self.bodies.append(body)
        self._tasks.append(asyncio.create_task(self._watch(body["metadata"]["resourceVersion"])))
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def syncs(self) -> list[str]:
        """Synced and OutOfSync, in order."""
        found: list[str] = []
        for body in self.bodies:
            value = body.get("status", {}).get("sync", {}).get("status", "")
            if value and found[-1:] != [value]:
                found.append(value)
        return found

    def became(self, health: str) -> int:
        """The resourceVersion at which it was of this health for the last time after it had been of another."""
        found = [
            (b.get("status", {}).get("health", {}).get("status"), b["metadata"]["resourceVersion"]) for b in self.bodies
        ]
        return max(int(at) for (former, _), (now, at) in pairwise(found) if now == health != former)

    async def _watch(self, version: str) -> None:
        client, name = self._application.cluster.client, self._application.name
        async for _, body in follow(
            client, APPLICATIONS, version, namespace=NAMESPACE, field_selector=f"metadata.name={name}"
        ):
            self.bodies.append(body)
