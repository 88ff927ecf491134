"""`gpupartition adopt`: policies that say what nodes have already. Reads the cluster and writes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.forms import document, objects
from gpupartition.cli.options import add_cluster, add_fail_on, add_output, add_selector, describe
from gpupartition.cli.paint import on_one_line
from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.cli.survey import Adoption
    from gpupartition.domain.adoption import Adopting
    from gpupartition.kube import Client
    from gpupartition.settings import Settings

FINDINGS: Final = ("left-out",)

ABOUT: Final = """
Looks at what the nodes of a cluster publish and prints the GpuPartitionDrivers and GpuPartitionPolicies that want just that: whoever applies
them changes no node, and has every layout in a file from then on. Each is compiled and compared as the operator will do it. A policy that could
not be enforced without touching its nodes only observes them (mode: Observe), and says what would be done. A node of which no policy can say
what it has is left out, with the reason. Nothing is written: the ClusterRole gpupartition-plan is all that it needs.
"""
EXAMPLES: Final = """
examples:
  gpupartition adopt > gpus.yaml                       what there is; the reasons of nodes that are left out are on stderr, too
  gpupartition adopt | kubectl apply -f -              take it over
  gpupartition adopt | gpupartition plan -f -          see before that nothing would change
  gpupartition adopt -l node-group=training            of these nodes alone
  gpupartition adopt --by-label node-group             select nodes by this label where it tells them apart
  gpupartition adopt --fail-on=left-out                for pipelines

exit codes: 0 adopted; 1 the cluster could not be read (the message says why); 2 wrong usage; 3 a node was left out, and --fail-on says so
"""
OBSERVED: Final = "only observed"
HEAD: Final = """\
# What the nodes of this cluster have now. To apply it changes no node.
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument(
        "--by-label",
        action="append",
        default=[],
        type=_label,
        metavar="KEY",
        help="label by which policies are to select their nodes, before others that are known; several times, the best first",
    )
    add_selector(parser, "the nodes to look at")
    add_output(parser, FORMS, default="yaml")
    add_cluster(parser)
    add_fail_on(parser, FINDINGS)


def _label(key: str) -> str:
    """A label that a policy may select nodes by."""
    if why := _unusable(key):
        raise argparse.ArgumentTypeError(f"{key}: {why}")
    return key


@lru_cache
def _unusable(key: str) -> str:
    """Why the API takes no policy that selects nodes by this label; "" where it does."""
    from gpupartition.cli.offline import refused

    layout = {"name": "any", "match": {"all": True}, "type": "Whole"}
    spec = {"driver": "any", "nodeSelector": {"matchLabels": {key: "any"}}, "layouts": [layout]}
    whys = refused({"kind": "GpuPartitionPolicy", "apiVersion": API_VERSION, "metadata": {"name": "any"}, "spec": spec})
    return "; ".join(why for _, why in whys)


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Look, print, and return the exit code."""
    from gpupartition.cli.cluster import answer
    from gpupartition.cli.survey import survey

    async def ask(client: Client) -> Answer:
        found = await survey(client, settings, options.by_label, options.selector)
        for line in told(found):
            print(line, file=sys.stderr)  # noqa: T201
        return FORMS[options.output](found), FINDINGS if found.left_out else ()

    return await answer(options, "policies", ask)


def told(found: Adoption) -> Iterator[str]:
    """Who is left out, and why: a line for each reason; then what to know before it is applied."""
    observed = {node: policy.touched for policy in found.policies if policy.touched for node in policy.nodes}
    said = {
        "left out": found.left_out,
        "not all of it": found.beside,
        "has a policy": found.governed,
        OBSERVED: observed,
    }
    for what, why in (said | {"beware": found.kept}).items():
        by_reason: dict[str, list[str]] = {}
        for name, reason in sorted(why.items()):
            by_reason.setdefault(reason, []).append(name)
        # Reasons quote what drivers publish, in which anybody may have written line breaks and YAML of their own.
        yield from (on_one_line(f"{what}: {', '.join(names)}: {reason}") for reason, names in by_reason.items())


def as_yaml(found: Adoption) -> str:
    """Documents that kubectl applies, and what is not in them as comments."""
    documents = [HEAD + "".join(f"# {line}\n" for line in told(found)), *map(document, found.drivers)]
    return "---\n".join([*documents, *map(_policy, found.policies)]).rstrip("\n")


def _policy(policy: Adopting) -> str:
    from gpupartition.domain.groups import HOSTNAME

    count = f"{len(policy.nodes)} node{'s' if len(policy.nodes) != 1 else ''}"
    named = [f"--by-label {key}" for key in policy.instead if not _unusable(key)]
    instead = f"; {' or '.join(named)} would select them too" if named else ""
    observes = f"# {on_one_line(f'{OBSERVED}: {policy.touched}')}\n" if policy.touched else ""
    by = "name" if policy.label == HOSTNAME else policy.label
    return f"# {count}, selected by {by}{instead}.\n{observes}{document(policy.body)}"


def _bodies(found: Adoption) -> list[Mapping[str, Any]]:
    return [*found.drivers, *(policy.body for policy in found.policies)]


FORMS: Final = objects(_bodies, text=as_yaml)
