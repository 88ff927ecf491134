"""`gpupartition freeze`: nothing is begun and nobody is evicted, in the whole cluster, until it is unfrozen, or a time is over."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from gpupartition import names
from gpupartition.cli.brake import NAME, add_namespace, read, where
from gpupartition.cli.options import Unusable, describe
from gpupartition.cli.orders import (
    CLIENT,
    SERVER,
    Disturbed,
    Done,
    add_common,
    add_why,
    carry,
    in_flight,
    order,
    undisturbed,
    whoami,
)

if TYPE_CHECKING:
    from gpupartition.kube import Client, Object
    from gpupartition.settings import Settings

ABOUT: Final = """
Has the operator begin nothing, of any policy, and evict nobody; nodes that are being changed are finished. It writes the ConfigMap
gpupartition-freeze into the operator's namespace, with who, why and until when. What somebody else has written is not replaced unless you
say so.
"""
EXAMPLES: Final = """
examples:
  %(prog)s --reason="the year-end closing runs" --until=1d
  %(prog)s -n my-operator

It takes rights in the operator's namespace: the Role gpupartition-operate; and the ClusterRole of that name to say which nodes are in flight.
exit codes: 0 frozen; 1 not (the message says why); 2 wrong usage
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    add_namespace(parser)
    add_why(parser)
    add_common(parser)


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Freeze, print, and return the exit code."""
    namespace = options.namespace or settings.namespace

    async def act(client: Client) -> list[Done]:
        wrote = await _write(client, namespace, options, await whoami(client))
        state = "everything is frozen" if wrote is not None else "everything is frozen already"
        says = f"{state}: nothing is begun and nobody is evicted"
        done = Done(about=namespace, name=NAME, says=says, wrote=wrote or {})
        return [(await in_flight(client)).added_to(done)]

    return await carry(options, act)


async def _write(client: Client, namespace: str, options: argparse.Namespace, me: str) -> dict[str, str | None] | None:
    """What was written into the ConfigMap; None where it says so already. Raises Unusable for what somebody else wrote, and ApiError."""
    from gpupartition.domain.suspension import of_freeze
    from gpupartition.kube import CONFIG_MAPS, NotFound

    async def write() -> dict[str, str | None] | None:
        present = await read(client, namespace)
        asked = order(of_freeze(present) if present else None, options, me, "everything is frozen")
        if asked is None:
            return None
        data = {"frozen": "true"} | {key: value for key, value in asdict(asked).items() if value}
        meta, tried = {"name": names.FREEZE_CONFIG_MAP, "namespace": namespace}, options.dry_run == SERVER
        try:
            if options.dry_run == CLIENT:
                pass
            elif present is None:
                body: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
                await client.create(CONFIG_MAPS, body, dry_run=tried)
            else:
                gone = dict.fromkeys(present.get("data") or {}, None)
                version = {"resourceVersion": present["metadata"]["resourceVersion"]}
                patch = {"metadata": version, "data": gone | data}
                await client.patch(CONFIG_MAPS, meta["name"], patch, namespace=namespace, dry_run=tried)
        except NotFound:
            if present is not None:
                raise Disturbed from None
            raise Unusable(f"there is no namespace {namespace}; name that of the operator with -n") from None
        return dict(data)

    return await undisturbed(where(namespace), write)
