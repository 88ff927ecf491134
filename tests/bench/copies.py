"""Copies of what there is of some kinds, kept by kopf's own index or by our reflectors.

`python -m tests.bench.copies kopf|ours KUBECONFIG nodes=5000 resourceslices=10000`: either keeps of each object exactly what the operator
does, made by the same functions, and finds it by the same keys. It prints once a second how many objects it has, `indexed` when it has as many
as were asked for, and `heard` when after that a node has got the label HEARD.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import kopf

from gpupartition.controller.packed import packed, slice_node
from gpupartition.controller.trimmed import claim_pools, trim_claim, trim_node
from gpupartition.kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Client
from gpupartition.kube.reflector import Reflector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpupartition.kube import Kind, Object

HEARD: Final = {"beside": "heard"}


def _name(node: Object) -> Iterable[str]:
    return (node["metadata"]["name"],)


KEPT: Final[Mapping[str, tuple[Kind, Callable[[Object], Any], Callable[[Any], Iterable[str]]]]] = {
    NODES.plural: (NODES, trim_node, _name),
    RESOURCE_SLICES.plural: (RESOURCE_SLICES, packed, slice_node),
    RESOURCE_CLAIMS.plural: (RESOURCE_CLAIMS, trim_claim, claim_pools),
}
"""Of each kind: what is kept, and by which keys."""


class Seen:
    """Which objects have come."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._names: set[tuple[str, str]] = set()

    def keep(self, kind: str, body: Object) -> Any:
        """What is kept of it."""
        before, name = len(self._names), (kind, body["metadata"]["name"])
        self._names.add(name)
        if before < len(self._names) == self._wanted:
            _say("indexed")
        elif before == self._wanted and HEARD.items() <= body["metadata"].get("labels", {}).items():
            _say("heard")
        return KEPT[kind][1](body)

    async def tell(self) -> None:
        """Say how many, for as long as some are missing."""
        while len(self._names) < self._wanted:
            _say(str(len(self._names)))
            await asyncio.sleep(1)


async def main(by: str, kubeconfig: str, wanted: Mapping[str, int]) -> None:
    """Keep copies until somebody ends it."""
    seen = Seen(sum(wanted.values()))
    async with Client.connect(kubeconfig) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(seen.tell())
        if by == "kopf":
            tasks.create_task(kopf.operator(registry=_of_kopf(client, wanted, seen), clusterwide=True, standalone=True))
            return
        for name in wanted:
            kind, _, keys = KEPT[name]
            tasks.create_task(Reflector(client, kind, partial(seen.keep, name), indexes={"keys": keys}).run())


def _of_kopf(client: Client, kinds: Iterable[str], seen: Seen) -> kopf.OperatorRegistry:
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=client.server, aiohttp_session=client.session())

    @kopf.on.startup(registry=handlers)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.peering.standalone = True

    for name in kinds:
        _index(handlers, name, seen)
    return handlers


def _index(handlers: kopf.OperatorRegistry, name: str, seen: Seen) -> None:
    kind, _, keys = KEPT[name]
    group, _, version = kind.api_version.rpartition("/")

    @kopf.index(group, version, kind.plural, id=name, registry=handlers)
    async def index(body: kopf.Body, **_: Any) -> dict[str, Any]:
        kept = seen.keep(name, dict(body))
        return dict.fromkeys(keys(kept), kept) if kept is not None else {}


def _say(what: str) -> None:
    print(what, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], {k: int(v) for k, _, v in (a.partition("=") for a in sys.argv[3:])}))
