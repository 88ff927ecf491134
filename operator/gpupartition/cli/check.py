"""`gpupartition check`: whether a cluster is ready for GPUs to be partitioned: what it serves, keeps and runs. Nothing is stored."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.forms import NAMES, forms
from gpupartition.cli.options import add_cluster, add_fail_on, add_output, describe
from gpupartition.cli.paint import Cell, Line, Span, grid
from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.kube import Client, Object
    from gpupartition.settings import Settings

ABOUT: Final = """
Asks a cluster, before anything depends on it: its version, the APIs that it serves, whether it keeps the fields of ResourceSlices by which
partitions share a GPU (by a dry run: a feature that is off drops them without a word), whether the CRDs are there, which drivers publish GPUs,
and what is wrong with the GpuPartitionDrivers. Nothing is stored. The dry run takes the right to create ResourceSlices; all else is reading.
"""
EXAMPLES: Final = """
examples:
  %(prog)s                                       what is there, and what to do about what is not
  %(prog)s --fail-on=failed,warned,unknown       for pipelines that want all of it

exit codes: 0 nothing of --fail-on was found (without it: failed); 1 the cluster could not be read (the message says why); 2 wrong usage;
3 something of it was found
"""

OK, WARNED, FAILED, UNKNOWN = "ok", "warned", "failed", "unknown"
FINDINGS: Final = (FAILED, WARNED, UNKNOWN)
_STYLES: Final = {OK: "green", WARNED: "yellow", FAILED: "red", UNKNOWN: "magenta"}

OLDEST: Final = (1, 36)


@dataclass(frozen=True, slots=True)
class Found:
    """What one look has come to, and what to do about it."""

    check: str
    verdict: str
    says: str
    fix: str = ""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    add_output(parser, NAMES)
    add_cluster(parser)
    add_fail_on(parser, FINDINGS)
    parser.set_defaults(fail_on=(FAILED,))


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Look, print, and return the exit code."""
    from gpupartition.cli.cluster import answer

    async def ask(client: Client) -> Answer:
        found = await look(client, settings)
        return FORMS[options.output](found), {each.verdict for each in found}

    return await answer(options, "findings", ask)


async def look(client: Client, settings: Settings) -> list[Found]:
    """All looks, in their order; one that may not be taken, or finds no such kind, says so. Raises ApiError where nobody answers."""
    from gpupartition.kube import Forbidden, NotServed

    found: list[Found] = []
    for name, check in _CHECKS.items():
        if name in _OF_SLICES and any((each.check, each.verdict) == ("slices", FAILED) for each in found):
            continue
        try:
            found += await check(client, settings)
        except Forbidden as error:
            found.append(Found(name, UNKNOWN, str(error), "ask with an account that may"))
        except NotServed as error:
            found.append(Found(name, UNKNOWN, str(error), "ask again once all API servers are of one release"))
    return found


# ------------------------------------------------------------------------------------------------------------------------ looks


async def _version(client: Client, _: Settings) -> list[Found]:
    told = await client.raw("GET", "/version")
    return [version(str(told.get("gitVersion", "")))]


def version(told: str) -> Found:
    """What a version of Kubernetes, such as v1.37.0, is good for."""
    numbers = re.match(r"v?(\d+)\.(\d+)", told)
    if numbers is None:
        return Found("version", UNKNOWN, f"the server calls itself {told or 'nothing'}")
    number = int(numbers[1]), int(numbers[2])
    if number >= OLDEST:
        return Found("version", OK, f"Kubernetes {told}")
    return Found("version", FAILED, f"Kubernetes {told} is too old", "upgrade to 1.37")


