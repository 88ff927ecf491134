"""Drain mode Evict, against the real Eviction API and real disruption budgets: who goes, who is waited for, and who is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.e2e.deployments import DEPLOYMENTS, PDBS, budget, running, web
from tests.e2e.harness import NODE_STATES, POLICIES, Cluster, eventually
from tests.e2e.history import Watcher
from tests.e2e.publishing import gpus
from tests.e2e.publishing import site as publishing_site
from tests.e2e.rollout import (
    Site,
    apply,
    at_rest,
    equal,
    freeze,
    granting,
    operator,
    policy,
    reaches,
    ready,
    said,
    site,
    stalled,
    unfreeze,
    whole,
)
from tests.e2e.stage import OPERATOR

from gpupartition.kube import (
    DAEMON_SETS,
    EVENTS,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Client,
    Forbidden,
    NotFound,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from gpupartition.kube import Object

POLICY: Final = "evicting"
PEACE: Final = "gpupartition.dev/do-not-disrupt"


@pytest.fixture
async def may_evict(cluster: Cluster) -> AsyncIterator[None]:
    """What evictions need beside the usual rights."""
    async with granting(cluster, "evict", "force-delete"):
        yield


async def want(cluster: Cluster, where: Site, *, rollout: Mapping[str, Any] | None = None, **drain: Any) -> None:
    """Want halves, by evictions."""
    own = {"drain": {"mode": "Evict", **drain}, **(rollout or {})}
    await apply(cluster, policy(POLICY, where.driver, equal(2), rollout=own))


async def blocked(cluster: Cluster, reason: str, **fields: str) -> Object:
    """Wait until the policy names a blocker like that; returns it."""

    async def look() -> Object:
        body = await cluster.client.get(POLICIES, POLICY)
        found = body["status"].get("blockedBy", [])
        fits = [b for b in found if b["reason"] == reason and all(b.get(k) == v for k, v in fields.items())]
        assert fits, found
        return dict(fits[0])

    return await eventually(look)


def evictions(cluster: Cluster) -> list[dict[str, Any]]:
    """What the operator has asked of the Eviction API, refused or not."""
    return [e for e in cluster.audit(user=OPERATOR) if e.get("objectRef", {}).get("subresource") == "eviction"]


def deleted(cluster: Cluster, where: Site) -> list[str]:
    """Pods of users that the operator deleted directly."""
    asked = [e["objectRef"] for e in cluster.audit(user=OPERATOR) if e["verb"] == "delete" and "objectRef" in e]
    return [each["name"] for each in asked if each["resource"] == "pods" and each.get("namespace") == where.user]


async def is_there(cluster: Cluster, where: Site, pod: Object) -> bool:
    """Whether this very pod lives on, untouched."""
    try:
        now = await cluster.client.get(PODS, pod["metadata"]["name"], namespace=where.user)
    except NotFound:
        return False
    return now["metadata"]["uid"] == pod["metadata"]["uid"] and "deletionTimestamp" not in now["metadata"]


# ─── who goes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("may_evict")
async def test_pods_are_evicted_told_why_and_run_again_elsewhere(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    await web(cluster, where, replicas=2)
    before = await running(cluster, where, replicas=2)
    assert {p["spec"]["nodeName"] for p in before} == set(where.nodes)
    await operator(cluster)
    async with Watcher(cluster) as history:
        await want(cluster, where)
        await ready(cluster, POLICY)
        await eventually(lambda: running(cluster, where, replicas=2))
        await at_rest(cluster)
    assert history.most_unavailable(*where.nodes) == 1
    first = before[0]["metadata"]
    asked = [e for e in evictions(cluster) if e["responseStatus"]["code"] in {200, 201}]
    assert {p["metadata"]["name"] for p in before} <= {e["objectRef"]["name"] for e in asked}
    assert deleted(cluster, where) == []
    told = (await cluster.client.list(EVENTS, namespace=where.user)).items
    (event,) = [e for e in told if e["reason"] == "GpuEviction" and e["involvedObject"]["uid"] == first["uid"]]
    assert f"policy {POLICY} repartitions node" in event["message"]


@pytest.mark.usefixtures("may_evict")
async def test_nodes_without_holders_go_first_and_nobody_is_touched_on_nodes_that_are_not_changed(
    cluster: Cluster,
) -> None:
    where = await site(cluster, 3)
    held, other = where.nodes[0], where.nodes[2]
    await web(cluster, where, node=held)
    await web(cluster, where, name="other", node=other)
    (mine,), (theirs,) = await running(cluster, where), await running(cluster, where, "other")
    await operator(cluster)
    async with Watcher(cluster) as history:
        await want(cluster, where, rollout={"limit": 2})
        await ready(cluster, POLICY, "LimitReached")
    entered = [n for now in history.instants() if now.change for n, p in now.phases().items() if p == "Admitted"]
    assert list(dict.fromkeys(entered)) == [where.nodes[1], held]
    assert not await is_there(cluster, where, mine)
    assert await is_there(cluster, where, theirs)
    assert {e["objectRef"]["name"] for e in evictions(cluster)} == {mine["metadata"]["name"]}


@pytest.mark.usefixtures("may_evict")
async def test_both_pods_of_a_shared_claim_go(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    claim = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": "shared", "namespace": where.user},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": where.base.driver}}]}},
    }
    await cluster.client.create(RESOURCE_CLAIMS, claim)
    await web(cluster, where, replicas=2, claim="shared")
    before = await running(cluster, where, replicas=2)
    await operator(cluster)
    # A pod that comes back while the other still has the claim would hold on to this node: the claim stays allocated.
    await cluster.client.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}, namespace=where.user)
    await want(cluster, where)
    await eventually(lambda: {e["objectRef"]["name"] for e in evictions(cluster)} >= names_of(before))
    await cluster.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 0}}, namespace=where.user)
    await ready(cluster, POLICY)


def names_of(pods: list[Object]) -> set[str]:
    return {p["metadata"]["name"] for p in pods}


@pytest.mark.usefixtures("may_evict")
async def test_a_pod_whose_device_stays_the_same_is_left_alone(cluster: Cluster) -> None:
    where = await publishing_site(cluster, gpus(2), live=False)
    rest = whole()
    await where.gets(rest)
    users = where.users()
    for name in ("stays", "goes"):
        await users.ask(name)
    kept, taken = await users.device("stays"), await users.device("goes")
    (index,) = {int(number) for number in re.findall(r"[0-9]+", taken)}
    cut = {**equal(2), "equal": {"parts": 2, "offerWhole": False}, "match": {"indexes": [index]}}
    await where.gets(cut, rest, drain={"mode": "Evict", "force": True})
    assert {e["objectRef"]["name"] for e in evictions(cluster)} == {"goes"}
    assert await users.device("stays") == kept


@pytest.mark.usefixtures("may_evict")
@pytest.mark.newest  # onto a cordoned node the pods of a DaemonSet come back at once
async def test_a_daemon_set_that_only_looks_on_keeps_no_node_and_is_evicted_as_the_last(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await cluster.client.patch(NAMESPACES, where.user, label)
    exactly = {"deviceClassName": where.base.driver, "adminAccess": True}
    template = {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "monitor", "namespace": where.user},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, template)
    body = {
        "apiVersion": DAEMON_SETS.api_version,
        "kind": "DaemonSet",
        "metadata": {"name": "monitor", "namespace": where.user},
        "spec": {
            "selector": {"matchLabels": {"app": "monitor"}},
            "template": {
                "metadata": {"labels": {"app": "monitor"}},
                "spec": {
                    "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
                    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "monitor"}],
                    "nodeSelector": {"pool": where.base.pool},
                },
            },
        },
    }
    await cluster.create(DAEMON_SETS, body)
    (looker,) = await eventually(lambda: running(cluster, where, "monitor"))
    await web(cluster, where)
    (pod,) = await running(cluster, where)
    await operator(cluster)
    async with Watcher(cluster) as history:
        await want(cluster, where)
        await ready(cluster, POLICY)
    order = [e["objectRef"]["name"] for e in evictions(cluster) if e["responseStatus"]["code"] in {200, 201}]
    assert order[0] == pod["metadata"]["name"]
    assert order[-1] == looker["metadata"]["name"]
    entered = next(c.version for c in history.changes(NODE_STATES) if c.body["status"]["phase"] == "Applying")
    ended = next(
        c.version
        for c in history.changes(PODS, looker["metadata"]["name"])
        if c.what == "DELETED" or "deletionTimestamp" in c.body["metadata"]
    )
    assert entered < ended
    (again,) = await eventually(lambda: running(cluster, where, "monitor"))
    assert again["metadata"]["uid"] != looker["metadata"]["uid"]


# ─── who is waited for ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("may_evict")
async def test_a_disruption_budget_holds_is_named_and_lets_the_roll_out_go_on_when_it_allows_it(
    cluster: Cluster,
) -> None:
    where = await site(cluster, 1)
    await web(cluster, where)
    (pod,) = await running(cluster, where)
    await budget(cluster, where, "always-one")
    await operator(cluster)
    await want(cluster, where)
    name = f"{where.user}/{pod['metadata']['name']}"
    await blocked(cluster, "EvictionBlocked", pod=name, pdb=f"{where.user}/always-one", node=where.nodes[0])
    body = await said(cluster, POLICY, "Ready", "False", "EvictionBlocked")
    message = next(c["message"] for c in body["status"]["conditions"] if c["type"] == "Ready")
    assert f"pod {name} (EvictionBlocked by PodDisruptionBudget {where.user}/always-one)" in message
    assert {e["responseStatus"]["code"] for e in evictions(cluster)} == {429}
    assert await is_there(cluster, where, pod)
    await cluster.client.delete(PDBS, "always-one", namespace=where.user)
    await ready(cluster, POLICY, within=90)
    assert not await is_there(cluster, where, pod)


@pytest.mark.usefixtures("may_evict")
async def test_two_budgets_about_one_pod_are_both_named(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await web(cluster, where)
    for name in ("one", "two"):
        await budget(cluster, where, name)
    await operator(cluster)
    await want(cluster, where)
    await blocked(cluster, "EvictionBlocked", pdb=f"{where.user}/one, {where.user}/two")
    assert {e["responseStatus"]["code"] for e in evictions(cluster)} == {500}


SPARED: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "whoever asks for peace": ("DoNotDisrupt", {"annotations": {PEACE: "true"}}, {}),
    "whoever has to complete": (
        "WaitForCompletion",
        {"labels": {"kind": "training"}},
        {"waitForCompletion": {"matchLabels": {"kind": "training"}}},
    ),
    "whoever has scratch space": ("EmptyDir", {"volumes": [{"name": "scratch", "emptyDir": {}}]}, {}),
}


@pytest.mark.usefixtures("may_evict")
@pytest.mark.parametrize("who", SPARED)
async def test_waited_for_and_named_is(cluster: Cluster, who: str) -> None:
    reason, more, drain = SPARED[who]
    where = await site(cluster, 1)
    await web(cluster, where, **more)
    (pod,) = await running(cluster, where)
    await operator(cluster)
    await want(cluster, where, **drain)
    await blocked(cluster, reason, pod=f"{where.user}/{pod['metadata']['name']}")
    assert await is_there(cluster, where, pod)
    assert evictions(cluster) == []
    await cluster.client.delete(DEPLOYMENTS, "web", namespace=where.user)
    await ready(cluster, POLICY)


@pytest.mark.usefixtures("may_evict")
async def test_a_pod_that_nobody_would_make_anew_goes_only_by_force(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await cluster.holder("bare", namespace=where.user, node=where.nodes[0], device_class=where.base.driver)
    pod = await cluster.running("bare", namespace=where.user)
    await operator(cluster)
    await want(cluster, where)
    await blocked(cluster, "NoController", pod=f"{where.user}/bare")
    assert await is_there(cluster, where, pod)
    await want(cluster, where, force=True)
    await ready(cluster, POLICY)
    await cluster.gone(PODS, "bare", namespace=where.user)
    assert len(evictions(cluster)) == 1


# ─── when time is over, and when somebody says stop ───────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("may_evict")
async def test_a_node_that_cannot_be_drained_in_time_is_opened_again_and_halts_the_others_where_that_is_asked_for(
    cluster: Cluster,
) -> None:
    where = await site(cluster, 2)
    for number, node in enumerate(where.nodes):
        await web(cluster, where, name=f"web-{number}", node=node)
        await budget(cluster, where, f"keeps-{number}", app=f"web-{number}")
    await operator(cluster)
    async with Watcher(cluster) as history:
        await want(cluster, where, timeoutSeconds=1, onTimeout="Halt")
        body = await stalled(cluster, POLICY, "RolloutHalted")
        await at_rest(cluster)
    (failed,) = body["status"]["failedNodes"]
    assert (failed["node"], failed["reason"]) == (where.nodes[0], "DrainingFailed")
    assert f"EvictionBlocked by PodDisruptionBudget {where.user}/keeps-0" in failed["message"]
    assert history.phases(where.nodes[0])[-2:] == ["Aborting", "RolledBack"]
    assert history.phases(where.nodes[1]) == ["Pending"]
    assert history.assignments(where.nodes[0]) == [None]


@pytest.mark.usefixtures("may_evict")
async def test_a_node_that_cannot_be_drained_in_time_is_tried_again_after_the_others(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    await web(cluster, where, node=where.nodes[0])
    await web(cluster, where, name="free", node=where.nodes[1])
    await budget(cluster, where, "keeps")
    await operator(cluster)
    async with Watcher(cluster) as history:
        await want(cluster, where, timeoutSeconds=1)
        await reaches(cluster, where.nodes[1], "UpToDate")
        await eventually(lambda: history.phases(where.nodes[0]).count("Aborting") >= 2)
    assert "Applying" not in history.phases(where.nodes[0])


@pytest.mark.usefixtures("may_evict")
async def test_a_pod_that_a_budget_keeps_is_deleted_in_the_end_where_that_is_asked_for(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await web(cluster, where)
    (pod,) = await running(cluster, where)
    await budget(cluster, where, "keeps")
    await operator(cluster)
    await want(cluster, where, timeoutSeconds=2, onTimeout="ForceDelete")
    await ready(cluster, POLICY)
    assert {e["responseStatus"]["code"] for e in evictions(cluster)} == {429}
    assert deleted(cluster, where) == [pod["metadata"]["name"]]


@pytest.mark.usefixtures("may_evict")
@pytest.mark.parametrize("how", ["Paused", "Frozen"])
async def test_nobody_is_evicted_any_more_when_somebody_says_stop(cluster: Cluster, how: str) -> None:
    where = await site(cluster, 1)
    await cluster.holder(
        "bare", namespace=where.user, node=where.nodes[0], device_class=where.base.driver, annotations={PEACE: "true"}
    )
    pod = await cluster.running("bare", namespace=where.user)
    await operator(cluster)
    await want(cluster, where, force=True)
    await blocked(cluster, "DoNotDisrupt")
    if how == "Paused":
        await want(cluster, where, rollout={"paused": True}, force=True)
    else:
        await freeze(cluster, "a test")
    await said(cluster, POLICY, "Ready", "False", how)
    await cluster.client.patch(PODS, "bare", {"metadata": {"annotations": {PEACE: None}}}, namespace=where.user)
    await blocked(cluster, "Allocated", pod=f"{where.user}/bare")  # it was looked at, and left alone
    assert await is_there(cluster, where, pod)
    assert evictions(cluster) == []
    if how == "Paused":
        await want(cluster, where, force=True)
    else:
        await unfreeze(cluster)
    await ready(cluster, POLICY)
    assert not await is_there(cluster, where, pod)


# ─── rights ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("may_evict")
async def test_whatever_goes_wrong_the_api_server_lets_the_operator_evict_nobody_in_kube_system(
    cluster: Cluster,
) -> None:
    await cluster.controlplane.install_operator()
    plain = {"containers": [{"name": "main", "image": "busybox"}], "nodeSelector": {"nowhere": "true"}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dns", "namespace": "kube-system"}, "spec": plain}
    pod = await cluster.create(PODS, body)
    eviction: Object = {"apiVersion": "policy/v1", "kind": "Eviction"}
    eviction["metadata"] = {"name": "dns", "namespace": "kube-system"}
    eviction["deleteOptions"] = {"preconditions": {"uid": pod["metadata"]["uid"]}}
    async with Client.connect(cluster.controlplane.files.kubeconfig("operator")) as client:

        async def refused() -> bool:
            try:
                await client.raw("POST", PODS.path("kube-system", "dns", "eviction"), body=eviction)
            except Forbidden as error:
                return "may not evict pods of kube-system" in error.message
            return False

        await eventually(refused)
        with pytest.raises(Forbidden, match="may not delete pods of kube-system"):
            await client.delete(PODS, "dns", namespace="kube-system", uid=pod["metadata"]["uid"])


async def test_without_the_rights_nothing_is_touched_and_the_policy_says_what_is_missing(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await operator(cluster)
    await want(cluster, where)
    body = await said(cluster, POLICY, "Accepted", "False", "EvictionForbidden")
    message = next(c["message"] for c in body["status"]["conditions"] if c["type"] == "Accepted")
    assert "may not create pods/eviction or list poddisruptionbudgets" in message
    assert "add manifests/components/evict" in message
    async with granting(cluster, "evict"):
        await ready(cluster, POLICY, within=60)
