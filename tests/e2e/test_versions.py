"""While a control plane is upgraded: API servers of two releases, or with other gates, are behind one address; requests meet any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from testbed.build import RELEASES, release
from testbed.faultproxy import FaultProxy
from tests.e2e import rollout
from tests.e2e.harness import DRIVERS, NODE_STATES, eventually
from tests.e2e.history import Watcher
from tests.e2e.publishing import FULL, PART, POLICY, gpus, nothing_is_ever_sold_twice, shared_counters, site, usable
from tests.e2e.rollout import condition, equal, ready, said, stalled
from tests.e2e.servers import served_by
from tests.e2e.stage import IN_FLIGHT, WAIT, closed_while_at_work, stage

from gpupartition.kube import DEVICE_TAINT_RULES, RESOURCE_SLICES
from gpupartition.names import LAYOUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from testbed.controlplane import ControlPlane
    from tests.e2e.harness import Cluster
    from tests.e2e.publishing import Site

    from gpupartition.kube import Object

NEWEST: Final = next(iter(RELEASES))
ONE_BY_ONE: Final = {"maxUnavailable": 1}
ANOTHER: Final = next(each for each in RELEASES if each != release())


@pytest.fixture(scope="module")
async def another(controlplane: ControlPlane) -> AsyncIterator[Path]:
    """A kubeconfig of the operator for an API server of another release."""
    async with served_by(controlplane, of=ANOTHER) as kubeconfig:
        yield kubeconfig


def cordons() -> Object:
    """What drivers say where rules are served that no controller manager answers yet."""
    return {"spec": {"quiesce": "Cordon" if ANOTHER == NEWEST else "Auto"}}


async def test_nodes_change_one_by_one_and_once_while_servers_of_two_releases_answer_and_when_only_the_other_is_left(
    cluster: Cluster, another: Path, tmp_path: Path
) -> None:
    scene = await stage(cluster, 2)
    await cluster.client.patch(DRIVERS, scene.driver, cordons())
    async with (
        Watcher(cluster) as history,
        FaultProxy(another, tmp_path, seed=1, servers=[another, own(cluster)]) as line,
    ):
        program = await rollout.operator(cluster, line.kubeconfig)
        name = await scene.want_halves(rollout=ONE_BY_ONE)
        await ready(cluster, name)
        line.servers = [another]
        await rollout.apply(cluster, rollout.policy(name, scene.driver, equal(4), rollout=ONE_BY_ONE))
        await ready(cluster, name)
        await rollout.at_rest(cluster)
        await program.stop()
    await scene.publishes(rollout.devices(4))
    closed_while_at_work(history)
    assert history.most_unavailable() == 1
    for node in scene.nodes:
        assert len(history.assignments(node)) == 3, history.assignments(node)


@pytest.mark.newest  # the other release has no rules
async def test_a_node_is_not_called_open_while_no_server_answers_that_knows_the_rule_which_closes_it(
    cluster: Cluster, another: Path, tmp_path: Path
) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await scene.hold(node)
    async with Watcher(cluster) as history, FaultProxy(own(cluster), tmp_path, seed=1) as line:
        program = await rollout.operator(cluster, line.kubeconfig)
        name = await scene.want_halves(rollout=WAIT)
        await rollout.reaches(cluster, node, "Draining")
        line.servers = [another]
        await rollout.apply(cluster, rollout.policy(name, scene.driver, rollout.whole()))
        await eventually(lambda: program.log.read_text().count("get devicetaintrules") >= 3)
        line.servers = [another, own(cluster)]
        await ready(cluster, name)
        await rollout.at_rest(cluster)
        await program.stop()
    for now in history.instants():
        (phase,) = [each["status"]["phase"] for each in now.objects(NODE_STATES)] or ["none"]
        ruled = [rule for rule in now.objects(DEVICE_TAINT_RULES) if rule["spec"]["deviceSelector"]["pool"] == node]
        assert not ruled or phase in {*IN_FLIGHT, "Aborting"}, (phase, ruled)


def own(cluster: Cluster) -> Path:
    """The operator's kubeconfig for the control plane's own API server."""
    return cluster.controlplane.files.kubeconfig("operator")


async def test_slices_are_stored_by_servers_of_two_releases_as_they_were_written(
    cluster: Cluster, another: Path, tmp_path: Path
) -> None:
    async with FaultProxy(own(cluster), tmp_path, seed=1, servers=[own(cluster), another]) as line:
        here = await site(cluster, gpus(2), nodes=2, live=False, kubeconfig=line.kubeconfig)
        await cluster.client.patch(DRIVERS, here.driver, cordons())
        async with Watcher(cluster) as history:
            await here.gets(equal(2))
            users = here.users()
            await users.ask("part", PART)
            await users.ask("whole", FULL)
            await users.device("part")
            await users.device("whole")
            await here.want(equal(4))
            await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
            for name in ("part", "whole"):
                await users.end(name)
            await ready(cluster, POLICY)
            await rollout.at_rest(cluster)
        await here.program.stop()
    nothing_is_ever_sold_twice(history, here)
    for node in here.nodes:
        for stored in contents(history, here, node).values():
            assert len(stored) == 1, stored


def contents(history: Watcher, where: Site, node: str) -> dict[tuple[str, str], list[Object]]:
    """What was ever stored in each slice of a node's pool under each layout, whatever its generation."""
    found: dict[tuple[str, str], list[Object]] = {}
    for change in history.changes(RESOURCE_SLICES):
        if change.what != "DELETED" and change.body["spec"]["pool"]["name"] == where.pool_name(node):
            label = change.body["metadata"].get("labels", {}).get(LAYOUT, "")
            pool = {**change.body["spec"]["pool"], "generation": 0}
            spec = {**change.body["spec"], "pool": pool}
            found.setdefault((label, change.name), [])
            if spec not in found[label, change.name]:
                found[label, change.name].append(spec)
    return found


async def test_where_one_of_two_servers_drops_counters_no_gpu_is_ever_sold_twice_and_the_policy_names_the_gate(
    cluster: Cluster, tmp_path: Path
) -> None:
    gate = "DRAPartitionableDevices"
    async with (
        served_by(cluster.controlplane, feature_gates=f"{gate}=false") as drops,
        FaultProxy(own(cluster), tmp_path, seed=1) as line,
    ):
        here = await site(cluster, gpus(2), kubeconfig=line.kubeconfig)
        await here.gets(equal(2))  # so that the operator has asked what is kept
        async with Watcher(cluster) as history:
            line.servers = [own(cluster), *[drops] * 9]
            new = await cluster.nodes(3, pool=here.driver)
            policy = await stalled(cluster, POLICY, "FeatureGateOff")
            assert gate in condition(policy, "Stalled")["message"]
            line.servers = [own(cluster)]
            await ready(cluster, POLICY, within=90)
        await here.program.stop()
    for now in history.instants():
        for node in new:
            for device in usable(here.among(now.objects(RESOURCE_SLICES), node)) or ():
                assert device.get("consumesCounters"), (node, device)
    assert [len(await here.offers(node)) for node in new] == [6, 6, 6]
    counters = shared_counters(await here.slices())
    assert [shared_counters(await here.slices(node)) for node in new] == [counters] * 3