async def _served(client: Client, _: Settings) -> list[Found]:
    from gpupartition.controller.probe import Probe
    from gpupartition.kube import DEVICE_TAINT_RULES, RESOURCE_SLICES

    if RESOURCE_SLICES.plural not in await _resources(client, RESOURCE_SLICES.api_version):
        says = f"{RESOURCE_SLICES.api_version} is not served: there is no dynamic resource allocation"
        return [Found("slices", FAILED, says, "switch on the feature gate DynamicResourceAllocation, or upgrade")]
    rules = await Probe(client, dry_runs=False).taint_rules()
    closing = (
        Found(
            "taints",
            OK,
            f"{rules.api_version} has {rules.plural}: a node's GPUs are closed while it changes, and nothing else",
        )
        if rules is not None
        else Found(
            "taints",
            WARNED,
            f"{DEVICE_TAINT_RULES.plural} are not served: nodes are cordoned while they change, for pods without GPUs too",
            "switch on the feature gate DRADeviceTaintRules and its API, or use Kubernetes 1.37",
        )
    )
    return [Found("slices", OK, f"{RESOURCE_SLICES.api_version} has {RESOURCE_SLICES.plural}"), closing]


async def _kept(client: Client, _: Settings) -> list[Found]:
    """Whether slices come back from a dry run as they were sent."""
    from gpupartition.api.v1alpha1 import DriverSpec
    from gpupartition.backends.probe import dropped, probe
    from gpupartition.kube import RESOURCE_SLICES, Invalid

    gpus = [{"count": 1, "product": "any", "memory": "8Gi"}]
    publish = {"driverName": "probe.gpupartition.dev", "inventory": {"gpus": gpus}}
    lost: list[str] = []
    for body in probe(DriverSpec.model_validate({"type": "Publish", "publish": publish})):
        try:
            lost += dropped(body, await client.create(RESOURCE_SLICES, body, dry_run=True))
        except Invalid as error:  # what is left of a slice without the fields may not be one
            lost.append(f"a slice as a whole ({error.message})")
    if not lost:
        says = "partitions that share a GPU, and devices that claims share, are kept as they are written"
        return [Found("counters", OK, says)]
    return [
        Found(
            "counters",
            FAILED,
            f"the API server drops {', '.join(sorted(set(lost)))}: partitions would be sold beside their GPU",
            "switch on the feature gates DRAPartitionableDevices and DRAConsumableCapacity",
        )
    ]


async def _kinds(client: Client, _: Settings) -> list[Found]:
    """Whether our kinds are there, with all of their fields: others are dropped without a word from what operators and Helm write."""
    from gpupartition.api import crd
    from gpupartition.domain.wording import few
    from gpupartition.kinds import DRIVERS, NODE_STATES, POLICIES

    served = await _resources(client, API_VERSION)
    missing = [kind.plural for kind in (DRIVERS, POLICIES, NODE_STATES) if kind.plural not in served]
    if missing:
        return [Found("crds", FAILED, f"{API_VERSION} has no {', '.join(missing)}", "kubectl apply -k crds")]
    told = (await client.raw("GET", f"/openapi/v3/apis/{API_VERSION}"))["components"]["schemas"]
    schemas = {name.rpartition(".")[2]: schema for name, schema in told.items()}
    lost = [f"{kind.kind} {path}" for kind in crd.KINDS for path in crd.lacking(kind, schemas.get(kind.kind, {}))]
    if lost:
        says = f"the CRDs are those of another release, and drop {few(lost)}"
        return [Found("crds", WARNED, says, "kubectl apply -k manifests: CRDs, rights and image belong together")]
    return [Found("crds", OK, f"the kinds of {API_VERSION} are served")]


