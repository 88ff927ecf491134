"""`gpupartition plan`: what would happen, in which order, and who is in the way. Reads the cluster and writes nothing."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gpupartition.cli.forms import NAMES
from gpupartition.cli.options import (
    STDOUT,
    add_cluster,
    add_fail_on,
    add_output,
    add_picture,
    add_policies,
    describe,
    save,
)

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.kube import Client
    from gpupartition.settings import Settings

UNSCHEDULABLE: Final = "unschedulable"
# As domain/plan_summary.py and domain/prospect.py have them, which take long to load.
FINDINGS: Final = ("blocked", "infeasible", "failed", "evict", UNSCHEDULABLE)

ABOUT: Final = """
Plays the roll-out forward with the very rules that the operator follows, as if each step succeeded: which nodes would change, in which
waves, how deeply, which devices come and go, and who holds a device that is in the way; then who waits for devices and will get some, whose
next start will find none, and which DeviceClasses are left without any. Nothing is written: the ClusterRole gpupartition-plan is all that it
needs.
"""
EXAMPLES: Final = """
examples:
  %(prog)s -f policy.yaml                     a policy before it is applied (or a changed one; or a driver and policies)
  kustomize build . | %(prog)s -f -           from stdin
  %(prog)s inference                          a policy that is in the cluster; without a name: all of them
  %(prog)s -f policy.yaml --fail-on=blocked,infeasible    for pipelines
  %(prog)s -f policy.yaml --html plan.html    a page for whoever has to agree

exit codes: 0 planned; 1 could not be planned (the message says why); 2 wrong usage; 3 one of --fail-on was found
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    add_policies(parser)
    add_picture(parser, "html")
    add_output(parser, NAMES)
    add_cluster(parser)
    add_fail_on(parser, FINDINGS)


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Plan, print, and return the exit code."""
    from gpupartition.cli.cluster import answer
    from gpupartition.cli.documents import read
    from gpupartition.cli.fitting import prospect_in_time
    from gpupartition.cli.planned import planned_for
    from gpupartition.cli.show import FORMS, Shown
    from gpupartition.domain.plan_summary import findings
    from gpupartition.kube.pauses import unhurried

    documents = read(options.filename)

    async def ask(client: Client) -> Answer:
        with unhurried():
            seen = await planned_for(client, settings, documents, options.name)
            will_fit = await prospect_in_time(client, seen, needed=UNSCHEDULABLE in options.fail_on)
        found = {name for plan in seen.plans for name in findings(plan)}
        found |= {UNSCHEDULABLE} if will_fit.unschedulable else set()
        shown = Shown(plans=seen.plans, prospect=will_fit)
        if options.html:
            from gpupartition.cli.page import page

            drawn = page(shown, datetime.now(UTC))
            if options.html == STDOUT:
                return drawn.rstrip("\n"), found
            save(options.html, drawn)
        return FORMS[options.output](shown), found

    return await answer(options, "plan", ask)
