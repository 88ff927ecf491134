"""Laws of adoption: what is said of a node is compiled into just what it has, and each policy selects its own nodes and nobody else's."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.properties.filled import legal
from tests.properties.layouts import LAW, accepted, worlds
from tests.unit import amd, example, nvidia
from tests.unit.adopted import adopted, amd_cluster, example_node, mig_cluster
from tests.unit.example import SHARED

from gpupartition.api.v1alpha1 import PolicySpec
from gpupartition.backends.example_limits import layout_problems
from gpupartition.backends.nvidia_gpus import Cut
from gpupartition.domain.adoption import LASTING, Adopted, policies
from gpupartition.domain.backend import Cluster
from gpupartition.domain.groups import HOSTNAME
from gpupartition.domain.mig import GpuModel
from gpupartition.domain.selector import matches
from gpupartition.tables.amd import builtin as modes
from gpupartition.tables.mig import builtin as models

QUICK = settings(LAW, max_examples=100)

# ---------------------------------------------------------------------------------------------------------- layouts, driver by driver


@LAW
@given(worlds())
def test_what_the_operator_itself_published_is_said_as_a_policy(
    world: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    server, wanted = accepted(world)
    list(server.assign(wanted.assigned(), "step"))
    adopted(server.driver, server.facts, Cluster())


@QUICK
@given(st.integers(1, 12), st.integers(0, 63).filter(lambda parts: parts != 1), st.booleans())
def test_what_the_example_driver_was_told_is_said_as_a_policy(gpus: int, parts: int, shared: bool) -> None:
    assume(not list(layout_problems(example.policy(parts, sharing=SHARED if shared else {}).layouts, gpus)))
    facts, cluster = example_node(gpus, parts, shared=shared)
    adopted(example.driver(gpus), facts, cluster)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A product, and the partitions of one GPU of it; none: it is whole."""
    model: GpuModel = draw(st.sampled_from(models()))
    placed = draw(st.sampled_from(sorted(legal(model))))
    return draw(st.sampled_from(model.products)), [each.profile for each in placed]


@QUICK
@given(st.lists(cuts(), min_size=1, max_size=8))
def test_gpus_that_were_cut_by_a_name_of_somebody_elses_or_by_none_are_said_as_a_policy(
    gpus: list[tuple[str, list[str]]],
) -> None:
    devices = [nvidia.cut(number, product, *profiles) for number, (product, profiles) in enumerate(gpus)]
    groups: dict[Cut, list[int]] = {}
    for number, (_, profiles) in enumerate(gpus):
        groups.setdefault(Cut.of(Counter(profiles), enabled=bool(profiles)), []).append(number)
    items: list[dict[str, Any]] = []
    for has, numbers in groups.items():
        counts = {"mig-devices": dict(has.counts)} if has.enabled else {}
        items.append({"devices": numbers if len(groups) > 1 else "all", "mig-enabled": has.enabled, **counts})
    by_name = adopted(
        nvidia.driver(), nvidia.facts(*devices, on=nvidia.node("by-hand")), mig_cluster(**{"by-hand": items})
    )
    assert adopted(nvidia.driver(), nvidia.facts(*devices, on=nvidia.node(None, None)), mig_cluster()) == by_name


@QUICK
@given(st.data(), st.integers(1, 8))
def test_gpus_whose_modes_were_set_under_a_name_of_somebody_elses_or_none_are_said_as_a_policy(
    data: st.DataObject, gpus: int
) -> None:
    (model,) = [each for each in modes() if each.name == "MI300X"]
    usable = [known for known in model.modes if known.mode.settable]
    memory = data.draw(st.sampled_from(sorted({known.mode.memory for known in usable})))
    alike = [known for known in usable if known.mode.memory == memory]
    told = data.draw(st.lists(st.sampled_from(alike), min_size=gpus, max_size=gpus))
    devices = [amd.gpu(n, known.mode.name, count=known.partitions) for n, known in enumerate(told)]
    items = [amd.item(mode.compute, mode.memory, len(list(same))) for mode, same in groupby(k.mode for k in told)]
    facts = amd.facts(*devices, on=amd.node("by-hand", "success"))
    by_name = adopted(amd.driver(), facts, amd_cluster(**{"by-hand": {"profiles": items}}))
    assert adopted(amd.driver(), amd.facts(*devices), amd_cluster()) == by_name


# ---------------------------------------------------------------------------------------------------------------------- selectors

KEYS = (*LASTING[:3], "lane")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, dict[str, str]], list[Adopted]]:
    """Labels of some nodes, and those of them that are adopted."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 80)))]
    values = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["a", "b", "c", "d"]))
    hosts = {name: draw(st.sampled_from([name, name, name, "same", ""])) for name in names}
    labels = {name: draw(values) | ({HOSTNAME: host} if host else {}) for name, host in hosts.items()}
    layouts = [[{"name": kind, "match": {"all": True}, "type": kind}] for kind in ("whole", "keep")]
    some = draw(st.lists(st.sampled_from(names), unique=True))
    drivers = st.sampled_from(["one", "other"])
    return labels, [Adopted(node, draw(drivers), draw(st.sampled_from(layouts))) for node in some]


@QUICK
@given(clusters())
def test_policies_select_exactly_the_nodes_that_are_theirs_and_no_node_twice(
    world: tuple[dict[str, dict[str, str]], list[Adopted]],
) -> None:
    labels, mine = world
    found, left = policies(mine, labels, keys=KEYS)
    wanted = {each.node: (each.driver, each.layouts) for each in mine}
    selected: list[str] = []
    for policy in found:
        whole = {"name": "l", "match": {"all": True}, "type": "Whole"}
        spec = PolicySpec.model_validate({**policy.body["spec"], "layouts": [whole]})
        nodes = [name for name, has in labels.items() if matches(spec.node_selector, has)]
        assert sorted(nodes) == sorted(policy.nodes)
        assert all(wanted[node] == (policy.body["spec"]["driver"], policy.body["spec"]["layouts"]) for node in nodes)
        selected += nodes
    assert sorted(selected + left) == sorted(wanted)
    names = [policy.body["metadata"]["name"] for policy in found]
    assert sorted(set(names)) == sorted(names)
