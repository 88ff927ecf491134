"""What people on duty do: pause, resume, retry and freeze by `kubectl gpp`, beside specs, with the rights for that and no others."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tests.e2e import rollout
from tests.e2e.harness import POLICIES, eventually
from tests.e2e.history import Watcher
from tests.e2e.rollout import condition
from tests.e2e.shell import ON_DUTY, account_of, gpp
from tests.e2e.stage import HALVES, halted_in, stage

from gpupartition.kube import CONFIG_MAPS, ROLE_BINDINGS, Client
from gpupartition.names import FREEZE_CONFIG_MAP, GROUP, OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.harness import Cluster

REASON: Final = "storage is being moved"


async def on_duty(cluster: Cluster) -> Path:
    """A kubeconfig of somebody on duty, who may freeze too."""
    account = await account_of(cluster, ON_DUTY)
    binding = {
        "apiVersion": ROLE_BINDINGS.api_version,
        "kind": "RoleBinding",
        "metadata": {"name": f"{cluster.name}-on-duty", "namespace": OPERATOR_NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gpupartition-operate"},
        "subjects": [{"kind": "ServiceAccount", "name": ON_DUTY, "namespace": f"{cluster.name}-{ON_DUTY}"}],
    }
    await cluster.create(ROLE_BINDINGS, binding)
    return account


async def test_a_policy_is_paused_beside_its_spec_and_resumed_by_whoever_is_on_duty(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    moving, other = scene.nodes
    await rollout.operator(cluster)
    me = await on_duty(cluster)
    name = cluster.name
    async with Watcher(cluster) as history:
        await halted_in(scene, moving, "Applying")
        before = (await cluster.client.get(POLICIES, name))["metadata"]["generation"]
        tried = await gpp(cluster, "pause", name, "--dry-run=server", kubeconfig=me)
        assert tried.out.rstrip().endswith("(server dry run)"), tried
        paused = await gpp(cluster, "pause", name, "--reason", REASON, "--until", "2h", kubeconfig=me)
        assert re.match(
            rf"{name}: paused: no further node is taken .*; 1 in flight goes on to the end: {moving} ", paused.out
        )
        await rollout.reaches(cluster, moving, "UpToDate")
        policy = await rollout.said(cluster, name, "Ready", "False", "Paused")
        await rollout.at_rest(cluster)
    assert history.phases(other) == ["Pending"]
    assert history.assignments(other) == [None]
    said = condition(policy, "Ready")["message"]
    account = f"system:serviceaccount:{name}-{ON_DUTY}:{ON_DUTY}"
    assert said.startswith(f"{REASON} (by {account}, until "), said
    assert policy["metadata"]["generation"] == before, "the spec is as it was"
    again = await gpp(cluster, "pause", name, "--reason", REASON, kubeconfig=me)
    assert "is paused already" in again.out
    somebody = await gpp(cluster, "pause", name, "--reason", "another one")
    assert (somebody.code, somebody.out) == (1, "")
    assert somebody.errors.startswith(f"error: {name}: it is paused: {REASON} (by {account}"), somebody
    resumed = await gpp(cluster, "resume", name, kubeconfig=me)
    assert resumed.out.startswith(f"{name}: resumed; it was paused: {REASON}"), resumed
    await rollout.ready(cluster, name)
    await scene.publishes(HALVES)
    assert (await gpp(cluster, "resume", name, "-o", "json", kubeconfig=me)).data["objects"][0]["changed"] is False


async def test_a_policy_that_is_done_stays_ready_while_it_is_paused_and_says_that_it_is(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    await rollout.operator(cluster)
    await scene.want_halves()
    await rollout.ready(cluster, cluster.name)

    async def suspended(reason: str) -> bool:
        body = await rollout.ready(cluster, cluster.name)
        return bool(body["status"].get("suspended", {}).get("reason", "") == reason)

    assert (await gpp(cluster, "pause", cluster.name, "--reason", REASON)).code == 0
    await eventually(lambda: suspended("Paused"))
    told = await gpp(cluster, "status", cluster.name)
    assert "\n  RolloutComplete: the one node is verified\n" in told.out
    assert f"\n  Paused: {REASON} (by " in told.out
    assert (await gpp(cluster, "resume", cluster.name)).code == 0
    await eventually(lambda: suspended(""))


async def test_a_pause_that_is_over_by_itself_needs_nobody(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    await rollout.operator(cluster)
    await scene.want_halves(rollout={"paused": True})
    await rollout.said(cluster, cluster.name, "Ready", "False", "Paused")
    at = datetime.now(UTC) + timedelta(seconds=12)
    assert (await gpp(cluster, "pause", cluster.name, "--until", at.isoformat())).code == 0
    still = await gpp(cluster, "resume", cluster.name, "--dry-run")
    assert (still.code, "still paused by its spec" in still.errors) == (1, True), still
    await scene.want_halves()

    await rollout.ready(cluster, cluster.name)
    assert datetime.now(UTC) >= at.replace(microsecond=0)
    await scene.publishes(HALVES)


async def test_everything_is_frozen_and_unfrozen_by_whoever_is_on_duty(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    program = await rollout.operator(cluster)
    me = await on_duty(cluster)
    reason, shown = f"{REASON}\x1b[2J\n2026-01-01 forged", f"{REASON}\\x1b[2J 2026-01-01 forged"
    try:
        frozen = await gpp(cluster, "freeze", "--reason", reason, kubeconfig=me)
        assert frozen.out.startswith(f"{OPERATOR_NAMESPACE}: everything is frozen: nothing is begun"), frozen
        await scene.want_halves()
        policy = await rollout.said(cluster, cluster.name, "Ready", "False", "Frozen")
        assert f"{reason} (by system:serviceaccount:" in condition(policy, "Ready")["message"]
        await eventually(lambda: shown in program.log.read_text())
        log = program.log.read_text()
        assert "\x1b" not in log
        assert not [each for each in log.splitlines() if each.startswith("2026-01-01 forged")]
        assert "frozen already" in (await gpp(cluster, "freeze", kubeconfig=me)).out
        refused = await gpp(cluster, "freeze", "--reason", "another one")
        assert "--overwrite replaces that" in refused.errors, refused
        for tried in ("client", "server"):
            assert "unfrozen" in (await gpp(cluster, "unfreeze", f"--dry-run={tried}", kubeconfig=me)).out
        await cluster.client.get(CONFIG_MAPS, FREEZE_CONFIG_MAP, namespace=OPERATOR_NAMESPACE)
        thawed = await gpp(cluster, "unfreeze", kubeconfig=me)
        assert thawed.out.startswith(f"{OPERATOR_NAMESPACE}: unfrozen; it was frozen: {shown}"), thawed
        assert "nothing is frozen" in (await gpp(cluster, "unfreeze", kubeconfig=me)).out
    finally:
        await gpp(cluster, "unfreeze")
    await rollout.ready(cluster, cluster.name)


async def test_one_node_is_tried_again_and_the_other_is_left_as_it_is(cluster: Cluster) -> None:
    scene = await stage(cluster, 2)
    await rollout.operator(cluster, verifying=1)
    me = await on_duty(cluster)
    for node in scene.nodes:
        await rollout.fault(cluster, node, "wrong-layout@partitions=2")
    await scene.want_halves(rollout={"maxUnavailable": 2, "maxFailed": 2})
    for node in scene.nodes:
        await rollout.reaches(cluster, node, "RolledBack")
    one, other = scene.nodes
    for node in scene.nodes:
        await rollout.fault(cluster, node, None)
    async with Watcher(cluster) as history:
        asked = await gpp(cluster, "retry", one, "--reason", "mended, at last", kubeconfig=me)
        assert asked.out.startswith(f"{one}: asked to try again: {one} ("), asked
        await rollout.reaches(cluster, one, "UpToDate")
        await rollout.at_rest(cluster)
    assert set(history.phases(other)) <= {"RolledBack"}
    await rollout.reaches(cluster, other, "RolledBack")
    nothing = await gpp(cluster, "retry", one, kubeconfig=me)
    assert nothing.out == f"{one}: it is UpToDate: nothing is to be tried again\n"
    assert (await gpp(cluster, "retry", cluster.name, kubeconfig=me)).out.startswith(
        f"{cluster.name}: asked to try again"
    )
    await rollout.ready(cluster, cluster.name)
    assert (await gpp(cluster, "retry", "nowhere")).errors.startswith(
        "error: there is neither a GpuPartitionPolicy nor a node"
    )


async def test_who_may_pause_may_not_write_specs(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    await scene.want_halves()
    async with Client.connect(await on_duty(cluster), user_agent="on duty") as client:

        async def refusal(patch: Any) -> str:
            try:
                await client.patch(POLICIES, cluster.name, patch, dry_run=True)
            except Exception as error:  # noqa: BLE001  whatever it is, it is compared
                return str(error)
            return ""

        async def bounded() -> bool:
            return "not change their specs" in await refusal({"spec": {"rollout": {"paused": True}}})

        await eventually(bounded)  # an admission policy is in force a moment after it was applied
        for beyond in (
            {"labels": {"team": "ml"}},
            {"annotations": {"example.com/mine": "1"}},
            {"finalizers": [f"{GROUP}/in-flight"]},
        ):
            assert "of a policy" in await refusal({"metadata": beyond}), beyond
        assert await refusal({"metadata": {"annotations": {f"{GROUP}/paused": "true"}}}) == ""


async def test_two_people_who_pause_at_once_do_not_overwrite_each_other_unseen(cluster: Cluster) -> None:
    scene = await stage(cluster, 1)
    await scene.want_halves()
    me = await on_duty(cluster)
    answers = await asyncio.gather(
        gpp(cluster, "pause", cluster.name, "--reason", "mine", kubeconfig=me),
        gpp(cluster, "pause", cluster.name, "--reason", "yours"),
    )
    assert sorted(each.code for each in answers) == [0, 1]
    (loser,) = [each for each in answers if each.code]
    notes = (await cluster.client.get(POLICIES, cluster.name))["metadata"]["annotations"]
    assert f"it is paused: {notes[f'{GROUP}/paused-reason']} (by {notes[f'{GROUP}/paused-by']})" in loser.errors
