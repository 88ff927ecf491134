"""What a plan says of those who want devices: who will get some, who will not any more, and which classes nothing is left of."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from tests.unit.fleet import DRIVER, Fleet, asking, device_class, policy, whole

from gpupartition.cli import show
from gpupartition.cli.documents import Document
from gpupartition.cli.fitting import prospect, prospect_in_time
from gpupartition.cli.options import Unusable
from gpupartition.cli.planned import planned_for
from gpupartition.domain.fit import Fits
from gpupartition.domain.prospect import Prospect
from gpupartition.kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Forbidden,
    Kind,
    Listing,
    Object,
)
from gpupartition.names import CORDONED
from gpupartition.settings import Settings

SMALL: Final = f'device.capacity["{DRIVER}"].memory.isLessThan(quantity("50Gi"))'
LARGE: Final = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("50Gi"))'
ALL_AT_ONCE: Final = {"maxUnavailable": "100%"}


async def prospect_of(fleet: Fleet, *bodies: Object, late: bool = False) -> Prospect:
    documents = [Document(at="policy", body=body) for body in bodies or (policy(rollout=ALL_AT_ONCE),)]
    seen = await planned_for(fleet.client, Settings(), documents, ())
    return await prospect(fleet.client, seen, lambda: late)


def fits(some: Any) -> dict[str, tuple[Fits | None, Fits]]:
    return {each.ask.name: (each.now.fits if each.now else None, each.after.fits) for each in some}


async def test_who_waits_for_a_part_gets_one_once_gpus_are_cut() -> None:
    fleet = Fleet(1)
    fleet.want("team/half", asking(SMALL))
    fleet.want("team/tiny", asking(f'device.capacity["{DRIVER}"].memory.isLessThan(quantity("1Gi"))'))
    found = await prospect_of(fleet)
    assert fits(found.pending) == {"half": (Fits.NO, Fits.YES), "tiny": (Fits.NO, Fits.NO)}
    (half, _) = found.pending
    assert (half.after.node, half.after.devices) == ("node-1", ((DRIVER, "node-1", "gpu-0-partition-0"),))
    assert not found.unschedulable


async def test_who_would_get_a_device_now_and_none_afterwards_is_worse_off() -> None:
    fleet = Fleet(1)
    fleet.publish("node-1", parts=2)
    fleet.want("team/half", asking(SMALL))
    found = await prospect_of(fleet, policy("whole", whole(), rollout=ALL_AT_ONCE))
    assert fits(found.pending) == {"half": (Fits.YES, Fits.NO)}
    assert found.unschedulable


async def test_a_running_workload_whose_device_is_taken_away_is_looked_for_again() -> None:
    fleet = Fleet(2)
    fleet.publish("node-1", parts=2)
    fleet.hold("node-1", claim="team/finds", device="gpu-0-partition-0")
    fleet.hold("node-1", claim="team/finds-none", device="gpu-0-partition-1")
    fleet.objects[RESOURCE_CLAIMS][1]["spec"] = asking(SMALL)
    fleet.hold("node-2", claim="team/untouched")
    found = await prospect_of(fleet, policy("whole", whole(), rollout=ALL_AT_ONCE))
    assert fits(found.restarts) == {"finds": (None, Fits.YES), "finds-none": (None, Fits.NO)}
    assert found.unschedulable


async def test_devices_of_those_who_stay_are_not_given_to_those_who_start_anew() -> None:
    fleet = Fleet(1)
    fleet.publish("node-1", parts=2)
    for number in range(8):
        fleet.hold("node-1", claim=f"team/job-{number}", device=f"gpu-{number}-partition-0")
    fleet.want("team/waits")
    found = await prospect_of(fleet, policy("whole", whole(), rollout=ALL_AT_ONCE))
    assert {each.after.devices for each in found.restarts} == {
        ((DRIVER, "node-1", f"gpu-{number}"),) for number in range(8)
    }
    (waits,) = found.pending
    assert waits.after.devices == ((DRIVER, "node-1", "gpu-0-partition-1"),), "the node is blocked, and as it is"


async def test_the_next_start_of_a_pod_is_its_templates_and_not_the_claim_that_it_has() -> None:
    fleet = Fleet(1)
    fleet.hold("node-1", claim="team/job")
    fleet.run("team/job")
    (pod,) = [body for body in fleet.objects[PODS] if body["metadata"]["name"] == "job"]
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    fleet.objects[RESOURCE_CLAIM_TEMPLATES] = [
        {"metadata": {"name": "t", "namespace": "team"}, "spec": {"spec": asking("device.allowMultipleAllocations")}}
    ]
    (job,) = (await prospect_of(fleet)).restarts
    assert (job.ask.kind, job.ask.name, job.after.fits) == ("Pod", "job", Fits.NO)


async def test_a_pod_of_the_same_name_that_does_not_have_the_claim_is_somebody_else() -> None:
    fleet = Fleet(1)
    fleet.hold("node-1", claim="team/job")
    fleet.run("team/job")
    (pod,) = [body for body in fleet.objects[PODS] if body["metadata"]["name"] == "job"]
    pod["metadata"]["uid"] = "another"
    (job,) = (await prospect_of(fleet)).restarts
    assert job.ask.kind == "ResourceClaim"


async def test_a_layout_that_stays_harms_nobody() -> None:
    fleet = Fleet(1)
    fleet.hold("node-1")
    found = await prospect_of(fleet, policy("whole", whole()))
    assert found == Prospect()


async def test_what_the_operator_keeps_closed_while_it_works_is_open_afterwards_and_what_others_close_is_not() -> None:
    fleet = Fleet(2)
    ours, theirs = fleet.objects[NODES]
    ours["spec"] = {"unschedulable": True}
    ours["metadata"]["annotations"] = {CORDONED: "token"}
    theirs["spec"] = {"unschedulable": True}
    for name in ("a", "b"):
        fleet.want(f"team/{name}", asking(LARGE, count=8))
    found = await prospect_of(fleet, policy("whole", whole()))
    assert fits(found.pending) == {"a": (Fits.NO, Fits.YES), "b": (Fits.NO, Fits.NO)}


async def test_taint_rules_of_others_stand_and_ours_are_gone_afterwards() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    ours = {"app.kubernetes.io/managed-by": "gpupartition"}
    for labels, then in (({}, Fits.NO), (ours, Fits.YES)):
        fleet = Fleet(1)
        rule: Object = {
            "metadata": {"name": "r", "labels": labels},
            "spec": {"deviceSelector": {"pool": "node-1"}, "taint": taint},
        }
        fleet.objects[DEVICE_TAINT_RULES] = [rule]
        fleet.want("team/a")
        assert fits((await prospect_of(fleet)).pending) == {"a": (Fits.NO, then)}


async def test_a_class_that_nothing_is_left_of_is_told_and_one_that_never_had_anything_is_not() -> None:
    fleet = Fleet(2)
    for node in fleet.nodes:
        fleet.publish(node, parts=2)
    fleet.objects[DEVICE_CLASSES] += [
        device_class("half", SMALL),
        device_class("large", LARGE),
        device_class("nothing", "false"),
        device_class("others", "device.driver == 'nic.example.com'"),
        device_class("odd", f'device.attributes["{DRIVER}"].nothing == 1'),
    ]
    found = await prospect_of(fleet, policy("whole", whole(), rollout=ALL_AT_ONCE))
    assert found.emptied == {"half": Fits.NO}
    one_stays = policy("whole", whole(), selector={"kubernetes.io/hostname": "node-1"})
    assert (await prospect_of(fleet, one_stays)).emptied == {}


async def test_a_class_by_what_the_driver_alone_knows_may_be_left_empty_and_nobody_can_say() -> None:
    fleet = Fleet(1)
    fleet.objects[DEVICE_CLASSES] += [
        device_class("latest", f'device.attributes["{DRIVER}"].model == "LATEST-GPU-MODEL"')
    ]
    fleet.want("team/a", asking(device_class="latest"))
    found = await prospect_of(fleet)
    assert found.emptied == {"latest": Fits.UNKNOWN}
    assert fits(found.pending) == {"a": (Fits.YES, Fits.UNKNOWN)}
    assert not found.unschedulable, "unknown is no no"


async def test_when_the_time_is_up_it_is_said_how_many_were_looked_at() -> None:
    fleet = Fleet(1)
    fleet.want("team/a")
    found = await prospect_of(fleet, late=True)
    assert found.looked_at == (0, 1)
    assert not found.unschedulable
    assert "looked at 0 of 1 who want devices, then the time was up" in show.FORMS["table"](shown(found))


def shown(found: Prospect) -> show.Shown:
    return show.Shown(plans=[], prospect=found)


async def test_people_see_who_is_concerned_and_programs_see_all() -> None:
    fleet = Fleet(1)
    fleet.publish("node-1", parts=2)
    fleet.objects[DEVICE_CLASSES].append(device_class("half", SMALL))
    fleet.hold("node-1", claim="team/job", device="gpu-0-partition-0")
    fleet.objects[RESOURCE_CLAIMS][0]["spec"] = asking(SMALL)
    fleet.want("team/any")
    fleet.want("team/tiny", asking("device.allowMultipleAllocations"))
    found = await prospect_of(fleet, policy("whole", whole(), rollout=ALL_AT_ONCE))
    assert show.FORMS["table"](shown(found)).splitlines() == [
        "",
        "WAITS FOR DEVICES         NOW          AFTER        WHY",
        "ResourceClaim team/tiny   DoesNotFit   DoesNotFit   no node that it may run on has such devices",
        "",
        "NEXT START OF            AFTER        WHY",
        "ResourceClaim team/job   DoesNotFit   no node that it may run on has such devices",
        "",
        "DEVICECLASS   AFTER",
        "half          has no device",
    ]
    told = json.loads(show.FORMS["json"](shown(found)))["fit"]
    assert list(told) == ["whyNot", "lookedAt", "of", "findings", "pending", "restarts", "deviceClasses"]
    assert (told["lookedAt"], told["of"], told["findings"]) == (3, 3, ["unschedulable"])
    assert told["pending"][0] == {
        "kind": "ResourceClaim",
        "namespace": "team",
        "name": "any",
        "worse": False,
        "now": {
            "fits": "Fits",
            "node": "node-1",
            "devices": [{"driver": DRIVER, "pool": "node-1", "device": "gpu-0-partition-1"}],
            "why": "",
        },
        "after": {
            "fits": "Fits",
            "node": "node-1",
            "devices": [{"driver": DRIVER, "pool": "node-1", "device": "gpu-0-partition-1"}],
            "why": "",
        },
    }
    assert told["deviceClasses"] == [{"name": "half", "after": "DoesNotFit"}]


async def test_a_long_table_ends_and_says_how_many_more_there_are() -> None:
    fleet = Fleet(1)
    for number in range(30):
        fleet.want(f"team/w{number:02}", asking("device.allowMultipleAllocations"))
    lines = show.FORMS["table"](shown(await prospect_of(fleet))).splitlines()
    assert sum(each.startswith("ResourceClaim") for each in lines) == 20
    assert lines[-1] == "and 10 more, which -o json names"


class Closed(Fleet):
    """A cluster of which an account may not see the classes."""

    async def list(self, kind: Kind, **more: Any) -> Listing:
        if kind is DEVICE_CLASSES:
            raise Forbidden("list deviceclasses", 403, "Forbidden", "cannot list resource deviceclasses")
        return await super().list(kind, **more)


async def test_without_the_right_to_look_plans_are_told_and_what_will_fit_is_not() -> None:
    seen = await planned_for(Closed(1).client, Settings(), [Document(at="policy", body=policy())], ())
    found = await prospect_in_time(Closed(1).client, seen, needed=False)
    assert "cannot list resource deviceclasses" in found.why_not
    assert "gpupartition-plan" in show.FORMS["table"](shown(found))
    with pytest.raises(Forbidden):
        await prospect_in_time(Closed(1).client, seen, needed=True)


async def test_a_pipeline_is_not_told_that_all_is_well_when_not_all_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(1)
    fleet.want("team/a")
    seen = await planned_for(fleet.client, Settings(), [Document(at="policy", body=policy())], ())
    monkeypatch.setattr("gpupartition.cli.fitting.PATIENCE", -1.0)
    assert (await prospect_in_time(fleet.client, seen, needed=False)).looked_at == (0, 1)
    with pytest.raises(Unusable, match="only 0 of 1 who want devices"):
        await prospect_in_time(fleet.client, seen, needed=True)
