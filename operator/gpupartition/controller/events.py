"""Kubernetes events: one constructor for each, posted on transitions only, never on a repetition."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

from gpupartition import names
from gpupartition.api.v1alpha1 import Blocker, Phase
from gpupartition.controller import clock
from gpupartition.kube import EVENTS, ApiError, Client, Object

log = logging.getLogger(__name__)

PATIENT = "nothing is taken away, the node's turn comes when this pod has ended"
WARNINGS = frozenset({Phase.ROLLING_BACK, Phase.FAILED, Phase.ROLLED_BACK, Phase.SKIPPED})


class Recorder:
    """Posts events. A failed post is logged and forgotten: status is what counts."""

    def __init__(self, client: Client, *, posts: bool = True) -> None:
        """Without `posts` nobody is told anything."""
        self._client = client
        self._posts = posts

    async def phase(self, record: Object, policy: Object, phase: Phase, note: str, *, warning: bool) -> None:
        """A node entered a phase: told of its record, and of its policy too where somebody should look."""
        kind: Literal["Normal", "Warning"] = "Warning" if warning else "Normal"
        await self._post(record, kind, f"Node{phase}", note, related=policy)
        if warning:
            await self._post(policy, kind, f"Node{phase}", f"{record['metadata']['name']}: {note}", related=record)

    async def condition(self, policy: Object, reason: str, message: str, *, warning: bool) -> None:
        """A policy's Ready condition has another reason than before."""
        await self._post(policy, "Warning" if warning else "Normal", reason, message)

    async def wanted(self, blocker: Blocker, uid: str, policy: str, *, evicts: bool) -> None:
        """Tell the holder's pod, in its own namespace, that its GPU is wanted, and since when.

        `uid` is the pod's: `kubectl describe pod` shows no event without it.
        """
        if not blocker.pod:
            return
        namespace, _, name = blocker.pod.partition("/")
        since = blocker.since.isoformat(timespec="seconds") if blocker.since else "now"
        message = (
            f"policy {policy} wants to repartition node {blocker.node} and waits for device {blocker.device}, since {since}; "
            + ("when the node's turn comes, this pod is evicted, unless something spares it" if evicts else PATIENT)
        )
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name, "uid": uid}}
        await self._post(pod, "Normal", "GpuWanted", message)

    async def evicted(self, pod: str, uid: str, *, node: str, policy: str, devices: Sequence[str]) -> None:
        """Tell a pod why it ends, before it does."""
        namespace, _, name = pod.partition("/")
        message = f"policy {policy} repartitions node {node}, which changes device {', '.join(devices)} of this pod: it is evicted"
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name, "uid": uid}}
        await self._post(body, "Warning", "GpuEviction", message)

    async def _post(
        self, about: Object, kind: str, reason: str, message: str, *, related: Object | None = None
    ) -> None:
        if not self._posts:
            return
        meta, now = about["metadata"], clock.now()
        namespace = meta.get("namespace", "default")
        stamp = now.isoformat(timespec="seconds").replace("+00:00", "Z")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name'][:200]}.", "namespace": namespace},
            "involvedObject": _reference(about),
            **({"related": _reference(related)} if related is not None else {}),
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": f"{names.GROUP}/operator",
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self._client.create(EVENTS, event)
        except ApiError as error:
            log.warning("an event could not be posted: %s", error)


def _reference(body: Object) -> dict[str, Any]:
    meta = body["metadata"]
    kind = {"apiVersion": body.get("apiVersion", names.API_VERSION), "kind": body.get("kind", "GpuPartitionPolicy")}
    return {**kind, **{key: meta[key] for key in ("name", "namespace", "uid") if key in meta}}
