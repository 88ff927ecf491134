"""Our finalizer: whoever carries it stays until we let go of it."""

from __future__ import annotations

from gpupartition.kube import Client, Kind, Object
from gpupartition.names import FINALIZER


def is_held(body: Object) -> bool:
    """Whether an object carries it."""
    return FINALIZER in body["metadata"].get("finalizers", ())


async def hold(client: Client, kind: Kind, body: Object) -> None:
    """Put it there. Raises Conflict where the object has changed since it was read."""
    if not is_held(body):
        await _write(client, kind, body, [*body["metadata"].get("finalizers", ()), FINALIZER])


async def let_go(client: Client, kind: Kind, body: Object) -> None:
    """Take it away. Raises Conflict where the object has changed since it was read."""
    if is_held(body):
        await _write(client, kind, body, [f for f in body["metadata"]["finalizers"] if f != FINALIZER])


async def _write(client: Client, kind: Kind, body: Object, finalizers: list[str]) -> None:
    meta = body["metadata"]
    patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": finalizers}}
    body["metadata"] = (await client.patch(kind, meta["name"], patch))["metadata"]
