"""The pods of the demo: two jobs that were there first, and one that asks for what it cannot have."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import yaml

from gpupartition.kinds import DRIVERS, POLICIES
from gpupartition.kube import (
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    SERVICE_ACCOUNTS,
    Client,
    NotFound,
    Object,
)
from testbed.admin import Admin
from testbed.controlplane import ROOT
from testbed.demo.scene import GPU_DRIVER
from testbed.programs import POLL_SECONDS

EXAMPLES: Final = ROOT / "manifests" / "examples"
JOBS: Final = "jobs"
COMPLETES_AFTER: Final = "testbed.gpupartition.dev/completes-after"
_KINDS: Final = {
    "GpuPartitionDriver": DRIVERS,
    "GpuPartitionPolicy": POLICIES,
    "Pod": PODS,
    "ResourceClaimTemplate": RESOURCE_CLAIM_TEMPLATES,
}


async def apply(client: Admin, path: Path) -> list[Object]:
    """Apply a file as kubectl does, in namespace `default`; returns what it says."""
    bodies = list(yaml.safe_load_all(path.read_text()))  # noqa: ASYNC240 - a page of text
    for body in bodies:
        kind = _KINDS[body["kind"]]
        placed = {**body, "metadata": {**body["metadata"], "namespace": "default"}} if kind.namespaced else body
        await client.apply(kind, placed, field_manager="demo")
    return bodies


async def make_namespace(client: Client, name: str) -> None:
    """Make a namespace; returns when pods can be created in it."""
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    while True:
        with contextlib.suppress(NotFound):
            await client.get(SERVICE_ACCOUNTS, "default", namespace=name)
            return
        await asyncio.sleep(POLL_SECONDS)


async def submit(
    client: Client, namespace: str, name: str, *, node: str, cel: str = "", completes_after: str = ""
) -> None:
    """Create a pod that claims one device (that fits `cel`) on a node."""
    exactly: Object = {"deviceClassName": GPU_DRIVER}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    meta = {"name": name, "namespace": namespace}
    template = {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": "ResourceClaimTemplate",
        "metadata": meta,
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "annotations": {COMPLETES_AFTER: completes_after} if completes_after else {}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
            "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
    await client.create(RESOURCE_CLAIM_TEMPLATES, template)
    await client.create(PODS, pod)
