"""What a plan says of a fleet: who changes in which wave, who does not, and why."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit import published
from tests.unit.fleet import READY, Fleet, driver, equal, policy, whole

from gpupartition.cli import show
from gpupartition.cli.documents import Document
from gpupartition.cli.options import Unusable
from gpupartition.cli.planned import plans_for
from gpupartition.domain.course import course
from gpupartition.domain.plan import Fate, Plan
from gpupartition.domain.plan_summary import capacity, findings, sentence
from gpupartition.domain.prospect import Prospect
from gpupartition.kube import NODES, RESOURCE_SLICES, Object
from gpupartition.settings import Settings


async def plans(fleet: Fleet, *bodies: Object, names: tuple[str, ...] = ()) -> list[Plan]:
    documents = [Document(at=f"document {number}", body=body) for number, body in enumerate(bodies, 1)]
    return await plans_for(fleet.client, Settings(), documents, names)


async def plan(fleet: Fleet, **body: Any) -> Plan:
    (found,) = await plans(fleet, policy(**body))
    return found


def shown(plan: Plan) -> show.Shown:
    return show.Shown(plans=[plan], prospect=Prospect())


def waves(plan: Plan) -> list[list[str]]:
    return [list(wave) for wave in plan.waves]


def fates(plan: Plan) -> dict[str, Fate]:
    return {n.node: n.fate for n in plan.nodes}


async def test_nodes_begin_zone_by_zone_as_many_at_once_as_may_be_unavailable() -> None:
    found = await plan(Fleet(5), rollout={"maxUnavailable": 2})
    assert waves(found) == [["node-1", "node-3"], ["node-5", "node-2"], ["node-4"]]
    assert sentence(found) == "5 of 5 nodes would change (5 Repartition), in 3 waves"
    assert findings(found) == ()


async def test_each_node_tells_which_devices_it_gains_and_loses() -> None:
    found = await plan(Fleet(1))
    (node,) = found.nodes
    assert node.lost == tuple(f"gpu-{n}" for n in range(8))
    assert len(node.gained) == 24
    assert [(m.profile, m.before, m.after) for m in capacity(found)] == [("40Gi", 0, 16), ("80Gi", 8, 8)]


async def test_devices_of_a_former_layout_that_go_when_they_are_released_count_for_nobody_else() -> None:
    server, fleet = published.Server(), Fleet(1)
    assert list(server.assign(published.config(published.equal(2)).assigned("r"), "s"))
    here = published.node(pool="gpu")
    fleet.objects |= {NODES: [{**here, "status": {"conditions": READY}}], RESOURCE_SLICES: list(server.slices.values())}
    spec = server.driver.model_dump(mode="json", by_alias=True, exclude_none=True)
    fleet.apply({**driver(), "spec": spec})
    found = await plan(fleet)
    assert [n.change for n in found.nodes] == ["None"]
    (found,) = await plans(fleet, policy("inference", equal(4)))
    assert [n.change for n in found.nodes] == ["Live"]
    counted = {m.profile: (m.before, m.after) for m in capacity(found)}
    assert counted == {"1of2": (4, 0), "1of4": (0, 8), "full": (2, 2)}
    assert course(found).open == {profile: (now, 0, after) for profile, (now, after) in counted.items()}


async def test_nothing_happens_to_nodes_that_have_what_is_wanted() -> None:
    (found,) = await plans(Fleet(3), policy("inference", whole()))
    assert set(fates(found).values()) == {Fate.UP_TO_DATE}
    assert sentence(found) == "0 of 3 nodes would change"


async def test_a_node_in_use_begins_only_when_its_holders_have_ended() -> None:
    fleet = Fleet(3)
    fleet.hold("node-1")
    found = await plan(fleet)
    assert waves(found) == [["node-3"], ["node-2"]]
    assert fates(found)["node-1"] is Fate.BLOCKED
    assert sentence(found).endswith("in 2 waves; 1 is blocked by team-a/job-7")
    assert findings(found) == ("blocked",)


async def test_a_node_that_is_waited_for_has_a_wave_and_names_its_holders() -> None:
    fleet = Fleet(2)
    fleet.hold("node-1")
    found = await plan(fleet, rollout={"drain": {"mode": "Wait"}})
    assert waves(found) == [["node-2"], ["node-1"]]
    assert [b.pod for n in found.nodes for b in n.blockers] == ["team-a/job-7"]
    assert findings(found) == ("blocked",)


async def test_who_would_be_evicted_is_named_apart_from_those_who_are_waited_for() -> None:
    fleet = Fleet(3)
    for node, claim, kind in (("node-1", "team-a/web", "ReplicaSet"), ("node-2", "team-a/bare", "")):
        fleet.hold(node, claim=claim)
        fleet.run(claim, kind=kind)
    found = await plan(fleet, rollout={"drain": {"mode": "Evict"}})
    assert waves(found) == [["node-3"], ["node-1"], ["node-2"]]
    nodes = {n.node: n for n in found.nodes}
    assert (nodes["node-1"].evicted, nodes["node-1"].blockers) == (("team-a/web",), ())
    assert (nodes["node-2"].evicted, [b.reason for b in nodes["node-2"].blockers]) == ((), ["NoController"])
    assert sentence(found).endswith("1 pod would be evicted: team-a/web; 1 is blocked by team-a/bare")
    assert findings(found) == ("blocked", "evict")


async def test_nobody_would_be_evicted_from_a_node_whose_turn_does_not_come() -> None:
    fleet = Fleet(2)
    fleet.hold("node-1")
    fleet.run("team-a/job-7")
    found = await plan(fleet, rollout={"limit": 1, "drain": {"mode": "Evict"}})
    assert waves(found) == [["node-2"]]
    assert "evict" not in findings(found)


async def test_the_same_devices_from_another_config_are_a_restart_that_holders_do_not_block() -> None:
    fleet = Fleet(2)
    for node in fleet.nodes:
        fleet.publish(node, parts=2)
    fleet.hold("node-1", device="gpu-0-partition-0")
    found = await plan(fleet)
    assert {(n.change, n.gained, n.lost, n.blockers) for n in found.nodes} == {("Restart", (), (), ())}
    assert sentence(found) == "2 of 2 nodes would change (2 Restart), in 2 waves"


async def test_only_a_holder_that_is_ending_blocks_a_restart() -> None:
    fleet = Fleet(1)
    fleet.publish("node-1", parts=2)
    fleet.hold("node-1", device="gpu-0-partition-0", ending=True)
    assert fates(await plan(fleet)) == {"node-1": Fate.BLOCKED}


async def test_beyond_the_limit_nodes_wait_and_are_told_why() -> None:
    found = await plan(Fleet(4), rollout={"limit": 1})
    assert waves(found) == [["node-1"]]
    assert {n.why for n in found.nodes if n.fate is Fate.WAITS} == {
        "spec.rollout.limit is reached; 3 nodes wait for it to be raised"
    }


async def test_while_paused_nobody_begins() -> None:
    found = await plan(Fleet(2), rollout={"paused": True})
    assert waves(found) == []
    assert sentence(found).endswith("and none would begin; 2 are left waiting: Paused: spec.rollout.paused is true")


async def test_outside_of_all_windows_the_waves_are_told_with_the_time_at_which_they_begin() -> None:
    # One minute a week is a window that is not open now, except in one run of ten thousand.
    window = {"days": ["Sun"], "start": "03:14", "end": "03:15", "timeZone": "Pacific/Apia"}
    found = await plan(Fleet(2), rollout={"windows": [window], "pauseBetweenSeconds": 600})
    assert waves(found) == [["node-1"], ["node-2"]]
    assert "Pacific/Apia" in sentence(found)


async def test_a_node_that_is_not_ready_uses_up_the_budget_and_is_not_begun_with() -> None:
    fleet = Fleet(3)
    fleet.not_ready("node-1")
    assert waves(await plan(fleet)) == []
    found = await plan(fleet, rollout={"maxUnavailable": 2})
    assert waves(found) == [["node-3"], ["node-2"]]
    assert fates(found)["node-1"] is Fate.NOT_READY


async def test_policies_of_one_driver_share_its_budget() -> None:
    fleet = Fleet(4)
    for number, body in enumerate(fleet.objects[NODES]):
        body["metadata"]["labels"]["lane"] = "left" if number < 2 else "right"
    lanes = [policy(lane, selector={"lane": lane}, rollout={"maxUnavailable": 2}) for lane in ("left", "right")]
    found = await plans(fleet, driver(max_unavailable=2), *lanes)
    assert [waves(each) for each in found] == [[["node-1", "node-2"]], [["node-3", "node-4"]]]
    assert [{n.wave for n in each.nodes} for each in found] == [{1}, {2}]


async def test_new_policies_of_one_driver_have_each_its_own_layout() -> None:
    fleet = Fleet(2)
    bodies = [
        policy(f"parts-{parts}", equal(parts), selector={"kubernetes.io/hostname": node})
        for parts, node in zip((2, 4), fleet.nodes, strict=True)
    ]
    assert [len(plan.nodes[0].gained) for plan in await plans(fleet, *bodies)] == [24, 40]


async def test_a_node_of_two_policies_is_touched_by_neither() -> None:
    fleet = Fleet(2)
    fleet.apply(policy("other", equal(4)))
    found = await plan(fleet)
    assert set(fates(found).values()) == {Fate.CONTESTED}
    assert findings(found) == ("infeasible",)


async def test_what_the_driver_cannot_do_is_said_once_and_nothing_begins() -> None:
    layout = {"name": "c", "match": {"all": True}, "type": "Choices", "choices": {"profiles": ["1g"]}}
    (found,) = await plans(Fleet(3), policy("inference", layout))
    assert waves(found) == []
    assert sentence(found).startswith("nothing would happen: spec.layouts")
    assert findings(found) == ("infeasible",)


async def test_a_policy_in_the_cluster_is_planned_by_name_as_if_it_did_not_only_observe() -> None:
    fleet = Fleet(1)
    fleet.apply(policy("inference", mode="Observe"))
    (found,) = await plans(fleet, names=("inference",))
    assert waves(found) == [["node-1"]]


async def test_a_changed_driver_is_planned_for_all_who_use_it() -> None:
    fleet = Fleet(2)
    fleet.apply(policy("a", selector={"kubernetes.io/hostname": "node-1"}))
    fleet.apply(policy("b", selector={"kubernetes.io/hostname": "node-2"}))
    found = await plans(fleet, driver(max_unavailable=1))
    assert [each.policy for each in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("bodies", "names", "says"),
    [
        ([policy("new", driver="another")], (), "there is no GpuPartitionDriver another (there are: example)"),
        ([], ("nobody",), "there is no GpuPartitionPolicy nobody; there are: inference"),
        (
            [{**driver(), "spec": {**driver()["spec"], "type": "Publish"}}],
            (),
            "spec.type: Publish instead of ExampleDriver",
        ),
    ],
)
async def test_what_cannot_be_planned_with_is_named_with_what_to_do(
    bodies: list[Object], names: tuple[str, ...], says: str
) -> None:
    fleet = Fleet(1)
    fleet.apply(policy("inference"))
    with pytest.raises(Unusable, match=r"\w") as unusable:
        await plans(fleet, *bodies, names=names)
    assert says in str(unusable.value)


async def test_a_policy_that_cannot_be_planned_takes_nobody_elses_plan_away() -> None:
    fleet = Fleet(1)
    fleet.apply(policy("inference"))
    fleet.apply(policy("astray", selector={"pool": "other"}, driver="nowhere"))
    astray, inference = await plans(fleet)
    assert astray.refused == (
        "GpuPartitionPolicy astray: spec.driver: there is no GpuPartitionDriver nowhere (there are: example); "
        "add it to the files, or create it first"
    )
    assert findings(astray) == ("infeasible",)
    assert waves(inference) == [["node-1"]]


@pytest.mark.parametrize("accepted", [None, "2026-01-01T00:00:00Z"])
async def test_of_rights_of_the_operator_its_word_is_taken_until_the_policy_is_changed(accepted: str | None) -> None:
    why = "spec.rollout.drain: the operator may not create pods/eviction; add manifests/components/evict"
    told = {
        "type": "Stalled",
        "status": "True",
        "reason": "EvictionForbidden",
        "message": why,
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    fleet = Fleet(1)
    body = policy(rollout={"drain": {"mode": "Evict"}})
    fleet.apply({**body, "status": {"observedGeneration": 1, "acceptedAt": accepted, "conditions": [told]}})
    (found,) = await plans(fleet)
    assert waves(found) == []
    assert [(n.fate, n.why.removeprefix("EvictionForbidden: ")) for n in found.nodes] == [(Fate.WAITS, why)]
    for same in (body, policy(rollout={"drain": {"mode": "Evict"}, "paused": False}, mode="Enforce")):
        (again,) = await plans(fleet, same)
        assert waves(again) == [], "applying it changes nothing of what the operator has said"
    (then,) = await plans(fleet, policy())
    assert waves(then) == [["node-1"]]


async def test_people_see_a_table_without_the_nodes_that_stay_as_they_are() -> None:
    fleet = Fleet(2)
    fleet.hold("node-1")
    assert show.FORMS["table"](shown(await plan(fleet))).splitlines() == [
        "inference (driver example): 2 of 2 nodes would change (2 Repartition), in 1 wave; 1 is blocked by team-a/job-7",
        "",
        "WAVE   NODE     STATE     CHANGE        DEVICES   BLOCKED BY     WHY",
        "1      node-2   Starts    Repartition   +24 -8",
        "-      node-1   Blocked   Repartition   +24 -8    team-a/job-7   waits until its devices are free",
        "",
        "PROFILE   NOW   AFTER",
        "40Gi      0     16",
        "80Gi      16    16",
    ]


async def test_programs_see_everything_in_names_that_stay() -> None:
    (data,) = show.as_data(shown(await plan(Fleet(1))))["policies"]
    assert list(data) == [
        "policy", "driver", "summary", "refused", "opens", "findings", "waves", "stop", "nodes", "capacity",
    ]  # fmt: skip
    assert list(data["nodes"][0]) == ["node", "state", "wave", "change", "gained", "lost", "evicted", "blockers", "why"]
    assert data["waves"] == [["node-1"]]
