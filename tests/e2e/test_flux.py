"""What Flux makes of policies: its own libraries judge every situation that a status can be in, and read manifests/flux/ as Flux does."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from testbed.build import KSTATUS, Builder, control_plane
from testbed.controlplane import ROOT
from testbed.programs import TestbedError, leashed
from testbed.progress import Progress
from tests.unit import situations
from tests.unit.worlds import T0

from gpupartition.api.v1alpha1 import PolicyStatus
from gpupartition.controller.records import dump
from gpupartition.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpupartition.domain.rollout import Rollout
    from gpupartition.kube import Object

FLUX: Final = ROOT / "manifests" / "flux"
FILES: Final = sorted(FLUX.glob("*.yaml"))
IN_PROGRESS, CURRENT, FAILED, TERMINATING = "InProgress", "Current", "Failed", "Terminating"
PATIENCE: Final = situations.SPEC.model_copy(
    update={"rollout": situations.SPEC.rollout.model_copy(update={"progress_deadline_seconds": 60})}
)


@pytest.fixture(scope="module")
async def programs() -> dict[str, Path]:
    wanted = [KSTATUS, control_plane()["kubectl"]]
    return await Builder.here(Progress(sys.stderr)).tools(wanted)


async def run(*command: str | Path, stdin: str = "") -> str:
    process = await asyncio.create_subprocess_exec(*leashed(command), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    out, complaint = await process.communicate(stdin.encode())
    if process.returncode != 0:
        raise TestbedError(complaint.decode().strip())
    return out.decode()


Judge = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
def flux(programs: dict[str, Path]) -> Judge:
    async def judge(objects: Sequence[Object], *written: Object) -> list[dict[str, Any]]:
        """What objects come to, with these Kustomizations. Raises TestbedError where Flux could not read those."""
        asked = json.dumps({"objects": list(objects), "flux": written})
        found: list[dict[str, Any]] = json.loads(await run(programs[KSTATUS.name], stdin=asked))
        return found

    return judge


def documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def policy(status: PolicyStatus, *, generation: int = 1, deleting: bool = False) -> Object:
    """A policy as an API server has it, with the status as the operator writes it."""
    metadata = {"name": "inference", "generation": generation}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionPolicy",
        "metadata": metadata,
        "spec": {},
        "status": dump(status),
    }


def late(of: Rollout) -> PolicyStatus:
    """The status of a roll-out in which nothing has moved for so long that its patience is over."""
    before = situations.status(of)
    return situations.status(of, before=before, now=T0 + timedelta(days=1))


def cases() -> dict[str, tuple[Object, str, str]]:
    """Situation → the policy in it, what Flux says of it, and what it says when only `Accepted` counts."""
    found = {"just created": (policy(PolicyStatus()), IN_PROGRESS, IN_PROGRESS)}
    for row in situations.TABLE:
        body = policy(situations.status(row.of), deleting=row.of.deleting)
        if row.of.deleting:
            expected = TERMINATING, IN_PROGRESS
        elif row.stalled:
            expected = FAILED, CURRENT if row.accepted else FAILED
        else:
            expected = CURRENT if row.ready else IN_PROGRESS, CURRENT if row.accepted else IN_PROGRESS
        found[row.situation] = (body, *expected)
    done, refused = situations.rollout(situations.DONE), situations.rollout(problems=[situations.REFUSED])
    unseen = {"complete": done, "refused": refused}
    for what, of in unseen.items():
        body = policy(situations.status(of), generation=2)
        found[f"{what}, and changed since"] = (body, IN_PROGRESS, IN_PROGRESS)
    moving = situations.rollout(situations.MOVING, reason="RollingOut", spec=PATIENCE)
    braked = situations.rollout(situations.WAITING, reason="MassDrift")
    missing = situations.rollout(problems=[situations.MISSING])
    torn = situations.rollout(situations.DONE, conflicts=["x"], spec=PATIENCE)
    found["many nodes drifted together"] = (policy(situations.status(braked)), FAILED, CURRENT)
    found["nothing has moved for too long"] = (policy(late(moving)), FAILED, CURRENT)
    found["its driver has not come"] = (policy(late(missing)), FAILED, FAILED)
    found["a conflict for too long"] = (policy(late(torn)), FAILED, CURRENT)
    return found


async def test_flux_says_of_every_situation_what_is_so(flux: Judge) -> None:
    told = cases()
    said = await flux([body for body, *_ in told.values()])
    for library in ("kstatus", "flux"):
        found = {name: one[library]["status"] for name, one in zip(told, said, strict=True)}
        assert found == {name: status for name, (_, status, _) in told.items()}
    assert {status for _, status, _ in told.values()} == {IN_PROGRESS, CURRENT, FAILED, TERMINATING}


async def test_what_has_failed_is_told_with_the_node_the_cause_and_what_to_do(flux: Judge) -> None:
    (said,) = await flux([policy(situations.status(situations.rollout(situations.ROLLED_BACK)))])
    for library in ("kstatus", "flux"):
        assert said[library]["message"].startswith(f"node r: {situations.WHY}; mend it, then annotate the policy with")


async def test_where_only_accepted_counts_flux_waits_for_that_and_fails_for_what_is_refused(flux: Judge) -> None:
    (kustomization,) = documents(FLUX / "policies-accepted.yaml")
    told = cases()
    said = await flux([body for body, *_ in told.values()], kustomization)
    assert [one for one in said if "error" in one] == []
    found = {name: one["exprs"] for name, one in zip(told, said, strict=True)}
    assert found == {name: status for name, (*_, status) in told.items()}
    assert {status for *_, status in told.values()} == {IN_PROGRESS, CURRENT, FAILED}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_flux_knows_every_field_that_is_written_for_it(flux: Judge, path: Path) -> None:
    written = documents(path)
    await flux([], *written)
    written[-1]["spec"]["pathh"] = "./crds"
    with pytest.raises(TestbedError, match='unknown field "pathh"'):
        await flux([], *written)


async def test_flux_installs_what_the_manifests_do_and_keeps_the_crds_apart(programs: dict[str, Path]) -> None:
    async def built(folder: Path) -> list[Object]:
        printed = await run(programs["kubectl"], "kustomize", folder)
        return sorted(yaml.safe_load_all(printed), key=lambda each: (each["kind"], each["metadata"]["name"]))

    everything, crds = await built(FLUX.parent), await built(ROOT / "crds")
    assert await built(FLUX / "operator") == [each for each in everything if each not in crds]
    assert [each for each in everything if each["kind"] == "CustomResourceDefinition"] == crds
