"""What `diff` says of a file and of a policy's nodes: as kubectl diff does, with its exit codes, and in devices."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.unit.fleet import Fleet, driver, equal, policy, whole

from gpupartition.__main__ import main
from gpupartition.cli import diff
from gpupartition.cli.documents import Document
from gpupartition.cli.paint import rendered
from gpupartition.kube import Object
from gpupartition.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def document(body: Object) -> Document:
    return Document(at="policy.yaml", body=body)


async def told(fleet: Fleet, *bodies: Object, names: tuple[str, ...] = ()) -> list[str]:
    found = await diff.compare(fleet.client, Settings(), [document(body) for body in bodies], names)
    return rendered(diff.pictured(found, datetime.now(UTC)), colour=False).splitlines()


async def test_a_changed_layout_is_told_as_lines_and_as_devices_of_the_one_and_the_other() -> None:
    fleet = Fleet(2)
    fleet.apply(policy("inference", equal(2)))
    lines = await told(fleet, policy("inference", equal(4)))
    assert lines[:2] == [
        "--- gpupartitionpolicy/inference (cluster)",
        "+++ gpupartitionpolicy/inference (policy.yaml)",
    ]
    assert {"-  - name: parts-2", "+  - name: parts-4", "-      parts: 2", "+      parts: 4"} <= set(lines)
    at = lines.index("@@ inference: devices of 2 nodes, once nothing is in the way @@")
    assert lines[at + 1 : -1] == ["+64 20Gi", "-32 40Gi", " 16 80Gi"]
    assert lines[-1].startswith("2 of 2 nodes would change (2 Repartition)")


async def test_what_is_only_spelled_otherwise_does_not_differ() -> None:
    fleet = Fleet(1)
    fleet.apply(policy("inference", equal(2)))
    written = policy("inference", equal(2), rollout={"paused": False, "maxUnavailable": 1}, mode="Enforce")
    assert await told(fleet, written) == ["gpupartitionpolicy/inference: nothing differs"]


async def test_a_policy_that_is_new_is_all_plus_against_what_nodes_publish() -> None:
    lines = await told(Fleet(1), policy("inference", equal(2)))
    assert "+spec:" in lines
    assert [line for line in lines if line.startswith("-")] == ["--- gpupartitionpolicy/inference (cluster)"]
    assert "+16 40Gi" in lines


async def test_labels_that_the_file_does_not_name_are_left_alone() -> None:
    fleet = Fleet(1)
    body = policy("inference", equal(2))
    fleet.apply({**body, "metadata": {"name": "inference", "labels": {"team": "ml", "mine": "1"}}})
    assert await told(fleet, body) == ["gpupartitionpolicy/inference: nothing differs"]
    lines = await told(fleet, {**body, "metadata": {"name": "inference", "labels": {"team": "web"}}})
    assert "-    team: ml" in lines
    assert "+    team: web" in lines
    assert not [line for line in lines if "mine" in line]


async def test_a_changed_driver_is_told_and_so_are_the_devices_of_its_policies() -> None:
    fleet = Fleet(1)
    fleet.apply(policy("inference", equal(2)))
    fleet.apply(driver())
    lines = await told(fleet, driver(max_unavailable=1))
    assert "-  maxUnavailable: 100%" in lines
    assert "+  maxUnavailable: 1" in lines
    assert "gpupartitionpolicy/inference: nothing differs" in lines


async def test_a_policy_by_name_is_held_against_what_its_nodes_publish() -> None:
    fleet = Fleet(2)
    fleet.apply(policy("inference", equal(2)))
    fleet.apply(policy("training", whole(), selector={"pool": "other"}))
    lines = await told(fleet, names=("inference",))
    assert lines[0] == "@@ inference: devices of 2 nodes, once nothing is in the way @@"
    assert lines[1:3] == ["+32 40Gi", " 16 80Gi"]
    assert await told(fleet, names=("training",)) == ["gpupartitionpolicy/training: nothing differs"]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A fleet that commands come to."""
    made = Fleet(1)
    made.apply(policy("inference", whole()))

    made.is_connected_to(monkeypatch)
    return made


@pytest.mark.usefixtures("fleet")
def test_exit_codes_are_those_of_kubectl_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, other, wrong = (tmp_path / name for name in ("same.yaml", "other.yaml", "wrong.yaml"))
    same.write_text(yaml.safe_dump(policy("inference", whole())))
    other.write_text(yaml.safe_dump(policy("inference", equal(2))))
    wrong.write_text("kind: [")
    assert main(["diff", "-f", str(same)]) == 0
    assert main(["diff", "-f", str(other)]) == 1
    assert capsys.readouterr().err == ""
    assert main(["diff", "-f", str(wrong)]) == 2
    assert main(["diff", "nowhere"]) == 2
    assert main(["diff"]) == 2
    assert main(["diff", "inference", "-f", str(same)]) == 2


def test_a_spec_of_another_release_is_no_difference_but_cannot_be_told(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "policy.yaml"
    written.write_text(yaml.safe_dump(policy("inference", whole())))
    fleet.apply(policy("inference", whole(), later={"than": "this"}))
    assert main(["diff", "-f", str(written)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: GpuPartitionPolicy inference, as it is in the cluster: spec.later: ")


@pytest.mark.usefixtures("fleet")
def test_programs_are_told_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(policy("inference", equal(2))))
    assert main(["diff", "-f", str(tmp_path / "other.yaml"), "-o", "json"]) == 1
    (told,) = json.loads(capsys.readouterr().out)["objects"]
    assert (told["name"], told["differs"], told["nodes"]) == ("gpupartitionpolicy.gpupartition.dev/inference", True, 1)
    counts: Any = {each["profile"]: (each["before"], each["after"]) for each in told["devices"]}
    assert counts == {"40Gi": (0, 16), "80Gi": (8, 8)}
    assert main(["diff", "-f", str(tmp_path / "other.yaml"), "-o", "name"]) == 1
    assert capsys.readouterr().out == "gpupartitionpolicy.gpupartition.dev/inference\n"
