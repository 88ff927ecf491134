"""Argo CD, the real one: what its scripts show of an object, and what its actions write. What syncs do: test_argocd.py."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from testbed import argocd
from testbed.build import ARGOCD, Builder, control_plane
from testbed.controlplane import ROOT
from testbed.programs import TestbedError
from testbed.progress import Progress
from tests.e2e.rollout import equal, policy
from tests.e2e.shell import answer
from tests.unit import situations
from tests.unit.situations import Row
from tests.unit.worlds import T0

from gpupartition.api.v1alpha1 import PolicyStatus
from gpupartition.controller.records import dump
from gpupartition.domain.suspension import of_policy
from gpupartition.names import API_VERSION, RETRY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpupartition.kube import Object

# ── what it shows ─────────────────────────────────────────────────────────────────────────────────────────────────────

PRINT_CHANGED: Final = """sh -c 'cat "$1"'"""  # in the place of diff, which is given both


@dataclass(frozen=True, slots=True, kw_only=True)
class Lua:
    """What the scripts of the manifests make of an object, in Argo CD's own machine for them."""

    binary: Path
    settings: Path
    """The ConfigMap."""

    async def _said(self, body: Object, command: str, *arguments: str) -> str:
        path = self.settings.with_name(f"{id(body)}.yaml")
        await asyncio.to_thread(path.write_text, yaml.safe_dump(body))
        which = ("admin", "settings", "resource-overrides", command, path, "--argocd-cm-path", self.settings)
        env = {"KUBECTL_EXTERNAL_DIFF": PRINT_CHANGED}
        return await argocd.run(self.binary, *which, *arguments, home=self.settings.parent, env=env)

    async def health(self, body: Object) -> tuple[str, str]:
        """Its health, and that in words."""
        said = re.fullmatch(r"STATUS: (.*)\nMESSAGE: (.*)\n", await self._said(body, "health"))
        assert said is not None
        return said[1], said[2]

    async def may(self, body: Object) -> set[str]:
        """The actions that are offered."""
        _, *rows = (await self._said(body, "list-actions")).splitlines()
        return {name for name, disabled in map(str.split, rows) if disabled == "false"}

    async def after(self, body: Object, action: str, **parameters: str) -> Object:
        """It after an action. Raises TestbedError with the words of the action."""
        given = [f"--param={name}={value}" for name, value in parameters.items()]
        said = await self._said(body, "run-action", action, *given)
        changed: Object = yaml.safe_load(said.removeprefix("Following fields have been changed:\n"))
        return changed


@pytest.fixture(scope="module")
async def lua(tmp_path_factory: pytest.TempPathFactory) -> Lua:
    builder = Builder.here(Progress(sys.stderr))
    built = await builder.tools([ARGOCD, control_plane()["kubectl"]])
    settings = tmp_path_factory.mktemp("lua") / "argocd-cm"
    kustomized = await answer([str(built["kubectl"]), "kustomize", str(ROOT / "manifests/argocd")])
    settings.write_text(kustomized.out)
    return Lua(binary=built[ARGOCD.name], settings=settings)


PATIENT: Final = situations.SPEC.model_copy(
    update={"rollout": situations.SPEC.rollout.model_copy(update={"progress_deadline_seconds": 60})}
)
LATE: Final = Row(
    "past its deadline",
    situations.rollout(situations.HELD, spec=PATIENT, reason="RollingOut"),
    ready=False,
    reason="ProgressDeadlineExceeded",
    stalled=True,
)
ROWS: Final = (*situations.TABLE, LATE)


def standing(row: Row, **annotations: str) -> Object:
    """A policy in a situation, as the API server has it."""
    status = situations.status(row.of, generation=3)
    if row is LATE:
        status = situations.status(row.of, before=status, generation=3, now=T0 + timedelta(hours=1))
    body = policy("situation", "example", equal(2))
    body["metadata"] |= {"generation": 3, "annotations": dict(annotations)}
    if row.accepted is None:
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {**body, "status": dump(status)}


def shown(row: Row) -> str:
    """The health of a policy in a situation that is no deletion."""
    if row.ready:
        return "Healthy"
    if row.stalled:
        return "Degraded"
    return "Suspended" if row.reason in {"Paused", "Frozen"} else "Progressing"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.situation)
async def test_each_situation_is_shown_with_its_reason_in_words(lua: Lua, row: Row) -> None:
    body = standing(row)
    (said,) = (each for each in body["status"]["conditions"] if each["type"] == "Ready")
    assert said["reason"] == row.reason
    health, words = await lua.health(body)
    if row.accepted is None:
        assert health == "Progressing"
        return
    assert health == shown(row)
    also = body["status"].get("suspended")
    rest = f" ({also['reason']}: {also['message']})" if also and also["reason"] != row.reason else ""
    assert words == f"{said['reason']}: {said['message']}{rest}"


async def test_what_the_operator_has_not_looked_at_is_progressing_whatever_was_said_before(lua: Lua) -> None:
    for row in (each for each in ROWS if each.reason in {"RolloutComplete", "RolledBack", "Paused"}):
        body = standing(row)
        body["metadata"]["generation"] += 1
        assert (await lua.health(body))[0] == "Progressing"
    for status in {"status": dump(PolicyStatus())}, {}:
        body = {**policy("fresh", "example", equal(2)), **status}
        body["metadata"]["generation"] = 1
        assert await lua.health(body) == (
            "Progressing",
            "the operator has not looked at this version of the policy yet",
        )


IGNORED: Final = {"argocd.argoproj.io/ignore-healthcheck": "true"}


