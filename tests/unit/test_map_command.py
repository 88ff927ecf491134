"""What `map` draws of a fleet, and what it tells programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.fleet import Fleet
from tests.unit.racks import pool, published, spans

from gpupartition.cli import map as command
from gpupartition.cli.options import Unusable
from gpupartition.cli.paint import rendered
from gpupartition.domain.gpumap import NodeMap
from gpupartition.kube import DEVICE_TAINT_RULES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind, Listing


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setattr(command, "_plain", lambda: True)


def drawn(found: list[NodeMap], *, full: bool = False) -> list[str]:
    picture = command.in_full if full else command.pictured
    return rendered(picture(found, datetime.now(UTC)), colour=False).splitlines()


def fleet() -> Fleet:
    """Three nodes: one in use as a whole, one in halves of which one is used, and one that is closed."""
    made = Fleet(3)
    made.publish("node-2", parts=2)
    made.hold("node-1")
    made.hold("node-2", claim="team-b/job-8", device="gpu-3-partition-1")
    selector = {"driver": "gpu.example.com", "pool": "node-3"}
    spec = {"deviceSelector": selector, "taint": {"key": "gpupartition.dev/repartitioning", "effect": "NoSchedule"}}
    made.objects[DEVICE_TAINT_RULES] = [{"metadata": {"name": "r"}, "spec": spec}]
    return made


async def test_every_node_is_a_line_of_bars() -> None:
    assert drawn(await command.look(fleet().client)) == [
        "gpu.example.com",
        "GPU         0         1         2         3         4         5         6         7",
        "node-1  ######### ......... ......... ......... ......... ......... ......... .........",
        "node-2  ....|.... ....|.... ....|.... ....|#### ....|.... ....|.... ....|.... ....|....",
        "node-3  xxxxxxxxx xxxxxxxxx xxxxxxxxx xxxxxxxxx xxxxxxxxx xxxxxxxxx xxxxxxxxx xxxxxxxxx",
        "",
        "... free   ### used   xxx tainted   .|. in parts",
    ]


async def test_a_node_that_is_cordoned_says_so_whatever_is_free_there() -> None:
    made = fleet()
    (cordoned,) = (body for body in made.objects[NODES] if body["metadata"]["name"] == "node-2")
    cordoned["spec"] = {"unschedulable": True}
    found = await command.look(made.client)
    lines = drawn(found)
    assert lines[4] == "        cordoned: no new pod comes here", lines
    assert [pool["cordoned"] for pool in command.as_data(found)["pools"]] == [False, True, False]
    assert drawn(found[1:2], full=True)[0] == "node-2 (gpu.example.com)  cordoned: no new pod comes here"


@pytest.mark.parametrize("cordoned", [True, False])
async def test_of_one_node_no_other_node_is_asked_for(cordoned: bool) -> None:
    class OneNode(Fleet):
        async def list(self, kind: Kind, **options: Any) -> Listing:
            assert kind is not NODES
            return await super().list(kind, **options)

    made = OneNode(2)
    for body in made.objects[NODES]:
        body["spec"] = {"unschedulable": True} if cordoned == (body["metadata"]["name"] == "node-2") else {}
    (found,) = await command.look(made.client, "node-2")
    assert found.cordoned == cordoned


async def test_one_node_is_drawn_with_each_device_and_who_has_it() -> None:
    lines = drawn(await command.look(fleet().client, "node-2"), full=True)
    assert lines[0] == "node-2 (gpu.example.com)"
    assert lines[4] == "  GPU 3  ...................|###################"
    assert "  3     gpu-3-partition-1   40Gi      40Gi     used   team-b/job-8" in lines


async def test_what_publishes_no_gpus_is_not_drawn() -> None:
    made = Fleet(1)
    for body in made.objects[RESOURCE_SLICES]:
        body["spec"]["driver"] = "compute-domain.nvidia.com"
    assert drawn(await command.look(made.client)) == ["no node publishes GPUs"]


async def test_a_node_that_is_not_there_is_told() -> None:
    with pytest.raises(Unusable, match="there is no node nowhere"):
        await command.look(fleet().client, "nowhere")
    with pytest.raises(Unusable, match="no node has labels zone=nowhere"):
        await command.look(Fleet(0).client, selector="zone=nowhere")


async def test_programs_are_told_of_shares_and_holders() -> None:
    found = await command.look(fleet().client)
    told: Any = {pool["node"]: pool for pool in command.as_data(found)["pools"]}
    assert [(p["device"], p["use"], p["share"], p["heldBy"]) for p in told["node-2"]["gpus"][3]["parts"]] == [
        ("gpu-3-partition-0", "free", 0.5, []),
        ("gpu-3-partition-1", "used", 0.5, ["team-b/job-8"]),
    ]
    assert command.FORMS["name"](found).splitlines() == ["node/node-1", "node/node-2", "node/node-3"]


def of_racks(*used: str) -> Fleet:
    """Two nodes of a rack, and who has which of their devices."""
    made = Fleet(2)
    made.objects[RESOURCE_SLICES] = published(pool("node-1", "node-2"), "node-1", "node-2")
    for number, device in enumerate(used):
        result = {"driver": "gpu.example.org", "pool": "gpu.example.org/a", "device": device, "request": "gpu"}
        status = {"allocation": {"devices": {"results": [result]}}}
        made.objects[RESOURCE_CLAIMS].append(
            {"metadata": {"name": f"job-{number}", "namespace": "t"}, "status": status}
        )
    return made


async def test_a_device_over_two_nodes_that_could_be_had_is_listed_for_each_of_them() -> None:
    (span,) = spans(pool("node-1", "node-2"))
    found = await command.look(of_racks().client)
    assert drawn(found)[-3] == "over several nodes could be had: 1 of 2nodes"
    for each in found:
        row = next(each for each in drawn([each], full=True) if span in each)
        assert row.split() == ["all", span, "2nodes", "320Gi", "free"]
    told: Any = command.as_data(found)["pools"]
    assert [[(over["device"], over["use"]) for over in each["over"]] for each in told] == [[(span, "free")]] * 2


async def test_one_of_which_somebody_has_a_part_is_not() -> None:
    group = pool("node-1", "node-2")
    for used in (group.devices[0].name, spans(group)[0]):
        found = await command.look(of_racks(used).client)
        assert not any(each.over for each in found)
        assert not any("could be had" in text for text in drawn(found))
