"""Policies and drivers that schemas let through, nodes of any name, pods of anybody: what is made of them is lawful, and what it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from hypothesis import given
from hypothesis import strategies as st
from tests.properties import hostile
from tests.properties.harm import unchanged_but_for_ours, unharmed
from tests.properties.hostile import fuzz
from tests.unit import amd, example, nvidia, published
from tests.unit.expressions import Published

from gpupartition import names
from gpupartition.api.v1alpha1 import Drain, DriverSpec, DriverType, PolicySpec
from gpupartition.backends import BACKENDS
from gpupartition.backends.offers import offers
from gpupartition.backends.plugin_pods import base_label
from gpupartition.backends.slices import slice_name
from gpupartition.cli.offline import refused
from gpupartition.domain.allocator.selectors import selects
from gpupartition.domain.backend import Cluster, NodeFacts
from gpupartition.domain.device_classes import Offer, device_class, selector
from gpupartition.domain.effects import PatchNode
from gpupartition.domain.eviction import Occupant, Refusal, budgets_of, next_to_go, rests, spared
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Refused
from gpupartition.kube import Object

refused(hostile.SOMETHING)  # as in the other tests of this kind

LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
CLUSTERS: Final[Mapping[DriverType, Cluster]] = {
    DriverType.EXAMPLE_DRIVER: Cluster(daemon_sets=[example.daemon_set()]),
    DriverType.NVIDIA_MIG: nvidia.installed(),
    DriverType.AMD_DCM: amd.installed(),
    DriverType.PUBLISH: Cluster(),
}
FACTS: Final[Mapping[DriverType, NodeFacts]] = {
    DriverType.EXAMPLE_DRIVER: NodeFacts(node=published.node()),
    DriverType.NVIDIA_MIG: nvidia.facts(nvidia.cut(0, nvidia.H100, "1g.10gb"), nvidia.cut(1, nvidia.H100)),
    DriverType.AMD_DCM: amd.facts(*amd.EIGHT),
    DriverType.PUBLISH: NodeFacts(node=published.node()),
}
DRIVERS: Final[Mapping[DriverType, DriverSpec]] = {
    DriverType.EXAMPLE_DRIVER: example.driver(),
    DriverType.NVIDIA_MIG: nvidia.driver(),
    DriverType.AMD_DCM: amd.driver(),
    DriverType.PUBLISH: published.driver(),
}


@st.composite
def drivers(draw: st.DrawFn) -> DriverSpec:
    """One that is installed, or one that somebody has bent."""
    kind = draw(st.sampled_from(list(DRIVERS)))
    if draw(st.booleans()):
        return DRIVERS[kind]
    body = draw(st.sampled_from([b for b in hostile.accepted("GpuPartitionDriver") if b["spec"]["type"] == kind]))
    bent = {**body, "spec": draw(hostile.bent(body["spec"]))}
    return DRIVERS[kind] if refused(bent) else DriverSpec.model_validate(bent["spec"])


@st.composite
def policies(draw: st.DrawFn) -> PolicySpec:
    """One that the schema lets through."""
    body = draw(st.sampled_from(hostile.accepted("GpuPartitionPolicy")))
    bent = {**body, "spec": draw(hostile.bent(body["spec"]))}
    return PolicySpec.model_validate((body if refused(bent) else bent)["spec"])


@given(driver=drivers(), policy=policies(), labels=hostile.LABELS, notes=hostile.ANNOTATIONS)
@fuzz("compiling")
def test_what_the_schema_lets_through_is_compiled_or_refused_in_words(
    driver: DriverSpec, policy: PolicySpec, labels: Mapping[str, str], notes: Mapping[str, str]
) -> None:
    backend, cluster, facts = BACKENDS[driver.type], CLUSTERS[driver.type], FACTS[driver.type]
    meta = facts.node["metadata"]
    node = {**facts.node, "metadata": {**meta, "labels": meta["labels"] | labels, "annotations": notes}}
    on = replace(facts, node=node)
    told = [str(problem) for problem in backend.preflight(driver, cluster)]
    try:
        config = backend.compile(driver, policy, on, cluster)
    except Refused as why:
        told += map(str, why.problems)
    else:
        assert Pool.from_json(config.pool.to_json()).to_json() == config.pool.to_json()
        for body in config.objects:
            unchanged_but_for_ours(body, cluster, told)
        effect = backend.assign(driver, on, config.assigned(), "s1", 1)
        assert not isinstance(effect, PatchNode) or unharmed(effect.labels)
        _each_class_means_its_own(driver.type, config.pool)
    assert all(0 < len(text) < 4000 for text in told), told


def _each_class_means_its_own(kind: DriverType, pool: Pool) -> None:
    """A DeviceClass can be asked of every device, and says yes to no other kind's."""
    for offer in offers(kind, pool).values():
        assert LABEL.fullmatch(offer.name), offer
        (each,) = device_class("gpu.example.org", offer)["spec"]["selectors"]
        attributes = {name: {"string": text} for name, text in offer.texts.items()}
        capacity = {name: {"value": str(amount)} for name, amount in offer.amounts.items()}
        mine = {"name": "d", "attributes": attributes, "capacity": capacity}
        assert selects(each["cel"]["expression"], Published(mine, "gpu.example.org"))
        for other in (
            {**mine, "attributes": {}, "capacity": {}},
            {**mine, "attributes": {n: {"string": "-"} for n in attributes}},
        ):
            assert not selects(each["cel"]["expression"], Published(other, "gpu.example.org")) or other == mine


