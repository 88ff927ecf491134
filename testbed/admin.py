"""The client of somebody who may do everything, and does what the operator never does: applies, clears away, and kills at once."""

from __future__ import annotations

from typing import Final

from gpupartition.kube import Client, Kind, Object

_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML


class Admin(Client):
    """Raises ApiError as every client does."""

    async def apply(
        self, kind: Kind, body: Object, *, field_manager: str, force: bool = False, dry_run: bool = False
    ) -> Object:
        """Server-side apply. Conflict, with causes, when another manager owns a field and `force` is not given."""
        meta = body["metadata"]
        query = {"fieldManager": field_manager, "force": str(force).lower()} | ({"dryRun": "All"} if dry_run else {})
        path = kind.path(meta.get("namespace"), meta["name"])
        applied: Object = await self.raw("PATCH", path, query=query, body=body, content=_APPLY)
        return applied

    async def delete_all(
        self, kind: Kind, *, namespace: str | None = None, field_selector: str = "", label_selector: str = ""
    ) -> None:
        """Delete all that match."""
        given = {"fieldSelector": field_selector, "labelSelector": label_selector}
        query = {name: value for name, value in given.items() if value}
        await self.raw("DELETE", kind.path(namespace), query=query)

    async def kill(self, kind: Kind, name: str, *, namespace: str) -> None:
        """Delete without any grace: nobody is waited for."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self.raw("DELETE", kind.path(namespace, name), body=options)
