"""`gpupartition retry POLICY|NODE`: asks to try again what failed."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gpupartition import names
from gpupartition.cli.options import Unusable, add_selector, describe
from gpupartition.cli.orders import Done, add_common, annotate, carry, chosen, one_by_one, whoami
from gpupartition.cli.targets import NODE, POLICY, target
from gpupartition.domain.wording import few

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpupartition.domain.reports import NodeReport
    from gpupartition.kube import Client, Object

ABOUT: Final = """
Asks to try again the nodes of a policy that failed, were rolled back, or drifted once too often; or one node alone. It is written beside the
policy's spec, as an annotation, so that whoever keeps the spec in Git does not revert it. Where nothing has failed nothing is written.
"""
EXAMPLES: Final = """
examples:
  %(prog)s inference                     all of its nodes that failed
  %(prog)s node-2                        this one (node/node-2, where a policy has that name too)
  %(prog)s -l team=ml --reason="the GPU was replaced"

It takes the right to patch GpuPartitionPolicies: the ClusterRole gpupartition-operate.
exit codes: 0 asked, or nothing to try again; 1 not asked, or not for all of them (the message says which, and why); 2 wrong usage
"""
_FAILED: Final = frozenset({"Failed", "RolledBack"})


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("name", nargs="*", metavar="POLICY|NODE", help="a policy or a node")
    add_selector(parser)
    parser.add_argument("--reason", default="", help="what was mended, for whoever reads the annotation")
    add_common(parser)


async def run(options: argparse.Namespace) -> int:
    """Ask, print, and return the exit code."""
    from gpupartition.domain.reports import read_node
    from gpupartition.kinds import NODE_STATES, POLICIES

    async def act(client: Client) -> list[Done]:
        if not options.name and not options.selector:
            raise Unusable("name a policy or a node, or choose policies with -l")
        nodes = {n.node: n for n in map(read_node, (await client.list(NODE_STATES)).items)}
        policies = [body["metadata"]["name"] for body in (await client.list(POLICIES)).items]
        targets = [target(name, policies, nodes) for name in options.name]
        if options.selector:
            targets += [(POLICY, name) for name in await chosen(client, (), options.selector)]
        value = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        by = await whoami(client)
        value += (f" by {by}" if by else "") + (f": {options.reason}" if options.reason else "")

        async def ask(kind: str, name: str) -> Done:
            return await _ask(client, kind, name, nodes, value=value, dry_run=options.dry_run)

        return await one_by_one(dict.fromkeys(targets), ask)

    return await carry(options, act)


def failed(node: NodeReport) -> bool:
    """Whether it waits for somebody to ask."""
    from gpupartition.domain.drift import LEFT_ALONE

    return node.phase in _FAILED or node.reason in LEFT_ALONE


async def _ask(
    client: Client, kind: str, name: str, nodes: Mapping[str, NodeReport], *, value: str, dry_run: str
) -> Done:
    from gpupartition.domain.suspension import is_paused
    from gpupartition.kinds import POLICIES

    policy = name if kind == POLICY else nodes[name].policy
    asked = [n for n in nodes.values() if failed(n) and (n.node if kind == NODE else n.policy) == name]
    if not asked:
        is_so = "nothing has failed" if kind == POLICY else f"it is {nodes[name].phase}"
        return Done(about=name, name=f"{kind}/{name}", says=f"{is_so}: nothing is to be tried again")
    still = {n.node for n in nodes.values() if n.policy == policy and failed(n)}
    paused: list[bool] = []

    def decide(body: Object) -> Mapping[str, str | None]:
        paused[:] = [is_paused(body, datetime.now(UTC))]
        if kind == POLICY:
            return {names.RETRY: value}
        return {names.RETRY_NODES: _with(body, name, value, still)}

    wrote = await annotate(client, POLICIES, policy, decide, dry_run=dry_run)
    told = few([f"{n.node} ({n.reason or n.phase})" for n in asked])
    waits = f"; {policy} is paused: they wait until it is resumed" if any(paused) else ""
    return Done(about=name, name=f"{kind}/{name}", says=f"asked to try again: {told}{waits}", wrote=wrote)


def _with(body: Object, node: str, value: str, still: Collection[str]) -> str:
    """The annotation with this node in it, without those that need no asking any more."""
    from gpupartition.controller.declared import pairs

    before = pairs((body["metadata"].get("annotations") or {}).get(names.RETRY_NODES, ""))
    plain = value.translate({ord(","): " ", ord("="): " "})
    kept = {name: asked for name, asked in before.items() if name in still} | {node: plain}
    return ",".join(f"{name}={asked}" for name, asked in sorted(kept.items()))
