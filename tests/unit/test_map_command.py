"""What `map` draws of a fleet, and what it tells programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.fleet import Fleet

from gpupartition.cli import map as command
from gpupartition.cli.options import Unusable
from gpupartition.cli.paint import rendered
from gpupartition.domain.gpumap import NodeMap
from gpupartition.kube import DEVICE_TAINT_RULES, RESOURCE_SLICES


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


async def test_programs_are_told_of_shares_and_holders() -> None:
    found = await command.look(fleet().client)
    told: Any = {pool["node"]: pool for pool in command.as_data(found)["pools"]}
    assert [(p["device"], p["use"], p["share"], p["heldBy"]) for p in told["node-2"]["gpus"][3]["parts"]] == [
        ("gpu-3-partition-0", "free", 0.5, []),
        ("gpu-3-partition-1", "used", 0.5, ["team-b/job-8"]),
    ]
    assert command.FORMS["name"](found).splitlines() == ["node/node-1", "node/node-2", "node/node-3"]
