"""`gpupartition classes`: DeviceClasses for the kinds of devices that policies make, as YAML to commit. Reads, and writes nothing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpupartition.cli.forms import objects
from gpupartition.cli.options import Unusable, add_cluster, add_output, add_policies, describe

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.cli.documents import Document
    from gpupartition.kube import Client, Object
    from gpupartition.settings import Settings

ABOUT: Final = """
Prints a DeviceClass for each kind of device that policies make on the nodes that they select: for each profile, each part, and whole GPUs.
A claim names such a class instead of an expression; what the expression asks, it asks only of devices that have it, so that it never fails.
With --extended-resource-prefix a container may ask for devices as it asks for CPU: example.com/gpu-half: 1. Nothing is written.
"""
EXAMPLES: Final = """
examples:
  %(prog)s inference                                    the classes of a policy that is in the cluster; without a name: of all
  %(prog)s -f policy.yaml > classes.yaml                before it is applied
  %(prog)s inference --extended-resource-prefix example.com | kubectl apply -f -

exit codes: 0 printed; 1 could not be told (the message says why); 2 wrong usage
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    add_policies(parser)
    parser.add_argument(
        "--extended-resource-prefix",
        type=_prefix,
        metavar="DOMAIN",
        help="let each class be an extended resource too, as DOMAIN/gpu-KIND",
    )
    add_output(parser, FORMS, default="yaml")
    add_cluster(parser)


_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST: Final = 253 - len("requests.")  # which quotas put before it


def _prefix(text: str) -> str:
    """A domain that extended resources may have: `kubernetes.io` is Kubernetes' own."""
    if not _DOMAIN.fullmatch(text) or len(text) > _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no domain; write for example example.com")
    if text == "kubernetes.io" or text.endswith(".kubernetes.io") or text.startswith("requests."):
        raise argparse.ArgumentTypeError(f"{text!r} is Kubernetes' own; write a domain of yours, such as example.com")
    return text


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Look, print, and return the exit code."""
    from gpupartition.cli.cluster import answer
    from gpupartition.cli.documents import read

    documents = read(options.filename)

    async def ask(client: Client) -> Answer:
        found = await classes(client, settings, documents, options.name, options.extended_resource_prefix or "")
        return FORMS[options.output](found), ()

    return await answer(options, "classes", ask)


async def classes(
    client: Client, settings: Settings, documents: Sequence[Document], names: Sequence[str], prefix: str
) -> list[Object]:
    """The DeviceClasses of these policies. Raises Unusable and ApiError."""
    from gpupartition.backends.offers import offers
    from gpupartition.cli.planned import planned_for
    from gpupartition.domain.device_classes import Offer, device_class
    from gpupartition.kube.pauses import unhurried

    with unhurried():
        seen = await planned_for(client, settings, documents, names)
    drivers = {scope.driver.name: scope.driver for scope in seen.scopes}
    found: dict[str, dict[str, Offer]] = {}
    for plan in seen.plans:
        for pool in {id(pool.wanted): pool.wanted for pool in plan.pools}.values():
            if pool is not None:
                driver = drivers[plan.driver]
                found.setdefault(_legal(driver.driver_name), {}).update(offers(driver.spec.type, pool))
    if not any(found.values()):
        reasons = [f"{plan.policy}: {plan.refused}" for plan in seen.plans if plan.refused]
        raise Unusable(*reasons or ["the policies make no devices: no node that they select can have their layouts"])
    _tell_apart(found, prefix)
    return [
        device_class(driver, offer, extended=f"{prefix}/gpu-{name}" if prefix else "")
        for driver, kinds in sorted(found.items())
        for name, offer in kinds.items()
    ]


def _legal(driver: str) -> str:
    if not _DOMAIN.fullmatch(driver) or len(driver) > 63:
        raise Unusable(
            f"the DRA driver is called {driver!r}, which the API takes for no driver's name; correct its DaemonSet"
        )
    return driver


def _tell_apart(found: Mapping[str, Mapping[str, object]], prefix: str) -> None:
    """Of two classes with one extended resource only one would have it. Raises Unusable."""
    seen: dict[str, str] = {}
    for driver, kinds in sorted(found.items()):
        for name in kinds if prefix else ():
            if name in seen:
                raise Unusable(
                    f"{prefix}/gpu-{name} would be a class of {seen[name]} and of {driver}, and Kubernetes would take one of them; "
                    "print the classes of their policies one by one, each with another --extended-resource-prefix"
                )
            seen[name] = driver


def _as_they_are(found: Sequence[Object]) -> Sequence[Object]:
    return found


FORMS: Final = objects(_as_they_are)
