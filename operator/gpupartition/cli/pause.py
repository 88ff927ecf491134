"""`gpupartition pause POLICY`: no further node is taken and nobody is evicted, until somebody resumes it, or a time is over."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from gpupartition import names
from gpupartition.cli.options import Unusable, add_selector, describe
from gpupartition.cli.orders import (
    Done,
    add_common,
    add_why,
    annotate,
    carry,
    chosen,
    in_flight,
    one_by_one,
    order,
    whoami,
)
from gpupartition.cli.targets import POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpupartition.kube import Client, Object

ABOUT: Final = """
Has the operator take no further node of a policy, and evict nobody; nodes that are being changed are finished. It is written beside the spec,
as annotations with who, why and until when, so that whoever keeps the spec in Git does not revert it. What somebody else has written is not
replaced unless you say so.
"""
EXAMPLES: Final = """
examples:
  %(prog)s inference --reason="storage is being moved" --until=2h
  %(prog)s -l team=ml --until=2026-12-01T06:00:00Z
  %(prog)s inference --dry-run=server      have the API server check it, and write nothing

It takes the right to patch GpuPartitionPolicies: the ClusterRole gpupartition-operate.
exit codes: 0 paused; 1 not, or not all of them (the message says which, and why); 2 wrong usage
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("name", nargs="*", metavar="POLICY", help="a policy")
    add_selector(parser)
    add_why(parser)
    add_common(parser)


async def run(options: argparse.Namespace) -> int:
    """Pause, print, and return the exit code."""

    async def act(client: Client) -> list[Done]:
        if not options.name and not options.selector:
            raise Unusable("name a policy, or choose some with -l; to stop everything, freeze")
        policies, me = await chosen(client, options.name, options.selector), await whoami(client)
        done = await one_by_one(
            ((POLICY, name) for name in policies), lambda _, name: _pause(client, name, options, me)
        )
        moving = await in_flight(client)
        return [each if each.fails else moving.of(each.about).added_to(each) for each in done]

    return await carry(options, act)


async def _pause(client: Client, name: str, options: argparse.Namespace, me: str) -> Done:
    from gpupartition.kinds import POLICIES

    wrote = await annotate(client, POLICIES, name, lambda body: wanted(body, options, me), dry_run=options.dry_run)
    state = "paused" if wrote else "is paused already"
    says = f"{state}: no further node is taken and nobody is evicted"
    return Done(about=name, name=f"{POLICY}/{name}", says=says, wrote=wrote)


def wanted(body: Object, options: argparse.Namespace, me: str) -> Mapping[str, str | None]:
    """The annotations that a policy is to have; {} where it is paused already as is asked for. Raises Unusable for somebody else's pause."""
    from gpupartition.domain.suspension import PAUSE, of_policy

    asked = order(of_policy(body), options, me, "it is paused")
    if asked is None:
        return {}
    return {names.PAUSED: "true"} | {key: getattr(asked, field) or None for field, key in PAUSE.items()}
