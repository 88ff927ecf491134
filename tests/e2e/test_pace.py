"""Pace and failure on a real control plane: how many failures are too many, what becomes of the failed node, pauses and windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e import rollout
from tests.e2e.harness import NODE_STATES, POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.rollout import condition
from tests.e2e.stage import HALVES, WHOLE, stage

from gpupartition.kube import NODES

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster
    from tests.e2e.stage import Stage

    from gpupartition.kube import Object

BREAKS_HALVES = "wrong-layout@partitions=2"
NEVER_COMES_BACK = "never-ready@partitions=2,publishes-nothing@partitions=0,never-ready"


def window(*, is_open: bool) -> Object:
    """A window of UTC around the present hour, or far from it."""
    now = datetime.now(UTC)
    start, end = now + timedelta(hours=-2 if is_open else 10), now + timedelta(hours=4 if is_open else 14)
    return {"start": f"{start:%H:00}", "end": f"{end:%H:00}", "timeZone": "UTC"}


async def in_order(cluster: Cluster, scene: Stage) -> list[str]:
    """The nodes in the order in which they are taken: zone by zone, by name."""
    bodies = [await cluster.client.get(NODES, node) for node in scene.nodes]
    zones = {each["metadata"]["name"]: each["metadata"]["labels"]["topology.kubernetes.io/zone"] for each in bodies}
    return sorted(scene.nodes, key=lambda node: (zones[node], node))


def never_ready_with_a_failure(history: Watcher) -> None:
    """At no instant does a policy say Ready while it counts a failed node."""
    for change in history.changes(POLICIES):
        failed = change.body.get("status", {}).get("nodes", {}).get("failed", 0)
        assert not (failed and condition(change.body, "Ready").get("status") == "True"), change.body["status"]


async def test_as_many_nodes_as_allowed_may_fail_and_one_more_halts_the_roll_out(cluster: Cluster) -> None:
    scene = await stage(cluster, 4)
    one, two, three, four = await in_order(cluster, scene)
    for node in (one, two):
        await rollout.fault(cluster, node, BREAKS_HALVES)
    await rollout.operator(cluster, applying=3, verifying=2)
    async with Watcher(cluster) as history:
        name = await scene.want_halves(rollout={"maxFailed": 1})
        policy = await rollout.stalled(cluster, name, "RolledBack")
    assert [failed["node"] for failed in policy["status"]["failedNodes"]] == [one, two]
    for node in (three, four):
        assert history.assignments(node) == [None]
    reconciling = [
        condition(change.body, "Ready")["message"]
        for change in history.changes(POLICIES)
        if condition(change.body, "Reconciling")
    ]
    assert any(f"1 failed: {one}" in message for message in reconciling), reconciling

    await scene.want_halves(rollout={"maxFailed": 2})
    await scene.publishes(HALVES, three, four)
    policy = await rollout.stalled(cluster, name, "RolledBack")
    assert policy["status"]["progress"] == "2/4"
    await rollout.at_rest(cluster)
    never_ready_with_a_failure(history)


async def test_with_halt_a_failed_node_is_left_as_it_is_closed_until_somebody_asks(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    failing, other = sorted(scene.nodes)
    await rollout.fault(cluster, failing, BREAKS_HALVES)
    await rollout.operator(cluster, applying=3, verifying=2)
    async with Watcher(cluster) as history:
        name = await scene.want_halves(rollout={"onFailure": "Halt"})
        await rollout.stalled(cluster, name, "RolloutHalted")
        record = await rollout.reaches(cluster, failing, "Failed")
    assert record["status"]["reason"] == "VerifyingFailed"
    assert "1 of 24 devices are missing" in record["status"]["message"]
    assert "RollingBack" not in history.phases(failing)
    assert await scene.layout(failing) == record["status"]["target"]["assignment"]
    assert await scene.closed_by(failing)
    assert await scene.in_flight() == [failing]
    assert history.assignments(other) == [None]

    await rollout.fault(cluster, failing, None)
    await rollout.annotate(cluster, POLICIES, name, retry="mended")
    await rollout.ready(cluster, name)
    await scene.publishes(HALVES)
    await rollout.at_rest(cluster)


async def test_with_halt_another_layout_leads_on(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.fault(cluster, node, BREAKS_HALVES)
    await rollout.operator(cluster, verifying=2)
    name = await scene.want_halves(rollout={"onFailure": "Halt"})
    await rollout.stalled(cluster, name, "RolloutHalted")
    await rollout.apply(cluster, rollout.policy(name, scene.driver, rollout.equal(4), rollout={"onFailure": "Halt"}))
    await rollout.ready(cluster, name)
    await rollout.at_rest(cluster)


@pytest.mark.parametrize("answer", ["Continue", "RollBack"])
async def test_only_with_continue_others_go_on_beside_a_node_that_cannot_even_be_rolled_back(
    cluster: Cluster, answer: str
) -> None:
    scene = await stage(cluster, 3)
    failing, *others = sorted(scene.nodes)
    await rollout.fault(cluster, failing, NEVER_COMES_BACK)
    await rollout.operator(cluster, applying=1.5, verifying=1.5)
    async with Watcher(cluster) as history:
        name = await scene.want_halves(rollout={"onFailure": answer, "maxFailed": 1})
        await rollout.reaches(cluster, failing, "Failed")
        policy = await rollout.stalled(cluster, name, "RolloutHalted", within=60)
    never_ready_with_a_failure(history)
    assert failing in condition(policy, "Stalled")["message"]
    if answer == "Continue":
        await scene.publishes(HALVES, *others)
        assert policy["status"]["progress"] == "2/3"
    else:
        await scene.publishes(WHOLE, *others)
        assert all(history.assignments(node) == [None] for node in others)
    assert await scene.in_flight() == [failing]


async def test_between_two_nodes_there_is_a_pause_and_it_ends_by_itself(cluster: Cluster) -> None:
    scene = await stage(cluster, 3)
    await rollout.operator(cluster, resync=600)
    pause = 3
    async with Watcher(cluster) as history:
        name = await scene.want_halves(rollout={"pauseBetweenSeconds": pause})
        await rollout.ready(cluster, name)
    entered: dict[str, list[datetime]] = {"Admitted": [], "UpToDate": []}
    for change in history.changes(NODE_STATES):
        status: dict[str, Any] = change.body.get("status", {})
        if status.get("phase") in entered:
            entered[status["phase"]].append(datetime.fromisoformat(status["since"]))
    begun, done = (sorted(set(entered[phase])) for phase in ("Admitted", "UpToDate"))
    assert len(begun) == len(done) == 3
    for released, next_begun in zip(done, begun[1:], strict=False):
        assert timedelta(seconds=pause) <= next_begun - released < timedelta(seconds=pause + 10)


async def test_nodes_that_have_the_layout_already_are_adopted_without_a_pause(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    await rollout.operator(cluster)
    await rollout.apply(
        cluster,
        rollout.policy(cluster.name, scene.driver, rollout.whole(), rollout={"pauseBetweenSeconds": 86400}),
    )
    await rollout.ready(cluster, cluster.name)
    await scene.want_halves(rollout={"pauseBetweenSeconds": 86400})

    async def one_is_done() -> bool:
        return sorted((await rollout.phases(cluster)).values()) == ["Pending", "UpToDate"]

    await eventually(one_is_done)
    policy = await rollout.said(cluster, cluster.name, "Ready", "False", "RollingOut")
    assert condition(policy, "Reconciling")


async def test_nobody_begins_while_no_window_is_open_and_an_edit_opens_it(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    program = await rollout.operator(cluster, resync=0.3)
    closed, opened = window(is_open=False), window(is_open=True)
    async with Watcher(cluster) as history:
        name = await scene.want_halves(rollout={"windows": [closed]})
        policy = await rollout.said(cluster, name, "Ready", "False", "OutsideWindow")
        assert f"{closed['start']} UTC" in condition(policy, "Ready")["message"]
        assert condition(policy, "Reconciling")["status"] == "True"
        await rollout.looks_again(program)
        assert all(history.phases(node) == ["Pending"] for node in scene.nodes)
        assert not history.most_unavailable()
    await scene.want_halves(rollout={"windows": [closed, opened]})
    await rollout.ready(cluster, name)
    await scene.publishes(HALVES)


async def test_a_window_opens_by_itself_and_not_a_moment_too_early(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster, resync=3600)
    opens = (datetime.now(UTC) + timedelta(seconds=70)).replace(second=0, microsecond=0)  # within 10 to 70 s
    closes = opens + timedelta(hours=4)
    name = await scene.want_halves(rollout={"windows": [{"start": f"{opens:%H:%M}", "end": f"{closes:%H:%M}"}]})
    policy = await rollout.said(cluster, name, "Ready", "False", "OutsideWindow")
    assert f"{opens:%a %Y-%m-%d %H:%M} UTC" in condition(policy, "Ready")["message"]
    async with Watcher(cluster, NODE_STATES) as history:
        admitted = await history.saw(NODE_STATES, node, phase="Admitted", within=90)
        await rollout.ready(cluster, name)
    since = datetime.fromisoformat(admitted.body["status"]["since"])
    assert opens <= since < opens + timedelta(seconds=10)


async def test_a_node_in_flight_is_finished_when_the_window_closes_and_no_other_begins(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    await rollout.operator(cluster, min_ready=3)
    async with Watcher(cluster) as history:
        name = await scene.want_halves(rollout={"windows": [window(is_open=True)]})
        first = min(scene.nodes)
        await history.saw(NODE_STATES, first, phase="Verifying")
        await scene.want_halves(rollout={"windows": [window(is_open=False)]})
        await rollout.reaches(cluster, first, "UpToDate")
        await rollout.said(cluster, name, "Ready", "False", "OutsideWindow")
        await rollout.at_rest(cluster)
    assert sorted((await rollout.phases(cluster)).values()) == ["Pending", "UpToDate"]


async def test_an_unknown_time_zone_is_refused_with_names_like_it_and_nothing_that_runs_is_disturbed(
    cluster: Cluster,
) -> None:
    scene = await stage(cluster, 2)
    await rollout.operator(cluster, min_ready=3)
    async with Watcher(cluster) as history:
        name = await scene.want_halves()
        first = min(scene.nodes)
        await history.saw(NODE_STATES, first, phase="Verifying")
        nowhere = {"start": "22:00", "end": "06:00", "timeZone": "Europe/Berln"}
        await scene.want_halves(rollout={"windows": [nowhere]})
        policy = await rollout.stalled(cluster, name, "InvalidWindow")
        await rollout.reaches(cluster, first, "UpToDate")
        await rollout.at_rest(cluster)
    refused = condition(policy, "Accepted")
    assert refused["status"] == "False"
    for word in ("spec.rollout.windows[0].timeZone", "'Europe/Berln'", "Europe/Berlin"):
        assert word in refused["message"]
    await scene.want_halves(rollout={"windows": [window(is_open=True)]})
    await rollout.ready(cluster, name)


async def test_a_node_stands_still_as_long_as_its_policy_says(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster, min_ready=0, verifying=1)
    async with Watcher(cluster) as history:
        name = await scene.want_halves(rollout={"minReadySeconds": 3})
        await rollout.ready(cluster, name)
    since = {
        change.body["status"]["phase"]: datetime.fromisoformat(change.body["status"]["since"])
        for change in history.changes(NODE_STATES, node)
        if change.body.get("status", {}).get("since")
    }
    assert since["Releasing"] - since["Verifying"] >= timedelta(seconds=3)


async def test_a_driver_that_takes_its_time_is_said_to_and_what_is_waited_for(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    (node,) = scene.nodes
    await rollout.operator(cluster, telling=1)
    await rollout.fault(cluster, node, "never-ready@partitions=2")
    name = await scene.want_halves(rollout={"progressDeadlineSeconds": 2})

    async def names_it() -> bool:
        stalled = condition(await cluster.client.get(POLICIES, name), "Stalled")
        return f"node {node} is Applying: its driver pod is not ready" in stalled.get("message", "")

    await eventually(names_it)
    await rollout.fault(cluster, node, None)
    await rollout.ready(cluster, name)


async def test_after_the_progress_deadline_it_says_who_is_waited_for_and_goes_on_trying(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    held, _ = sorted(scene.nodes)
    holder = await scene.hold(held)
    await rollout.operator(cluster, resync=600)
    name = await scene.want_halves(rollout={"progressDeadlineSeconds": 4})
    policy = await rollout.stalled(cluster, name, "ProgressDeadlineExceeded")
    assert policy["status"]["progress"] == "1/2"
    message = condition(policy, "Stalled")["message"]
    for word in (held, holder.claim, holder.pod):
        assert word in message
    assert condition(policy, "Ready")["reason"] == "ProgressDeadlineExceeded"
    assert not condition(policy, "Reconciling")
    await holder.end()
    await rollout.ready(cluster, name)