@pytest.mark.parametrize(
    ("situation", "health"),
    [
        ("rolling", "Healthy"),
        ("paused, not complete", "Healthy"),
        ("all verified", "Healthy"),
        ("halted", "Degraded"),
        ("refused", "Degraded"),
        ("its driver is missing", "Progressing"),
        ("deleting", "Progressing"),
    ],
)
async def test_no_sync_waits_for_a_policy_whose_health_shall_be_ignored_once_it_is_accepted(
    lua: Lua, situation: str, health: str
) -> None:
    (row,) = (each for each in ROWS if each.situation == situation)
    body = standing(row, **IGNORED)
    assert (await lua.health(body))[0] == health
    body["status"] = dump(PolicyStatus())
    assert (await lua.health(body))[0] == "Progressing"


@pytest.mark.parametrize(
    ("ready", "reason", "observed", "health"),
    [
        ("True", "Ready", 2, "Healthy"),
        ("True", "Ready", 1, "Progressing"),
        ("False", "BaseMissing", 2, "Progressing"),
        ("False", "Terminating", 2, "Progressing"),
    ],
)
async def test_a_driver_is_waited_for_and_fails_no_sync(
    lua: Lua, ready: str, reason: str, observed: int, health: str
) -> None:
    said = {"type": "Ready", "status": ready, "reason": reason, "message": "in words", "observedGeneration": observed}
    body = {
        "apiVersion": API_VERSION,
        "kind": "GpuPartitionDriver",
        "metadata": {"name": "driver", "generation": 2},
        "status": {"observedGeneration": observed, "conditions": [said]},
    }
    found, words = await lua.health(body)
    assert found == health
    assert words.startswith(f"{reason}: in words" if observed == 2 else "the operator has not looked")


# ── what its actions write ────────────────────────────────────────────────────────────────────────────────────────────

(ROLLING,) = (each for each in ROWS if each.situation == "rolling")
(HALTED,) = (each for each in ROWS if each.situation == "halted")


async def test_a_pause_says_who_why_and_until_when_as_everybody_says_it(lua: Lua) -> None:
    body = standing(ROLLING, unrelated="kept")
    before = datetime.now(UTC).replace(microsecond=0)
    paused = await lua.after(body, "pause", reason="storage is being moved", hours="1.5")
    found = of_policy(paused)
    assert found is not None
    assert (found.by, found.reason) == ("Argo CD", "storage is being moved")
    assert found.until.endswith("Z")
    assert found.ends is not None
    assert timedelta(0) <= found.ends - before - timedelta(hours=1.5) < timedelta(minutes=1)
    assert await lua.after(paused, "resume") == body, "and nothing else was touched"
    assert await lua.may(paused) == {"resume"}


async def test_a_pause_needs_no_reason_and_no_end(lua: Lua) -> None:
    body = standing(ROLLING)
    del body["metadata"]["annotations"]
    for given in {}, {"reason": "", "hours": ""}:
        found = of_policy(await lua.after(body, "pause", **given))
        assert found is not None
        assert (found.by, found.reason, found.until) == ("Argo CD", "", "")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles", "Asia/Kathmandu"])
async def test_a_pause_ends_at_the_same_time_wherever_argo_cd_runs(
    lua: Lua, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    found = of_policy(await lua.after(standing(ROLLING), "pause", hours="30"))
    assert found is not None
    assert found.ends is not None
    assert abs(found.ends - datetime.now(UTC) - timedelta(hours=30)) < timedelta(minutes=1)


PAUSED: Final = {
    "gpupartition.dev/paused": "true",
    "gpupartition.dev/paused-reason": "driver upgrade",
    "gpupartition.dev/paused-by": "alice",
}


@pytest.mark.parametrize(
    ("row", "annotations", "spec", "offered", "refused"),
    [
        (ROLLING, {}, {}, {"pause"}, {"resume": "it is not paused", "retry": "nothing has failed"}),
        (ROLLING, {"gpupartition.dev/paused": "false"}, {}, {"pause"}, {}),
        (ROLLING, PAUSED, {}, {"resume"}, {"pause": r"paused already: driver upgrade \(by alice\); resume it first"}),
        (ROLLING, {}, {"paused": True}, {"pause"}, {"resume": "have spec.rollout.paused be false"}),
        (HALTED, {}, {}, {"pause", "retry"}, {}),
    ],
)
async def test_what_makes_no_sense_is_neither_offered_nor_done(
    lua: Lua, row: Row, annotations: Mapping[str, str], spec: Object, offered: set[str], refused: Mapping[str, str]
) -> None:
    body = standing(row, **annotations)
    body["spec"]["rollout"] = spec
    assert await lua.may(body) == offered
    for action, words in refused.items():
        with pytest.raises(TestbedError, match=words):
            await lua.after(body, action)


@pytest.mark.parametrize("hours", ["soon", "-1", "0", "9000", "nan", "inf"])
async def test_a_pause_for_no_number_of_hours_is_refused(lua: Lua, hours: str) -> None:
    with pytest.raises(TestbedError, match=f"hours: {hours} is not between 0 and 8760; leave it empty"):
        await lua.after(standing(ROLLING), "pause", hours=hours)


async def test_a_retry_says_when_who_and_why_as_everybody_says_it(lua: Lua) -> None:
    body = standing(HALTED)
    for given, words in ({}, " by Argo CD"), ({"reason": "GPU 3 was replaced"}, " by Argo CD: GPU 3 was replaced"):
        notes = (await lua.after(body, "retry", **given))["metadata"]["annotations"]
        said = re.fullmatch(r"(\S+Z)(.*)", notes.pop(RETRY))
        assert said is not None
        assert abs(datetime.now(UTC) - datetime.fromisoformat(said[1])) < timedelta(minutes=1)
        assert (said[2], notes) == (words, {})
