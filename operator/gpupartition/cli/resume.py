"""`gpupartition resume POLICY`: takes back a pause that was written beside the spec."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gpupartition import names
from gpupartition.cli.options import Unusable, add_selector, describe
from gpupartition.cli.orders import Done, add_common, annotate, carry, chosen, one_by_one
from gpupartition.cli.targets import POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpupartition.kube import Client, Object

ABOUT: Final = """
Has the operator take nodes of a policy again, whoever has paused it. A pause that stands in the spec is for whoever keeps the spec to take
back: it is told, and left alone.
"""
EXAMPLES: Final = """
examples:
  %(prog)s inference
  %(prog)s -l team=ml

It takes the right to patch GpuPartitionPolicies: the ClusterRole gpupartition-operate.
exit codes: 0 resumed, or not paused; 1 still paused by its spec, or not all of them could be written (the message says which); 2 wrong usage
"""
STILL: Final = "is still paused by its spec; have spec.rollout.paused be false where the policy is kept"


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("name", nargs="*", metavar="POLICY", help="a policy")
    add_selector(parser)
    add_common(parser)


async def run(options: argparse.Namespace) -> int:
    """Resume, print, and return the exit code."""

    async def act(client: Client) -> list[Done]:
        if not options.name and not options.selector:
            raise Unusable("name a policy, or choose some with -l")
        policies = await chosen(client, options.name, options.selector)
        return await one_by_one(
            ((POLICY, name) for name in policies), lambda _, name: _resume(client, name, options.dry_run)
        )

    return await carry(options, act)


async def _resume(client: Client, name: str, dry_run: str) -> Done:
    from gpupartition.domain.suspension import PAUSE, of_policy
    from gpupartition.kinds import POLICIES

    before: list[Object] = []

    def decide(body: Object) -> Mapping[str, str | None]:
        before[:] = [body]
        notes = body["metadata"].get("annotations") or {}
        return {key: None for key in (names.PAUSED, *PAUSE.values()) if key in notes}

    wrote = await annotate(client, POLICIES, name, decide, dry_run=dry_run)
    (body,) = before
    found = of_policy(body)
    if found is None:
        says = "is not paused"
    elif found.holds(datetime.now(UTC)):
        says = f"resumed; it was paused: {found}"
    else:
        says = f"is not paused any more, and what said so is taken away: {found}"
    still = bool(body["spec"].get("rollout", {}).get("paused"))
    return Done(about=name, name=f"{POLICY}/{name}", says=says, wrote=wrote, fails=STILL if still else "")
