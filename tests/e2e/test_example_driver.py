"""The simulated example driver on a real API server: each promise here was first measured on the real driver.

Each test has nodes and a driver name of its own. The driver's delays of 30 seconds are a second or two in here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from testbed.controlplane import ControlPlane, Shape, python_env
from testbed.driverhost import USER_AGENT
from testbed.programs import Program
from tests.e2e import harness
from tests.e2e.bench import READY, UNREADY, Bench, becomes
from tests.e2e.harness import eventually

from gpupartition.kube import NODES, PODS, RESOURCE_SLICES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.harness import Cluster


@pytest.fixture
async def bench(cluster: Cluster) -> Bench:
    (node,) = await cluster.nodes(1)
    return Bench(client=cluster.client, node=node, namespace=await cluster.namespace())


# ── layouts that the API server takes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("devices", "partitions", "shared", "pool"),
    [
        (8, 0, False, [(1, 1, 8)]),
        (8, 2, False, [(1, 2, 8), (1, 2, 24)]),
        (8, 3, False, [(1, 2, 8), (1, 2, 32)]),
        (8, 4, True, [(1, 2, 8), (1, 2, 40)]),
        (8, 7, False, [(1, 2, 8), (1, 2, 64)]),
        (4, 15, False, [(1, 2, 4), (1, 2, 64)]),
    ],
)
async def test_a_layout_is_published_as_drawn_and_its_pod_is_ready(
    bench: Bench, devices: int, partitions: int, shared: bool, pool: list[tuple[int, int, int]]
) -> None:
    pod = await bench.start(devices=devices, partitions=partitions, shared=shared)
    await becomes(bench.pool, pool)
    assert await bench.contents() == bench.layout(devices=devices, partitions=partitions, shared=shared)
    await bench.ready(pod)


async def test_slices_are_named_by_their_place_and_owned_by_the_node(bench: Bench) -> None:
    await bench.start(partitions=2)
    await becomes(bench.pool, [(1, 2, 8), (1, 2, 24)])
    node = await bench.client.get(NODES, bench.node)
    for place, item in enumerate(await bench.slices()):
        assert item["metadata"]["name"].startswith(f"0000{place}-{bench.driver}-{bench.node}-")
        assert item["spec"]["pool"]["name"] == bench.node
        assert item["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": bench.node, "uid": node["metadata"]["uid"], "controller": True}
        ]


@pytest.mark.parametrize(
    ("before", "after", "pool"),
    [
        pytest.param(2, 4, [(1, 2, 8), (1, 2, 40)], id="2 to 4"),
        pytest.param(4, 0, [(1, 1, 8)], id="4 to 0"),
        pytest.param(2, 0, [(1, 1, 8)], id="2 to 0"),
        pytest.param(0, 2, [(2, 2, 8), (2, 2, 24)], id="0 to 2"),
    ],
)
async def test_a_new_layout_is_written_into_the_slices_that_are_there(
    bench: Bench, before: int, after: int, pool: list[tuple[int, int, int]]
) -> None:
    pod = await bench.start(partitions=before)
    await becomes(bench.contents, bench.layout(partitions=before))
    old = await bench.slices()
    await bench.restart(pod, partitions=after)
    await becomes(bench.pool, pool)
    new = await bench.slices()
    assert await bench.contents() == bench.layout(partitions=after)
    assert [item["metadata"]["uid"] for item in old][: len(new)] == [item["metadata"]["uid"] for item in new][
        : len(old)
    ]


async def test_from_halves_to_quarters_is_a_single_write(bench: Bench) -> None:
    pod = await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    counters, devices = await bench.slices()
    await bench.restart(pod, partitions=4)
    await becomes(bench.contents, bench.layout(partitions=4))
    after = await bench.slices()
    assert after[0] == counters
    assert after[1]["metadata"]["generation"] == devices["metadata"]["generation"] + 1


# ── layouts that the API server refuses ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("devices", "partitions", "shared"), [(8, 8, False), (4, 16, False), (8, 3, True)])
async def test_refused_devices_leave_half_a_pool_whose_generation_rises_at_every_try(
    bench: Bench, devices: int, partitions: int, shared: bool
) -> None:
    pod = await bench.start(devices=devices, partitions=partitions, shared=shared)

    async def half_a_pool_at_a_high_generation() -> bool:
        ((generation, slices, counter_sets),) = await bench.pool() or [(0, 0, 0)]
        return generation >= 5 and (slices, counter_sets) == (2, devices)

    await eventually(half_a_pool_at_a_high_generation)
    await bench.ready(pod)


@pytest.mark.parametrize(("devices", "partitions"), [(9, 2), (129, 0)])
async def test_a_refused_first_slice_leaves_nothing(bench: Bench, devices: int, partitions: int) -> None:
    pod = await bench.start(devices=devices, partitions=partitions)
    await bench.ready(pod)
    await bench.turns()
    assert await bench.slices() == []


@pytest.mark.parametrize(("partitions", "shared"), [(8, False), (3, True)])
async def test_a_good_pool_outlives_a_layout_whose_devices_are_refused(
    bench: Bench, partitions: int, shared: bool
) -> None:
    pod = await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    before = await bench.slices()
    pod = await bench.restart(pod, partitions=partitions, shared=shared)
    await bench.ready(pod)
    await bench.turns()
    assert await bench.slices() == before


async def test_a_ninth_gpu_loses_the_counters_of_a_good_pool(bench: Bench) -> None:
    pod = await bench.start(partitions=2)
    await becomes(bench.pool, [(1, 2, 8), (1, 2, 24)])
    await bench.restart(pod, devices=9, partitions=2)

    async def devices_alone() -> bool:
        slices = await bench.slices()
        return [len(each["spec"].get("devices", ())) for each in slices] == [27] and await bench.pool() > [(2, 2, 27)]

    await eventually(devices_alone)


async def test_a_refused_layout_gives_way_to_a_good_one(bench: Bench) -> None:
    pod = await bench.start(devices=9, partitions=2)
    await bench.ready(pod)
    await bench.restart(pod, partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))


# ── slices of others, and what others do to ours ──────────────────────────────────────────────────────────────────────


async def test_foreign_slices_of_its_driver_and_node_go_and_all_others_stay(bench: Bench) -> None:
    await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    here = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [bench.node]}]}]
    }
    same = {"name": bench.node, "generation": 1, "resourceSliceCount": 2}
    staying = [
        await bench.hand_made("selected", nodeSelector=here),
        await bench.hand_made("everywhere", allNodes=True, pool={**same, "name": "everywhere"}),
        await bench.hand_made("other-driver", driver=f"other.{bench.driver}"),
    ]
    leaving = [await bench.hand_made("other-pool"), await bench.hand_made("same-pool", pool=same)]
    for name in leaving:
        await becomes(partial(bench.exists, name), False)
    assert [name for name in staying if not await bench.exists(name)] == []
    assert await bench.contents() == bench.layout(partitions=2)
    for name in staying:
        await bench.client.delete(RESOURCE_SLICES, name)


async def test_a_foreign_slice_that_was_there_first_goes_too(bench: Bench) -> None:
    foreign = await bench.hand_made("first")
    await bench.start()
    await becomes(bench.contents, bench.layout())
    await becomes(lambda: bench.exists(foreign), False)


async def test_a_deleted_slice_comes_back_under_a_new_generation(bench: Bench) -> None:
    await bench.start(partitions=2)
    await becomes(bench.pool, [(1, 2, 8), (1, 2, 24)])
    await bench.client.delete(RESOURCE_SLICES, (await bench.slices())[1]["metadata"]["name"])
    await becomes(bench.pool, [(1, 2, 8)])
    await becomes(bench.pool, [(2, 2, 8), (2, 2, 24)])


async def test_an_edited_slice_is_restored(bench: Bench) -> None:
    await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    edited = (await bench.slices())[1]
    edited["spec"]["devices"] = edited["spec"]["devices"][:3]
    await bench.client.replace(RESOURCE_SLICES, edited)
    assert await bench.pool() == [(1, 2, 8), (1, 2, 3)]
    await becomes(bench.contents, bench.layout(partitions=2))
    assert await bench.pool() == [(1, 2, 8), (1, 2, 24)]


async def test_a_pool_deleted_as_a_whole_begins_again_at_generation_one(bench: Bench) -> None:
    pod = await bench.start()
    await becomes(bench.pool, [(1, 1, 8)])
    await bench.restart(pod, partitions=2)
    await becomes(bench.pool, [(2, 2, 8), (2, 2, 24)])
    await bench.client.delete_all(
        RESOURCE_SLICES, field_selector=f"spec.nodeName={bench.node},spec.driver={bench.driver}"
    )
    await becomes(bench.pool, [(1, 2, 8), (1, 2, 24)])


# ── the kubelet ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_slices_outlive_their_driver_until_the_kubelet_wipes_them(bench: Bench) -> None:
    bench = replace(bench, wipe=2)
    pod = await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    await bench.stop(pod)
    await becomes(bench.pods, [])
    assert await bench.contents() == bench.layout(partitions=2)
    await becomes(bench.slices, [])


async def test_a_new_driver_in_time_calls_the_wipe_off(bench: Bench) -> None:
    bench = replace(bench, wipe=0.5)
    pod = await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    kept = await bench.slices()
    pod = await bench.restart(pod, partitions=2)
    await bench.ready(pod)
    await bench.turns()  # takes longer than the wipe would have waited
    assert await bench.slices() == kept


async def test_a_starting_kubelet_wipes_every_driver_of_its_node_and_the_living_one_comes_back(bench: Bench) -> None:
    await bench.start(partitions=2)
    await becomes(bench.pool, [(1, 2, 8), (1, 2, 24)])
    other = await bench.hand_made("other-driver", driver=f"other.{bench.driver}")
    old = {item["metadata"]["uid"] for item in await bench.slices()}
    await bench.annotate(kubelet_start="once")
    await becomes(lambda: bench.exists(other), False)
    await becomes(bench.contents, bench.layout(partitions=2))
    assert not old & {item["metadata"]["uid"] for item in await bench.slices()}


async def test_a_stopped_kubelet_starts_no_driver_and_wipes_when_it_is_back(bench: Bench, cluster: Cluster) -> None:
    bench = replace(bench, wipe=0.1)
    living = await bench.start(partitions=2)
    await bench.ready(living)
    await becomes(bench.contents, bench.layout(partitions=2))
    await cluster.kubelet_stops(bench.node)
    await becomes(bench.obeyed, "stopped")
    kept = await bench.slices()
    await bench.stop(living)
    late = await bench.start()
    (elsewhere,) = await cluster.nodes(1)
    other = replace(bench, node=elsewhere)
    await other.start()
    await becomes(other.contents, other.layout())
    await other.turns()  # takes longer than the wipe would have waited
    assert await bench.slices() == kept
    assert (await bench.report(late))["phase"] == "Pending"
    await cluster.kubelet_starts(bench.node)
    await bench.ready(late)
    await becomes(bench.pool, [(1, 1, 8)])


async def test_a_rebooted_node_publishes_at_once(bench: Bench, cluster: Cluster) -> None:
    bench = replace(bench, sync=300)
    await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    before = {item["metadata"]["uid"] for item in await bench.slices()}
    await cluster.kubelet_stops(bench.node)
    await becomes(bench.obeyed, "stopped")
    await cluster.kubelet_starts(bench.node, rebooted=True)
    await becomes(bench.obeyed, "")
    await becomes(bench.contents, bench.layout(partitions=2))
    assert not before & {item["metadata"]["uid"] for item in await bench.slices()}


async def test_a_deleted_node_takes_its_slices_along(bench: Bench) -> None:
    await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    await bench.client.delete(NODES, bench.node)
    await becomes(bench.slices, [])


# ── fault switches ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_layout_can_fail_while_the_old_one_works(bench: Bench) -> None:
    await bench.annotate(fault="never-ready@partitions=2")
    pod = await bench.start()
    await bench.ready(pod)
    pod = await bench.restart(pod, partitions=2)
    await becomes(lambda: bench.report(pod), UNREADY)
    pod = await bench.restart(pod)
    await bench.ready(pod)
    await becomes(bench.contents, bench.layout())


async def test_a_fault_taken_away_heals_a_driver_that_runs(bench: Bench) -> None:
    await bench.annotate(fault="never-ready,wrong-layout=parts")
    pod = await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=3))
    await becomes(lambda: bench.report(pod), UNREADY)
    await bench.annotate(fault=None)
    await becomes(bench.contents, bench.layout(partitions=2))
    await bench.ready(pod)


async def test_a_crashing_driver_is_reported_as_by_a_kubelet_and_its_slices_are_wiped(bench: Bench) -> None:
    bench = replace(bench, wipe=1)
    pod = await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    await bench.annotate(fault="crash-loop")
    await becomes(lambda: bench.report(pod), {**UNREADY, "restarts": 1, "waiting": "CrashLoopBackOff"})
    await becomes(bench.slices, [])
    await bench.annotate(fault=None)
    await becomes(bench.contents, bench.layout(partitions=2))
    await becomes(lambda: bench.report(pod), {**READY, "restarts": 1})


async def test_a_slow_driver_is_being_created_for_a_while(bench: Bench) -> None:
    await bench.annotate(fault="slow-start=2")
    pod = await bench.start()
    await becomes(lambda: bench.report(pod), {**UNREADY, "phase": "Pending", "waiting": "ContainerCreating"})
    assert await bench.slices() == []
    await becomes(bench.contents, bench.layout())
    await bench.ready(pod)


async def test_a_driver_that_publishes_nothing_keeps_the_old_pool_and_looks_after_nothing(bench: Bench) -> None:
    pod = await bench.start()
    await becomes(bench.contents, bench.layout())
    await bench.annotate(fault="publishes-nothing@partitions=2")
    pod = await bench.restart(pod, partitions=2)
    await bench.ready(pod)
    assert await bench.contents() == bench.layout()
    await bench.annotate(fault=None)
    await becomes(bench.contents, bench.layout(partitions=2))


async def test_lost_slices_stay_away_until_the_fault_is_taken_away(bench: Bench) -> None:
    await bench.annotate(fault="loses-slices-after=2")
    pod = await bench.start()
    await becomes(bench.contents, bench.layout())
    await becomes(bench.slices, [])
    assert await bench.report(pod) == READY
    await bench.annotate(fault=None)
    await becomes(bench.contents, bench.layout())


async def test_a_driver_that_cannot_read_its_environment_crashes_and_says_why(bench: Bench) -> None:
    pod = await bench.start(NUM_DEVICES="eight")
    await becomes(lambda: bench.report(pod), {**UNREADY, "restarts": 1, "waiting": "CrashLoopBackOff"})
    status = (await bench.client.get(PODS, pod, namespace=bench.namespace))["status"]
    assert "NUM_DEVICES='eight'" in status["containerStatuses"][0]["lastState"]["terminated"]["message"]


# ── with the rest of Kubernetes ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_waiting_pod_is_bound_when_the_layout_that_it_needs_appears(cluster: Cluster) -> None:
    base = await cluster.example_driver()
    (node,) = await cluster.nodes(1, pool=base.pool)
    await cluster.published(8, node=node, driver=base.driver)
    bench = Bench(client=cluster.client, node=node, namespace=base.namespace)
    cel = f"device.attributes['{base.driver}'].?partition.orValue(-1) == 1"
    await cluster.holder("half", namespace=base.namespace, device_class=base.driver, cel=cel)
    container = {"name": "plugin", "env": [{"name": "GPU_PARTITIONS", "value": "2"}]}
    halves = {"spec": {"template": {"spec": {"containers": [container]}}}}
    await cluster.kubectl(
        "patch", "daemonset", base.daemon_set, "-n", base.namespace, "--type=strategic", "-p", json.dumps(halves)
    )
    for pod in await bench.pods():
        await bench.stop(pod["metadata"]["name"])
    await cluster.published(24, node=node, driver=base.driver)
    await cluster.running("half", namespace=base.namespace)


async def test_a_server_that_drops_the_counters_is_not_asked_again_and_again(tmp_path: Path) -> None:
    off = Shape(nodes=0, feature_gates="DRAPartitionableDevices=false")
    async with ControlPlane(tmp_path, shape=off) as running, harness.cluster(running, "off") as cluster:
        (node,) = await cluster.nodes(1)
        bench = Bench(client=cluster.client, node=node, namespace=await cluster.namespace())
        await bench.start(partitions=2)
        devices = [{**each} for each in bench.layout(partitions=2)[1]["devices"]]
        for each in devices:
            del each["consumesCounters"]
        await becomes(bench.contents, [{}, {"devices": devices}])
        before = await bench.slices()
        await bench.turns()
        await bench.turns()
        assert await bench.slices() == before
        assert [item["spec"]["pool"]["generation"] for item in before] == [1, 1]


async def test_a_driver_host_that_died_finds_everything_again_and_writes_nothing_twice(
    bench: Bench, cluster: Cluster
) -> None:
    pod = await bench.start(partitions=2)
    await bench.ready(pod)
    await becomes(bench.contents, bench.layout(partitions=2))
    before = await bench.slices(), await bench.pods()
    await cluster.controlplane.programs["driver-host"].stop()
    await cluster.controlplane.start_again("driver-host")
    await bench.turns()
    assert (await bench.slices(), await bench.pods()) == before


async def test_what_happened_while_no_driver_host_ran_is_made_good(bench: Bench, cluster: Cluster) -> None:
    pod = await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    await cluster.controlplane.programs["driver-host"].stop()
    await bench.restart(pod, partitions=4)
    await bench.annotate(kubelet_start="while nobody looked")
    await bench.client.delete(RESOURCE_SLICES, (await bench.slices())[0]["metadata"]["name"])
    await cluster.controlplane.start_again("driver-host")
    await becomes(bench.obeyed, "while nobody looked")
    await becomes(bench.contents, bench.layout(partitions=4))


async def test_a_driver_that_went_while_no_driver_host_ran_is_wiped_later(bench: Bench, cluster: Cluster) -> None:
    pod = await bench.start(partitions=2)
    await becomes(bench.contents, bench.layout(partitions=2))
    usual = cluster.controlplane.programs["driver-host"]
    await usual.stop()
    await bench.stop(pod)
    await becomes(bench.pods, [])
    impatient = Program("driver-host", [*usual.command, "--wipe-seconds", "1"], log=usual.log, env=python_env())
    await impatient.start()
    try:
        await becomes(bench.slices, [])
    finally:
        await impatient.stop()
        await cluster.controlplane.start_again("driver-host")
    assert impatient.returncode == 0, "SIGTERM is an orderly end"


async def test_a_driver_that_has_nothing_to_do_asks_for_nothing(bench: Bench, cluster: Cluster) -> None:
    pod = await bench.start(partitions=2)
    await bench.ready(pod)
    await becomes(bench.contents, bench.layout(partitions=2))
    (elsewhere,) = await cluster.nodes(1)
    other = replace(bench, node=elsewhere)
    await other.start()
    await becomes(other.contents, other.layout())
    await other.turns()  # by then the first has looked at its own writes for the last time
    quiet = len(cluster.audit(user_agent=USER_AGENT))
    await other.turns()
    requests = cluster.audit(user_agent=USER_AGENT)[quiet:]
    assert any(elsewhere in each["requestURI"] for each in requests)
    assert [each for each in requests if bench.node in each["requestURI"]] == []