@given(attributes=hostile.texts_of_devices(), asked=hostile.TEXT.filter(bool))
@fuzz("classes")
def test_whatever_a_device_says_of_itself_it_is_in_the_class_of_that_and_in_no_other(
    attributes: Mapping[str, str], asked: str
) -> None:
    mine = selector("gpu.example.org", Offer(name="x", texts=attributes))
    body = {"name": "d", "attributes": {name: {"string": text} for name, text in attributes.items()}}
    assert selects(mine, Published(body, "gpu.example.org"))
    assert not selects(mine, Published(body, "gpu.example.com"))
    for name, text in attributes.items():
        theirs = selector("gpu.example.org", Offer(name="x", texts={**attributes, name: asked}))
        assert selects(theirs, Published(body, "gpu.example.org")) is (asked == text)


# A Node's name is a DNS subdomain of at most 253 characters; so is the name of a driver's object, of at most 63 that of a driver.
PART: Final = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?", fullmatch=True) | st.sampled_from(
    ["a" * 63, "0", "x--x"]
)
NODE_NAME: Final = st.lists(PART, min_size=1, max_size=9).map(lambda parts: ".".join(parts)[:253].rstrip("-."))
DRIVER_NAME: Final = st.lists(PART, min_size=1, max_size=9).map(lambda parts: ".".join(parts)[:63].rstrip("-."))


@given(one=st.tuples(DRIVER_NAME, NODE_NAME), other=st.tuples(DRIVER_NAME, NODE_NAME), number=st.integers(0, 99999))
@fuzz("names")
def test_whatever_a_node_is_called_what_is_written_for_it_has_a_name_of_its_own(
    one: tuple[str, str], other: tuple[str, str], number: int
) -> None:
    written = {
        each: slice_name(*each, number) for each in (one, other, (one[0], other[1]), (one[0], f"{one[0]}-{one[1]}"))
    }
    rules = {uid: names.taint_rule(one[1], uid) for uid in ("uid-1", "uid-2")}
    bases = {name: base_label(name) for name in (one[1], other[1])}
    for name in (*written.values(), *rules.values()):
        assert len(name) <= 253
        assert SUBDOMAIN.fullmatch(name), name
    for label in bases.values():
        assert unharmed({"label": label})
    for distinct in (written, rules, bases):
        assert len(set(distinct.values())) == len(distinct), distinct


@given(
    bodies=st.lists(hostile.pod("team-a"), max_size=4),
    asked=hostile.DRAIN,
    budgets=st.lists(hostile.budget(), max_size=3),
)
@fuzz("evicting")
def test_whatever_pods_say_of_themselves_nobody_is_evicted_who_is_to_be_spared(
    bodies: list[Object], asked: Object, budgets: list[Object]
) -> None:
    drain = Drain.model_validate(asked)
    refusals = [None, Refusal(reason="EvictionBlocked", resting=timedelta(seconds=5))]
    pods = [Occupant(body=body, protected=n == 1, refusal=refusals[n % 2]) for n, body in enumerate(bodies)]
    for forced in (False, True):
        gone = next_to_go(pods, drain, forced=forced)
        if gone is not None:
            meta = gone.body["metadata"]
            assert not gone.protected
            assert "deletionTimestamp" not in meta
            assert meta.get("annotations", {}).get(names.DO_NOT_DISRUPT) != "true"
            assert drain.force or any(owner.get("controller") for owner in meta.get("ownerReferences", ()))
    rests(pods, drain)
    for pod in pods:
        assert isinstance(spared(pod, drain), str)
        assert len(budgets_of(pod.body, budgets)) <= len(budgets)
