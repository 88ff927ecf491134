"""What GitOps tools and people read from a policy: never done before it is so, and never broken without the reason and the fix."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from tests.e2e.harness import DRIVERS, NODE_STATES, POLICIES, eventually, taint_rules
from tests.e2e.history import Watcher
from tests.e2e.rollout import (
    apply,
    at_rest,
    condition,
    devices,
    driver,
    driver_of,
    equal,
    grant_namespace,
    looks_again,
    operator,
    phases,
    policy,
    reaches,
    ready,
    said,
    says,
    site,
    stalled,
    whole,
    writes,
)

from gpupartition.kube import (
    DAEMON_SETS,
    DEVICE_TAINT_RULES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from gpupartition.names import LAYOUT

if TYPE_CHECKING:
    from tests.e2e.harness import BaseDriver, Cluster
    from tests.e2e.history import Instant
    from tests.e2e.rollout import Site

    from gpupartition.kube import Object

THINGS: Final = (NODES, PODS, RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_TAINT_RULES, DAEMON_SETS, NODE_STATES)
"""Everything that a refused policy has to leave alone."""


# ── done means done ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_kubectl_waits_for_a_policy_until_every_node_has_its_layout(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    await cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(policy("waited", where.driver, equal(2))))
    fresh = await cluster.client.get(POLICIES, "waited")
    assert fresh["status"] == {"observedGeneration": -1}, "nobody has spoken yet"
    await operator(cluster)
    await cluster.kubectl("wait", "--for=condition=Ready", "gpp/waited", "--timeout=60s")
    assert await slices_in_parts(cluster, where) == {2}
    await cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(policy("waited", where.driver, equal(4))))
    await cluster.kubectl("wait", "--for=condition=Ready", "gpp/waited", "--timeout=60s")
    assert await slices_in_parts(cluster, where) == {4}
    row = (await cluster.kubectl("get", "gpp", "waited", "--no-headers")).split()
    assert row[:1] == ["waited"]
    assert {"True", "RolloutComplete", "2/2"} <= set(row)


async def slices_in_parts(cluster: Cluster, where: Site) -> set[int]:
    """In how many parts the driver's slices say that GPUs are, at this moment."""
    listed = (await cluster.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={where.base.driver}")).items
    found = [device["name"] for each in listed for device in each["spec"].get("devices", ())]
    assert {each["spec"]["nodeName"] for each in listed} == set(where.nodes)
    parts = Counter(name.rsplit("-partition-", 1)[0] for name in found if "-partition-" in name)
    return {number // len(where.nodes) for number in parts.values()}


async def test_at_no_instant_does_a_policy_claim_what_is_not_so(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    await operator(cluster)
    parts: dict[int, int] = {}
    async with Watcher(cluster) as history:
        for number in (2, 4, 2):
            made = await apply(cluster, policy("honest", where.driver, equal(number)))
            parts[made["metadata"]["generation"]] = number
            await ready(cluster, "honest")
        made = await apply(cluster, policy("honest", where.driver, equal(8)))
        parts[made["metadata"]["generation"]] = 0
        await stalled(cluster, "honest", "TooManyParts")
        made = await apply(cluster, policy("honest", where.driver, whole()))
        parts[made["metadata"]["generation"]] = 0
        await ready(cluster, "honest")
    done = Counter[int]()
    for now in history.instants():
        for body in now.objects(POLICIES):
            consistent(body)
            generation = body["metadata"]["generation"]
            if says(body, "Ready")[0] == "True":
                done[generation] += 1
                assert set(now.phases().values()) == {"UpToDate"}
                assert published(now, where) == {node: devices(parts[generation]) for node in where.nodes}
    assert set(done) == {1, 2, 3, 5}


def consistent(policy: Object) -> None:
    """Check what must hold of every status, whatever it is about."""
    status, generation = policy["status"], policy["metadata"]["generation"]
    assert status["observedGeneration"] <= generation
    present = {each["type"]: each["status"] for each in status.get("conditions", ())}
    if not present:
        assert status["observedGeneration"] == -1
        return
    assert {each["observedGeneration"] for each in status["conditions"]} == {status["observedGeneration"]}
    assert present["Ready"] in {"True", "False"}
    assert {present[kind] for kind in ("Reconciling", "Stalled") if kind in present} <= {"True"}
    assert [present["Ready"] == "True", "Reconciling" in present, "Stalled" in present].count(True) == 1, present


def published(now: Instant, where: Site) -> dict[str, int]:
    """How many devices of the driver each node published at an instant; 0 where its pool was not complete."""
    pools: dict[str, list[Object]] = {}
    for body in now.objects(RESOURCE_SLICES):
        if body["spec"]["driver"] == where.base.driver:
            pools.setdefault(body["spec"]["nodeName"], []).append(body["spec"])
    return {
        node: sum(len(each.get("devices", ())) for each in specs) if is_complete(specs) else 0
        for node, specs in pools.items()
    }


def is_complete(specs: list[Object]) -> bool:
    pools = [(each["pool"]["generation"], each["pool"]["resourceSliceCount"]) for each in specs]
    return len(set(pools)) == 1 and pools[0][1] == len(specs)


async def test_a_policy_that_matches_no_node_is_done_and_warns(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await operator(cluster)
    await apply(cluster, policy("nobody", where.driver, equal(2), selector={"lane": "fast"}))
    body = await ready(cluster, "nobody", "NoMatchingNodes")
    assert "nodeSelector" in condition(body, "Ready")["message"]
    ((kind, reason, _, _),) = await eventually(lambda: events(cluster, "nobody"))
    assert (kind, reason) == ("Warning", "NoMatchingNodes")
    await cluster.client.patch(NODES, where.nodes[0], {"metadata": {"labels": {"lane": "fast"}}})
    await ready(cluster, "nobody")


async def events(cluster: Cluster, name: str, kind: str = "GpuPartitionPolicy") -> list[tuple[str, str, str, int]]:
    """Type, reason, message and count of the events about a policy, or another object."""
    about = f"involvedObject.kind={kind},involvedObject.name={name}"
    listed = (await cluster.client.list(EVENTS, field_selector=about)).items
    return [(each["type"], each["reason"], each["message"], each["count"]) for each in listed]


async def test_an_event_is_posted_at_a_transition_and_never_again(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    program = await operator(cluster, resync=0.3)
    async with Watcher(cluster, NODE_STATES) as history:
        await apply(cluster, policy("loud", where.driver, equal(2)))
        await ready(cluster, "loud")
        await at_rest(cluster)
    await looks_again(program, times=10)
    posted = await events(cluster, "loud")
    for node in where.nodes:
        entered = [phase for phase in history.phases(node) if phase != "Pending"]
        told = await events(cluster, node, "GpuPartitionNodeState")
        assert Counter(reason for _, reason, _, _ in told) == Counter(f"Node{phase}" for phase in entered)
        posted += told
    assert {count for *_, count in posted} == {1}
    assert Counter(reason for _, reason, _, _ in posted)["RolloutComplete"] == 1
    assert {kind for kind, *_ in posted} == {"Normal"}


# ── refused ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SHARED: Final = {"mode": "Shared"}
REFUSED: Final[dict[str, tuple[list[Object], str, list[str]]]] = {
    # what is wrong         layouts                               reason                   what the message names: field and fix
    "too-many-parts": ([equal(8)], "TooManyParts", ["spec.layouts[0].equal.parts", "use 6 or 7 parts"]),
    "no-whole-gi": ([equal(3, sharing=SHARED)], "PartsNotWholeGi", ["spec.layouts[0].equal.parts", "use 2 or 4 parts"]),
    "choices": (
        [{**whole(), "type": "Choices", "choices": {"profiles": ["1g.10gb"]}}],
        "LayoutTypeUnsupported",
        ["spec.layouts[0].type", "use Whole or Equal"],
    ),
    "by-index": (
        [{**equal(2), "match": {"indexes": [0, 1]}}],
        "LayoutNotUniform",
        ["spec.layouts[0].match", "match: {all: true}"],
    ),
}


async def test_a_policy_that_cannot_be_is_refused_with_the_reason_the_field_and_the_fix(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await driver(cluster, where.base, gpus=9, name="nine")
    program = await operator(cluster, resync=0.3)
    cases = {name: (where.driver, *case) for name, case in REFUSED.items()}
    cases["nine-gpus"] = (
        "nine",
        [equal(2)],
        "TooManyGpus",
        ["9 GPUs", "spec.layouts[0].equal.parts", "use type Whole"],
    )
    cases["no-driver"] = (
        "missing",
        [equal(2)],
        "DriverNotFound",
        ["spec.driver", "GpuPartitionDriver missing", "create it"],
    )
    async with Watcher(cluster, *THINGS) as history:
        for name, (driven_by, layouts, reason, words) in cases.items():
            # One policy at a time has the node, so that nothing but the layout is wrong.
            await apply(cluster, policy(name, driven_by, *layouts, selector={"pool": where.driver}))
            body = await stalled(cluster, name, reason)
            refused(body, reason, words)
            await cluster.client.delete(POLICIES, name)
            await cluster.gone(POLICIES, name)
        await looks_again_at_nothing(cluster, program)
    assert [each for kind in THINGS for each in history.changes(kind)] == []


async def looks_again_at_nothing(cluster: Cluster, program: Any) -> None:
    """Let the operator look at a policy that matches nothing, so that all that it was asked before has been looked at."""
    await apply(cluster, policy("marker", "marker", whole(), selector={"pool": "nowhere"}))
    await looks_again(program)
    await cluster.client.delete(POLICIES, "marker")


def refused(body: Object, reason: str, words: list[str]) -> None:
    """Check that every condition of a refused policy says so, of this generation, and names field and fix."""
    for kind, status in (("Accepted", "False"), ("Ready", "False"), ("Stalled", "True")):
        said = condition(body, kind)
        assert (said["status"], said["reason"]) == (status, reason)
        assert said["observedGeneration"] == body["metadata"]["generation"] == body["status"]["observedGeneration"]
        assert [word for word in words if word not in said["message"]] == [], said["message"]
    assert not condition(body, "Reconciling")


async def no_base(cluster: Cluster, base: BaseDriver) -> None:
    await cluster.client.delete(DAEMON_SETS, base.daemon_set, namespace=base.namespace)


async def rolls_itself(cluster: Cluster, base: BaseDriver) -> None:
    update = {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}
    await cluster.client.patch(DAEMON_SETS, base.daemon_set, update, namespace=base.namespace)


async def not_exclusive(cluster: Cluster, base: BaseDriver) -> None:
    """Take away what keeps the base off nodes that have a layout."""
    body = await cluster.client.get(DAEMON_SETS, base.daemon_set, namespace=base.namespace)
    for term in terms(body):
        term["matchExpressions"] = [each for each in term["matchExpressions"] if each["key"] != LAYOUT]
    await cluster.client.replace(DAEMON_SETS, body)


async def exclusive_again(cluster: Cluster, base: BaseDriver) -> None:
    body = await cluster.client.get(DAEMON_SETS, base.daemon_set, namespace=base.namespace)
    for term in terms(body):
        term["matchExpressions"].append({"key": LAYOUT, "operator": "DoesNotExist"})
    await cluster.client.replace(DAEMON_SETS, body)


def terms(daemon_set: Object) -> list[Object]:
    affinity = daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    found: list[Object] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return found


BROKEN: Final = {
    "BaseMissing": (no_base, ["spec.exampleDriver.daemonSet", "there is no DaemonSet"]),
    "BaseRollsItself": (rolls_itself, ["updateStrategy: {type: OnDelete}"]),
    "BaseNotExclusive": (not_exclusive, [f"{{key: {LAYOUT}, operator: DoesNotExist}}"]),
}


@pytest.mark.parametrize("reason", BROKEN)
async def test_an_installation_that_is_not_as_it_must_be_is_named_with_its_fix(cluster: Cluster, reason: str) -> None:
    where = await site(cluster, 1)
    spoil, words = BROKEN[reason]
    await spoil(cluster, where.base)
    await operator(cluster)
    await apply(cluster, policy("refused", where.driver, equal(2)))
    refused(await stalled(cluster, "refused", reason), reason, words)
    assert await phases(cluster) == {}
    assert await taint_rules(cluster.client) == []
    await eventually(lambda: driver_says(cluster, where.driver, "False", reason))


async def driver_says(cluster: Cluster, name: str, status: str, reason: str) -> bool:
    ready = condition(await cluster.client.get(DRIVERS, name), "Ready")
    return (ready.get("status"), ready.get("reason")) == (status, reason)


async def test_a_driver_tells_how_its_installation_is_before_any_policy_names_it(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await operator(cluster)
    await eventually(lambda: driver_says(cluster, where.driver, "True", "Ready"))
    base = await cluster.client.get(DAEMON_SETS, where.base.daemon_set, namespace=where.base.namespace)
    await cluster.client.delete(DAEMON_SETS, where.base.daemon_set, namespace=where.base.namespace)
    await eventually(lambda: driver_says(cluster, where.driver, "False", "BaseMissing"))
    base["metadata"] = {
        key: base["metadata"][key] for key in ("name", "namespace", "labels") if key in base["metadata"]
    }
    await cluster.create(DAEMON_SETS, base)
    await eventually(lambda: driver_says(cluster, where.driver, "True", "Ready"))


async def test_a_policy_that_comes_before_its_driver_is_at_no_time_called_broken(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    its_driver = await cluster.client.get(DRIVERS, where.driver)
    its_driver["metadata"] = {"name": where.driver}
    await cluster.client.delete(DRIVERS, where.driver)
    await operator(cluster, arriving=60)
    async with Watcher(cluster, POLICIES) as history:
        await apply(cluster, policy("early", where.driver, equal(2)))
        waiting = await said(cluster, "early", "Reconciling", "True", "DriverNotFound")
        assert says(waiting, "Accepted") == ("False", "DriverNotFound")
        await apply(cluster, its_driver)
        await ready(cluster, "early")
    assert [change for change in history.changes(POLICIES, "early") if condition(change.body, "Stalled")] == []


async def test_a_driver_in_whose_namespace_the_operator_has_no_rights_holds_up_nobody_else(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    closed = await cluster.namespace("closed")
    await apply(cluster, driver_of("closed", {"namespace": closed, "name": "missing"}))
    for number in range(3):  # more than policies are looked at side by side
        await apply(cluster, policy(f"closed-{number}", "closed", equal(2), selector={"pool": "none"}))
    await operator(cluster)
    for number in range(3):
        refused(
            await stalled(cluster, f"closed-{number}", "RightsMissing"), "RightsMissing", [closed, "driver-namespace"]
        )
    await eventually(lambda: driver_says(cluster, "closed", "False", "RightsMissing"))
    await apply(cluster, policy("open", where.driver, equal(2)))
    await ready(cluster, "open")
    await grant_namespace(cluster, closed)
    await eventually(lambda: driver_says(cluster, "closed", "False", "BaseMissing"), within=60)
    await stalled(cluster, "closed-0", "BaseMissing", within=60)


async def test_a_refused_edit_changes_nothing_that_runs_and_its_repair_goes_on(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    program = await operator(cluster, resync=0.3)
    await apply(cluster, policy("edited", where.driver, equal(2)))
    await ready(cluster, "edited")
    await at_rest(cluster)
    await looks_again(program)
    quiet = len(writes(cluster))
    async with Watcher(cluster, *THINGS) as history:
        await apply(cluster, policy("edited", where.driver, equal(8)))
        refused(await stalled(cluster, "edited", "TooManyParts"), "TooManyParts", ["spec.layouts[0].equal.parts"])
        await looks_again(program)
    assert [each for kind in THINGS for each in history.changes(kind)] == []
    assert set(await phases(cluster)) == set(where.nodes)
    assert set((await phases(cluster)).values()) == {"UpToDate"}
    others = {each for each in writes(cluster, since=quiet) if not each.startswith("create events")}
    assert others == {"update gpupartitionpolicies/edited/status"}
    await apply(cluster, policy("edited", where.driver, equal(4)))
    await ready(cluster, "edited")
    for node in where.nodes:
        await cluster.published(devices(4), node=node, driver=where.base.driver)


async def test_an_installation_that_breaks_under_a_roll_out_stops_it_until_it_is_mended(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    for node in where.nodes:
        await cluster.holder(node, namespace=where.user, node=node, device_class=where.base.driver)
        await cluster.running(node, namespace=where.user)
    first = where.nodes[0]
    program = await operator(cluster, resync=0.3)
    await apply(cluster, policy("broken", where.driver, equal(2), rollout={"drain": {"mode": "Wait"}}))
    await reaches(cluster, first, "Draining")
    await not_exclusive(cluster, where.base)
    body = await stalled(cluster, "broken", "BaseNotExclusive")
    assert "DoesNotExist" in condition(body, "Stalled")["message"]
    quiet = len(writes(cluster))
    await cluster.client.delete(PODS, first, namespace=where.user)
    await cluster.gone(PODS, first, namespace=where.user)
    await looks_again(program, times=10)
    assert await phases(cluster) == dict(zip(where.nodes, ("Draining", "Pending"), strict=True))
    assert [each for each in writes(cluster, since=quiet) if "nodes/" in each or "rules" in each] == []
    await exclusive_again(cluster, where.base)
    await cluster.client.delete(PODS, where.nodes[1], namespace=where.user)
    await ready(cluster, "broken")
    for node in where.nodes:
        await cluster.published(devices(2), node=node, driver=where.base.driver)


# ── contested ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_that_two_new_policies_want_is_touched_by_neither(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await apply(cluster, policy("one", where.driver, equal(2)))
    await apply(cluster, policy("two", where.driver, equal(4)))
    program = await operator(cluster, resync=0.3)
    for name, other in (("one", "two"), ("two", "one")):
        body = await said(cluster, name, "Ready", "False", "Conflict")
        assert where.nodes[0] in condition(body, "Ready")["message"], other
        assert condition(body, "Accepted")["status"] == "True"
        assert condition(body, "Reconciling")["status"] == "True"
    await looks_again(program)
    assert await phases(cluster) == {}
    await cluster.client.delete(POLICIES, "one")
    await ready(cluster, "two")
    await cluster.published(devices(4), node=where.nodes[0], driver=where.base.driver)


async def test_who_has_a_node_keeps_it_and_the_newcomer_says_which(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    taken, free = where.nodes
    await cluster.client.patch(NODES, taken, {"metadata": {"labels": {"lane": "old"}}})
    await operator(cluster)
    await apply(cluster, policy("incumbent", where.driver, equal(2), selector={"lane": "old"}))
    await ready(cluster, "incumbent")
    await at_rest(cluster)
    async with Watcher(cluster) as history:
        await apply(cluster, policy("newcomer", where.driver, equal(4)))
        await reaches(cluster, free, "UpToDate")
        body = await said(cluster, "newcomer", "Ready", "False", "Conflict")
        assert taken in condition(body, "Ready")["message"]
        await at_rest(cluster)
        assert says(await cluster.client.get(POLICIES, "incumbent"), "Ready") == ("True", "RolloutComplete")
        await cluster.client.patch(NODES, free, {"metadata": {"labels": {"lane": "new"}}})
        await apply(cluster, policy("newcomer", where.driver, equal(4), selector={"lane": "new"}))
        await ready(cluster, "newcomer")
    assert history.touched(NODE_STATES, taken) == []
    assert len(history.assignments(taken)) == 1