async def _drivers(client: Client, settings: Settings) -> list[Found]:
    """Who publishes GPUs, and what is wrong with the drivers that are written down."""
    from gpupartition.backends.recognised import publishes_gpus, recognised
    from gpupartition.cli.cluster import published_on
    from gpupartition.domain.adoption import LeftOut
    from gpupartition.kinds import DRIVERS
    from gpupartition.kube import DAEMON_SETS, RESOURCE_SLICES

    nodes = Counter(
        driver
        for driver, _ in {
            (body["spec"]["driver"], node)
            for body in (await client.list(RESOURCE_SLICES)).items
            for node in published_on(body["spec"])
        }
    )
    has_kinds = DRIVERS.plural in await _resources(client, API_VERSION)
    bodies = (await client.list(DRIVERS)).items if has_kinds else []
    found, known = await _written(client, settings, bodies, nodes) if bodies else ([], set())
    that = " that works" if any(each.verdict == FAILED for each in found) else ""  # whose name is perhaps not known
    daemon_sets = (await client.list(DAEMON_SETS)).items
    for name, count in sorted(nodes.items()):
        if name in known or not publishes_gpus(name):
            continue
        publish = "s publish" if count > 1 else " publishes"
        says = f"{count} node{publish} as {name}, and no GpuPartitionDriver{that} is for it"
        try:
            kinds = {str(each.spec["type"]) for each in recognised(name, daemon_sets)}
            found.append(
                Found("drivers", WARNED, f"{says}; it is of type {', '.join(sorted(kinds))}", "see what adopt prints")
            )
        except LeftOut as left_out:
            found.append(Found("drivers", WARNED, says, str(left_out)))
    if not found:
        fix = "install a DRA driver for your GPUs, or write a GpuPartitionDriver of type Publish"
        found.append(Found("drivers", WARNED, "no DRA driver publishes devices of a node", fix))
    return found


async def _written(
    client: Client, settings: Settings, bodies: Sequence[Object], nodes: Counter[str]
) -> tuple[list[Found], set[str]]:
    """What is true of each GpuPartitionDriver, and the names under which they publish."""
    from gpupartition.cli.planned import copied
    from gpupartition.domain.problem import Refused

    _, intents = await copied(client, settings)
    found: list[Found] = []
    known: set[str] = set()
    for body in bodies:
        name = f"driver {body['metadata']['name']}"
        try:
            driver = await intents.driver(body)
            problems: Sequence[Any] = driver.problems
            known.add(driver.driver_name)
        except Refused as refused:
            problems = refused.problems
        found += [Found(name, FAILED, f"{p.reason}: {p.at}: {p.why}", p.fix) for p in problems]
        if not problems:
            says = f"{driver.spec.type} {driver.driver_name}, published by {nodes[driver.driver_name]} nodes"
            found.append(_deleted(name, says) if "deletionTimestamp" in body["metadata"] else Found(name, OK, says))
    return found, known


def _deleted(name: str, says: str) -> Found:
    fix = "a deletion cannot be taken back: delete the policies that name it too, then apply all of it again"
    return Found(name, WARNED, f"{says}; it is being deleted, and gone when nothing names it any more", fix)


async def _resources(client: Client, api_version: str) -> frozenset[str]:
    """Plurals of what is served in a version of a group."""
    from gpupartition.kube import NotServed

    try:
        told = await client.raw("GET", f"/apis/{api_version}")
    except NotServed:
        return frozenset()
    return frozenset(each["name"] for each in told["resources"])


_CHECKS: Final[dict[str, Callable[[Client, Settings], Awaitable[list[Found]]]]] = {
    "version": _version,
    "slices": _served,
    "counters": _kept,
    "crds": _kinds,
    "drivers": _drivers,
}
_OF_SLICES: Final = frozenset({"counters", "drivers"})
"""Of these there is nothing to say where there are no ResourceSlices."""


# ------------------------------------------------------------------------------------------------------------------------ forms


def pictured(found: Sequence[Found], _: datetime) -> Iterator[Line]:
    """For people: a line for each look, and below it what to do."""
    rows: list[tuple[Cell, ...]] = []
    for each in found:
        rows.append((Span(each.verdict, _STYLES[each.verdict]), each.check, each.says))
        rows += [("", "", Span(f"-> {each.fix}", "bold"))] if each.fix else []
    yield from grid(("VERDICT", "CHECK", "FOUND"), rows)


def as_data(found: Sequence[Found]) -> dict[str, Any]:
    """Everything, in names that stay."""
    return {"checks": [asdict(each) for each in found]}


def names(found: Sequence[Found]) -> list[str]:
    """The checks that are not well."""
    return [each.check for each in found if each.verdict != OK]


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
