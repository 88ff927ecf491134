"""`gpupartition unfreeze`: takes back what `freeze` has written."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from gpupartition.cli.brake import NAME, add_namespace, read, where
from gpupartition.cli.options import describe
from gpupartition.cli.orders import CLIENT, SERVER, Disturbed, Done, add_common, carry, undisturbed

if TYPE_CHECKING:
    from gpupartition.kube import Client
    from gpupartition.settings import Settings

ABOUT: Final = """
Has the operator go on where it was when everything was frozen, whoever has frozen it: the ConfigMap gpupartition-freeze is deleted. Policies
that are paused stay so.
"""
EXAMPLES: Final = """
examples:
  %(prog)s
  %(prog)s --dry-run       only say by whom and why everything is frozen

It takes rights in the operator's namespace: the Role gpupartition-operate.
exit codes: 0 nothing is frozen any more; 1 it is (the message says why); 2 wrong usage
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    add_namespace(parser)
    add_common(parser)


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Unfreeze, print, and return the exit code."""
    namespace = options.namespace or settings.namespace

    async def act(client: Client) -> list[Done]:
        says, wrote = await _take_away(client, namespace, options.dry_run)
        return [Done(about=namespace, name=NAME, says=says, wrote=wrote)]

    return await carry(options, act)


async def _take_away(client: Client, namespace: str, dry_run: str) -> tuple[str, dict[str, str | None]]:
    from gpupartition.domain.suspension import of_freeze
    from gpupartition.kube import CONFIG_MAPS, NotFound

    async def take() -> tuple[str, dict[str, str | None]]:
        present = await read(client, namespace)
        if present is None:
            return "nothing is frozen", {}
        meta, tried = present["metadata"], dry_run == SERVER
        known = {"uid": meta["uid"], "resource_version": meta["resourceVersion"]}
        if dry_run != CLIENT:
            try:
                await client.delete(CONFIG_MAPS, meta["name"], namespace=namespace, dry_run=tried, **known)
            except NotFound:
                raise Disturbed from None
        wrote = dict.fromkeys(present.get("data") or {"frozen": ""}, None)
        return f"unfrozen; it was frozen: {of_freeze(present)}", wrote

    return await undisturbed(where(namespace), take)
