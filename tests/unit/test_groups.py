"""The pool of a group of nodes: what is in it, what follows from its counters, and what becomes of it when nodes come and go."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.unit.published import BACKEND, driver, layout
from tests.unit.racks import OWN, RACK, compiled, facts, node, pool, published, racks, spans
from tests.unit.worlds import HALVES, holder, record, seen, world

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.domain.backend import Cluster, NodeFacts
from gpupartition.domain.changes import blockers_of
from gpupartition.domain.groups import HOSTNAME, MAX_NODES, PLACES, Group, node_key, of_node, on_nodes
from gpupartition.domain.leading import former, leader, led, nodes_led, settled
from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import NODES, Pool
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.rest import rest
from gpupartition.domain.retiring import possible
from gpupartition.domain.world import AT_REST

# ── what is in it ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_device_is_where_its_node_is_and_takes_one_of_its_places() -> None:
    group = pool("n1", "n2")
    singles = [device for device in group.devices if "nodeName" in device.place]
    assert Counter(device.place["nodeName"] for device in singles) == {"n1": len(OWN.devices), "n2": len(OWN.devices)}
    for device in singles:
        key = node_key(device.place["nodeName"])
        assert device.costs[NODES] == {key: 1}
        assert device.name.endswith(key)
        assert len(device.costs) == 2, "the API lets a device draw on two counter sets"


def test_a_device_over_nodes_takes_all_of_each_and_has_what_they_have() -> None:
    group = pool("n1", "n2")
    (span,) = [device for device in group.devices if device.name in spans(group)]
    assert span.costs == {NODES: {node_key("n1"): PLACES, node_key("n2"): PLACES}}
    assert span.capacity == {"memory": 4 * 80 * 1024**3}
    assert (span.attributes["nodes"], span.attributes["gpus"]) == ({"int": 2}, {"int": 4})
    assert span.attributes["productName"] == {"string": "H100"}
    terms = span.place["nodeSelector"]["nodeSelectorTerms"]
    assert terms == [
        {
            "matchExpressions": [
                {"key": RACK, "operator": "In", "values": ["a"]},
                {"key": HOSTNAME, "operator": "In", "values": ["host-of-n1", "host-of-n2"]},
            ]
        }
    ]


def test_who_is_in_the_way_is_said_to_be_on_the_node_where_the_device_is() -> None:
    there = pool("n1", "n2")
    (over,) = spans(there)
    on_another = next(d.name for d in there.devices if d.place.get("nodeName") == "n2")
    held = (holder(on_another, claim="team/one"), holder(over, claim="team/two"))
    turn = replace(world(observed=seen(HALVES, pool=there)), holders=held)
    told = {each.device: each.node for each in blockers_of(record(Phase.DRAINING), turn)}
    assert told == {on_another: "n2", over: held[1].node}


@pytest.mark.parametrize(
    ("count", "sizes", "devices"), [(1, (2,), 0), (3, (2,), 1), (4, (2, 4), 3), (4, (4, 2), 3), (8, (2, 4, 8), 7)]
)
def test_no_node_is_in_two_devices_of_one_size(count: int, sizes: tuple[int, ...], devices: int) -> None:
    group = pool(*(f"n{number}" for number in range(count)), sizes=sizes)
    over = [device for device in group.devices if device.name in spans(group)]
    assert len(over) == devices
    for size in sizes:
        keys = [key for device in over for key in device.costs[NODES] if len(device.costs[NODES]) == size]
        assert max(Counter(keys).values(), default=1) == 1


def test_the_smallest_devices_come_first() -> None:
    names = [device.name for device in pool("n1", "n2", "n3", "n4", sizes=(4, 2)).devices]
    assert [name.partition("-")[0] for name in names[-3:]] == ["2nodes", "2nodes", "4nodes"]
    assert all(name.startswith("gpu-") for name in names[:-3])


def test_slices_say_for_each_device_where_it_is_and_go_with_the_last_of_the_nodes() -> None:
    group = pool("n1", "n2")
    bodies = published(group, "n1", "n2")
    counters, devices = bodies
    assert counters["spec"]["allNodes"] is True
    assert devices["spec"]["perDeviceNodeSelection"] is True
    assert all("nodeName" not in body["spec"] for body in bodies)
    assert [owner["name"] for owner in counters["metadata"]["ownerReferences"]] == ["n1", "n2"]
    assert offered_by(bodies).equals(group)


# ── nodes come and go ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_has_a_device_of_another_node_notices_nothing_when_one_comes_or_goes() -> None:
    two, three = pool("n1", "n2"), pool("n1", "n2", "n3")
    assert two.vanishing(three) == frozenset()
    assert {name.rpartition("-")[2] for name in three.vanishing(two)} == {node_key("n3")}


def test_devices_of_a_node_that_has_left_stay_beside_the_others_until_they_are_released() -> None:
    before, after = pool("n1", "n2", "n3"), pool("n1", "n2")
    stay = before.retire(after)
    assert after.goes_with(stay)
    both = after.beside(stay)
    read = offered_by(published(both, "n1", "n2"))
    assert read.usable
    offered, retired = read.without_retired()
    assert offered.equals(after)
    assert retired.equals(stay)
    assert on_nodes(both) == {node_key("n1"), node_key("n2"), node_key("n3")}


def test_a_full_group_has_no_room_for_a_node_beside_the_one_that_it_replaces() -> None:
    names = [f"n{number:02}" for number in range(MAX_NODES + 1)]
    former, following = pool(*names[:-1]), pool(*names[1:])
    assert not possible(NodeStateStatus(), seen(HALVES, pool=former), following)
    fewer = pool(*names[1:-1])
    assert possible(NodeStateStatus(), seen(HALVES, pool=former), fewer)
    with_one_left = NodeStateStatus(retiring=former.retire(fewer).to_json())
    assert not possible(with_one_left, seen(HALVES, pool=fewer), following)


def test_a_device_over_other_nodes_than_before_is_another_device() -> None:
    assert not set(spans(pool("n1", "n2"))) & set(spans(pool("n2", "n3")))


def test_what_a_record_has_is_led_by_it_and_what_it_is_still_to_get_is_not() -> None:
    told = compiled(facts("n1", "n1", "n2")).assigned()
    waiting = NodeStateStatus(phase=Phase.PENDING, target=told)
    taken = waiting.model_copy(update={"phase": Phase.ADMITTED})
    assert (led(waiting), nodes_led(waiting)) == ("", frozenset())
    assert (led(taken), nodes_led(taken)) == ("a", frozenset({node_key("n1"), node_key("n2")}))


# ── who leads, and who follows ────────────────────────────────────────────────────────────────────────────────────────


def test_the_node_that_leads_gets_the_pool_of_all() -> None:
    assert compiled(facts("n1", "n1", "n2")).pool.equals(pool("n1", "n2"))


def test_another_one_has_nothing_of_its_own_once_the_pool_is_there() -> None:
    wanted = compiled(facts("n1", "n1", "n2"))
    there = facts("n2", "n1", "n2", slices=published(wanted.pool, "n1", "n2"))
    follows = compiled(there)
    assert (follows.fingerprint, follows.assignment, follows.pool) == (wanted.fingerprint, None, Pool())
    seen = BACKEND.observe(racks(), there, Cluster())
    assert (seen.running, seen.pool, seen.ready) == (wanted.fingerprint, Pool(), True)


def test_until_then_it_says_whom_it_waits_for() -> None:
    with pytest.raises(Refused) as refused:
        compiled(facts("n2", "n1", "n2"))
    (problem,) = refused.value.problems
    assert (problem.reason, problem.passing, problem.of_node) == ("FollowsNode", True, True)
    assert "kubectl get gpn n1" in problem.fix


def test_it_never_writes_to_the_pool() -> None:
    wanted = compiled(facts("n1", "n1", "n2"))
    there = facts("n2", "n1", "n2", slices=published(wanted.pool, "n1", "n2"))
    own = compiled(there).assigned()
    for told in (own, wanted.assigned()):
        assert BACKEND.assign(racks(), there, told, "s", 9) is None
        assert BACKEND.repair(racks(), there, told, None, 9) is None


def test_whoever_begins_to_lead_does_not_delete_what_it_had_not_before() -> None:
    wanted = compiled(facts("n1", "n1", "n2"))
    slices = published(wanted.pool, "n1", "n2")
    followed = compiled(facts("n2", "n1", "n2", slices=slices)).assigned()
    leads = facts("n2", "n1", "n2", leader="n2", slices=slices)
    assert BACKEND.repair(racks(), leads, followed, None, 9) is None


def test_one_that_was_verified_has_what_is_wanted_while_the_leader_restores_it() -> None:
    wanted = compiled(facts("n1", "n1", "n2"))
    torn = published(wanted.pool, "n1", "n2")[:1]
    with pytest.raises(Refused, match="follows node n1"):
        compiled(facts("n2", "n1", "n2", slices=torn))
    assert compiled(facts("n2", "n1", "n2", slices=torn, settled=wanted.fingerprint)).pool == Pool()


@pytest.mark.parametrize(
    ("follows", "leads", "both"),
    [
        (Phase.UP_TO_DATE, Phase.UP_TO_DATE, True),
        (Phase.PENDING, Phase.UP_TO_DATE, False),
        (Phase.UP_TO_DATE, Phase.APPLYING, False),
    ],
)
def test_both_have_to_be_verified_for_that(follows: Phase, leads: Phase, both: bool) -> None:
    fingerprint = compiled(facts("n1", "n1", "n2")).fingerprint
    of_leader = leading(7, leads)
    assert settled(leading(1, follows), of_leader) == (fingerprint if both else "")
    assert settled(leading(1, follows), None) == ""


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"kept_out": "its devices are still in pool gpu.example.org/b"}, "NotInGroup"),
        ({"skipped": "n2"}, "SkipRequested"),
    ],
)
def test_a_node_is_left_out_with_the_reason(group: dict[str, str], reason: str) -> None:
    with pytest.raises(Refused) as refused:
        compiled(facts("n1", "n1", "n2", **group))
    assert [(p.reason, p.of_node) for p in refused.value.problems] == [(reason, True)]


def test_a_node_without_a_group_is_left_out() -> None:
    with pytest.raises(Refused, match=f"its label {RACK} does not say"):
        compiled(NodeFacts(node=node("n1")))


def test_a_group_that_is_too_large_is_left_out() -> None:
    with pytest.raises(Refused, match=r"33 nodes are labelled example\.com/rack: a"):
        compiled(facts("n1", *(f"n{number}" for number in range(33))), layout())


def test_two_nodes_with_one_hostname_cannot_be_told_apart() -> None:
    twins = [node("n1", **{HOSTNAME: "h"}), node("n2", **{HOSTNAME: "h"})]
    on = NodeFacts(node=twins[0], group=Group(name="a", leader="n1", members=twins))
    with pytest.raises(Refused, match="'h', as that of another node"):
        compiled(on)


def test_pools_of_drivers_without_groups_are_as_ever() -> None:
    assert BACKEND.pool_name(driver(), "n1") == "gpu.example.org/n1"
    assert '"group"' not in OWN.to_json()
    assert '"place"' not in OWN.to_json()


# ── as one of its nodes sees it ───────────────────────────────────────────────────────────────────────────────────────


def test_a_node_has_its_own_devices_and_on_each_gpu_what_spans_it() -> None:
    seen = of_node(pool("n1", "n2"), "n2")
    assert {device.name for device in seen.devices if "nodeName" in device.place} == {
        f"{device.name}-{node_key('n2')}" for device in OWN.devices
    }
    shares = [device for device in seen.devices if "nodeSelector" in device.place]
    assert [device.attributes["index"]["int"] for device in shares] == [0, 1]
    assert len(seen.counters) == 2


# ── from record to record ─────────────────────────────────────────────────────────────────────────────────────────────


def leading(generation: int, phase: Phase = Phase.UP_TO_DATE) -> NodeStateStatus:
    told = compiled(facts("n1", "n1", "n2")).assigned()
    ways = {"current": told} | ({"previous": told, "target": told} if phase not in AT_REST else {})
    return NodeStateStatus(phase=phase, generation=generation, retiring=OWN.to_json(), **ways)


def test_whoever_comes_to_lead_takes_the_pool_from_the_record_that_has_it() -> None:
    left, comes = leading(7), NodeStateStatus(generation=40)
    assert leader({"n1": left}, ["n2"]) == "n2"
    assert former({"n1": left}, "n2") == "n1"
    step = rest(comes, replace(world(), former=left))
    assert step is not None
    assert (step.state.current, step.state.retiring, step.state.generation) == (left.current, left.retiring, 8)
    assert former({"n1": left, "n2": step.state}, "n2") == ""


def test_what_was_taken_too_late_counts_for_nothing() -> None:
    changed = leading(9)
    assert former({"n1": leading(8), "n2": changed}, "n2") == ""
    assert former({"n1": changed, "n2": leading(8)}, "n2") == "n1"
    assert former({"n1": leading(8, Phase.APPLYING)}, "n2") == "", "it leads until it is done"


@pytest.mark.parametrize("last_to_know", [False, True])
def test_a_record_has_the_pool_until_that_of_the_next_one_has(last_to_know: bool) -> None:
    waits = Problem(reason="NotInGroup", at="node n1", why="it has left", fix="wait", of_node=True, passing=True)
    turn = replace(world(wanted=None, refused=True), left_out=waits, last_to_know=last_to_know)
    step = rest(leading(7), turn)
    assert step is not None
    assert (step.state.phase, step.state.reason) == (Phase.PENDING, "NotInGroup")
    assert (led(step.state) == "a") is last_to_know
    assert bool(step.state.retiring) is last_to_know
