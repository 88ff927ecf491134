"""What `pause`, `resume`, `retry`, `freeze` and `unfreeze` write, when they write nothing, and what they say."""

from __future__ import annotations

import argparse
import copy
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.unit.fleet import Fleet, policy
from tests.unit.records import record

from gpupartition.__main__ import main
from gpupartition.api.v1alpha1 import Phase
from gpupartition.cli.options import Unusable
from gpupartition.cli.orders import moment_of
from gpupartition.cli.targets import NODE, POLICY, target
from gpupartition.controller.records import POLICIES
from gpupartition.kinds import NODE_STATES
from gpupartition.kube import CONFIG_MAPS, Conflict, Forbidden, Kind, Listing, NotFound, Object, Unreachable
from gpupartition.names import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NOW: Final = datetime(2026, 12, 1, 6, 0, tzinfo=UTC)
ME: Final = "alice"


class Cluster(Fleet):
    """A fleet that takes writes, each under the version that was read."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.writes: list[str] = []
        self.namespaces = {"gpupartition-system"}
        self.meanwhile: Callable[[], None] | None = None  # happens once, between a read and a write
        self.away: set[str] = set()  # objects of which the server does not answer
        self.shows_records = True

    async def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False
    ) -> Object:
        """Merge."""
        body = await self._written(
            kind, name, patch["metadata"]["resourceVersion"], namespace, "patch", dry_run=dry_run
        )
        if not dry_run:
            into = body["data"] if "data" in patch else body["metadata"].setdefault("annotations", {})
            into.update(patch.get("data", patch["metadata"].get("annotations", {})))
            for key in [k for k, v in into.items() if v is None]:
                del into[key]
        return body

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        """As an API server gives it: a copy of its own."""
        if name in self.away:
            raise Unreachable(f"get {kind} {name}", 0, "Unreachable", "timed out")
        return copy.deepcopy(await super().get(kind, name, namespace=namespace))

    async def list(self, kind: Kind, **options: Any) -> Listing:
        """All, if whoever asks may."""
        if kind is NODE_STATES and not self.shows_records:
            raise Forbidden(f"list {kind}", 403, "Forbidden", "you may not")
        return await super().list(kind, **options)

    async def create(self, kind: Kind, body: Object, *, dry_run: bool = False) -> Object:
        """Keep it."""
        if body["metadata"]["namespace"] not in self.namespaces:
            raise NotFound("create configmaps", 404, "NotFound", "there is no such namespace")
        self.writes.append(f"create {kind}{' dry' if dry_run else ''}")
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        if not dry_run:
            self.objects[kind].append(made)
        return made

    async def delete(
        self, kind: Kind, name: str, *, namespace: str, uid: str, resource_version: str, dry_run: bool
    ) -> None:
        """Forget it."""
        body = await self._written(kind, name, resource_version, namespace, "delete", dry_run=dry_run)
        assert uid == body["metadata"]["uid"]
        if not dry_run:
            self.objects[kind].remove(body)

    async def _written(
        self, kind: Kind, name: str, version: str, namespace: str | None, verb: str, *, dry_run: bool
    ) -> Object:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        body = await super().get(kind, name, namespace=namespace)
        if body["metadata"].get("resourceVersion", "1") != version:
            raise Conflict(f"{verb} {kind} {name}", 409, "Conflict", "somebody was faster")
        self.writes.append(f"{verb} {kind}{' dry' if dry_run else ''}")
        return body

    async def raw(self, method: str, path: str, **_: Any) -> Any:
        """Who asks."""
        assert (method, path.rpartition("/")[2]) == ("POST", "selfsubjectreviews")
        return {"status": {"userInfo": {"username": ME}}}

    def notes(self, name: str = "inference") -> dict[str, str]:
        """The annotations of a policy, by what stands behind their prefix."""
        (body,) = [b for b in self.objects[POLICIES] if b["metadata"]["name"] == name]
        return {key.removeprefix(f"{GROUP}/"): value for key, value in body["metadata"].get("annotations", {}).items()}

    def annotate(self, **notes: str) -> None:
        """Have somebody else write to the policy."""
        (body,) = [b for b in self.objects[POLICIES] if b["metadata"]["name"] == "inference"]
        body["metadata"].setdefault("annotations", {}).update(
            {f"{GROUP}/{key.replace('_', '-')}": value for key, value in notes.items()}
        )
        body["metadata"]["resourceVersion"] += "1"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two nodes and the policy inference; commands come to it."""
    made = Cluster(2)
    for name, labels in (("inference", {"team": "ml"}), ("training", {})):
        made.apply(policy(name))
        made.objects[POLICIES][-1]["metadata"] |= {"resourceVersion": "1", "labels": labels}

    made.is_connected_to(monkeypatch)
    return made


def test_a_pause_says_who_why_and_until_when_and_leaves_the_spec(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    record(cluster, "node-1", Phase.VERIFYING)
    spec = copy.deepcopy(cluster.objects[POLICIES][0]["spec"])
    assert main(["pause", "inference", "--reason", "a move", "--until", "2099-01-01T00:00:00Z"]) == 0
    assert cluster.notes() == {
        "paused": "true",
        "paused-by": ME,
        "paused-reason": "a move",
        "paused-until": "2099-01-01T00:00:00Z",
    }
    assert capsys.readouterr().out == (
        "inference: paused: no further node is taken and nobody is evicted; 1 in flight goes on to the end: node-1 (Verifying)\n"
    )
    assert cluster.objects[POLICIES][0]["spec"] == spec
    assert main(["pause", "inference"]) == 0
    assert "is paused already" in capsys.readouterr().out
    assert cluster.writes == [f"patch {POLICIES}"]


def test_a_pause_of_somebody_else_is_replaced_only_when_that_is_said(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.annotate(paused="true", paused_by="bob", paused_reason="mine")
    assert main(["pause", "inference", "--reason", "another"]) == 1
    assert capsys.readouterr().err == "error: inference: it is paused: mine (by bob); --overwrite replaces that\n"
    assert main(["pause", "inference", "--reason", "another", "--overwrite"]) == 0
    assert (cluster.notes()["paused-by"], cluster.notes()["paused-reason"]) == (ME, "another")


def test_of_ones_own_pause_what_is_not_said_anew_stays(cluster: Cluster) -> None:
    assert main(["pause", "inference", "--reason", "a move"]) == 0
    assert main(["pause", "inference", "--until", "2099-01-01T00:00:00Z"]) == 0
    notes = cluster.notes()
    assert (notes["paused-reason"], notes["paused-until"]) == ("a move", "2099-01-01T00:00:00Z")


def test_what_cannot_be_paused_keeps_no_other_policy_from_being_paused(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.annotate(paused="true", paused_by="bob")
    assert main(["pause", "inference", "training", "--reason", "mine", "-o", "json"]) == 1
    told = capsys.readouterr()
    assert [(o["failed"], o["changed"]) for o in json.loads(told.out)["objects"]] == [(True, False), (False, True)]
    assert told.err.startswith("error: inference: it is paused")
    assert (cluster.notes()["paused-by"], cluster.notes("training")["paused-by"]) == ("bob", ME)


@pytest.mark.parametrize("command", [["pause", "inference"], ["freeze"]], ids=" ".join)
def test_a_brake_that_is_written_is_in_force_whether_or_not_records_may_be_listed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    cluster.shows_records = False
    assert main(command) == 0
    told = capsys.readouterr()
    unread = (
        f"who is in flight, and goes on to the end, could not be read: list {NODE_STATES}: 403 Forbidden: you may not"
    )
    assert unread in told.out
    assert ("nobody is evicted; " in told.out, told.err) == (True, "")
    assert len(cluster.writes) == 1
    assert main([*command, "-o", "json"]) == 0
    (about,) = json.loads(capsys.readouterr().out)["objects"]
    assert (about["failed"], about["inFlight"]) == (False, None)


@pytest.mark.parametrize("command", ["pause", "resume", "retry"])
def test_a_server_that_is_away_for_one_policy_hides_nothing_of_the_others(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for number, name in enumerate(("inference", "training", "tests"), 1):
        cluster.apply({**policy(name), "metadata": {"name": name, "annotations": {f"{GROUP}/paused": "true"}}})
        cluster.objects[POLICIES][-1]["metadata"] |= {"resourceVersion": "1"}
        record(cluster, f"node-{number}", Phase.FAILED, policy=name)
    cluster.away = {"training"}
    assert main([command, "inference", "training", "tests", *(["--overwrite"] if command == "pause" else [])]) == 1
    told = capsys.readouterr()
    assert [line.partition(":")[0] for line in told.out.splitlines()] == ["inference", "tests"]
    assert told.err.startswith(f"error: training: get {POLICIES} training: Unreachable: timed out; is the cluster up")


def test_who_may_not_freeze_is_told_the_role_by_which_one_may(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create(*_: object, **__: object) -> Object:
        raise Forbidden("create configmaps gpupartition-system", 403, "Forbidden", "you may not")

    monkeypatch.setattr(cluster, "create", create)
    assert main(["freeze"]) == 1
    assert "bind the Role gpupartition-operate (manifests/base/operate.yaml)" in capsys.readouterr().err


def test_a_freeze_where_no_operator_can_be_is_told(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.namespaces = {"elsewhere"}
    assert main(["freeze"]) == 1
    assert "there is no namespace gpupartition-system; name that of the operator with -n" in capsys.readouterr().err
    assert main(["freeze", "-n", "elsewhere"]) == 0


def test_who_pauses_in_the_same_moment_is_not_overwritten(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.meanwhile = lambda: cluster.annotate(paused="true", paused_by="bob")
    assert main(["pause", "inference", "--reason", "mine"]) == 1
    assert "(by bob)" in capsys.readouterr().err
    assert (cluster.notes()["paused-by"], cluster.writes) == ("bob", [])


def test_a_status_that_the_operator_writes_meanwhile_changes_nothing(cluster: Cluster) -> None:
    cluster.meanwhile = cluster.annotate
    assert main(["pause", "inference"]) == 0
    assert cluster.notes()["paused-by"] == ME


def test_a_pause_that_is_over_is_no_pause(cluster: Cluster) -> None:
    cluster.annotate(paused="true", paused_by="bob", paused_until="2020-01-01T00:00:00Z", paused_reason="old")
    assert main(["pause", "inference"]) == 0
    assert cluster.notes() == {"paused": "true", "paused-by": ME}


@pytest.mark.parametrize(
    "command", [["pause", "inference"], ["freeze", "--reason", "mine"], ["unfreeze"]], ids=lambda words: words[0]
)
def test_what_somebody_writes_to_all_the_time_is_left_alone_at_last(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main(["freeze", "--reason", "a move"]) == 0

    def happens() -> None:
        for each in (*cluster.objects[POLICIES], *cluster.objects[CONFIG_MAPS]):
            each["metadata"]["resourceVersion"] = each["metadata"].get("resourceVersion", "1") + "1"
        cluster.meanwhile = happens

    cluster.meanwhile = happens
    wrote = list(cluster.writes)
    assert main(command) == 1
    assert "somebody writes to it all the time, and nothing was written; try again" in capsys.readouterr().err
    assert cluster.writes == wrote


@pytest.mark.parametrize("dry_run", ["client", "server"])
@pytest.mark.parametrize("command", [["pause", "inference"], ["freeze"]], ids=" ".join)
def test_a_dry_run_stores_nothing(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], command: list[str], dry_run: str
) -> None:
    assert main([*command, f"--dry-run={dry_run}"]) == 0
    assert "dry run)" in capsys.readouterr().out
    assert cluster.notes() == {}
    assert cluster.objects[CONFIG_MAPS] == []
    assert all(write.endswith(" dry") for write in cluster.writes)
    assert bool(cluster.writes) is (dry_run == "server")


def test_resume_takes_all_back_and_tells_of_a_pause_that_it_must_not_touch(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.annotate(paused="true", paused_by="bob", retry="1")
    assert main(["resume", "inference"]) == 0
    assert capsys.readouterr().out == "inference: resumed; it was paused: no reason was given (by bob)\n"
    assert cluster.notes() == {"retry": "1"}
    assert main(["resume", "inference"]) == 0
    assert capsys.readouterr().out == "inference: is not paused\n"
    cluster.objects[POLICIES][0]["spec"]["rollout"] = {"paused": True}
    assert main(["resume", "inference"]) == 1
    assert "spec.rollout.paused be false where the policy is kept" in capsys.readouterr().err


def test_a_pause_that_was_over_is_not_told_as_one_that_held(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.annotate(paused="true", paused_by="bob", paused_until="2020-01-01T00:00:00Z", paused_reason="old")
    assert main(["resume", "inference"]) == 0
    assert capsys.readouterr().out == (
        "inference: is not paused any more, and what said so is taken away: old (by bob, until 2020-01-01T00:00:00Z)\n"
    )
    assert cluster.notes() == {}


def test_a_retry_of_a_node_keeps_those_of_others_that_still_wait_and_asks_nobody_else(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    record(cluster, "node-1", Phase.ROLLED_BACK, reason="VerifyingFailed")
    record(cluster, "node-2", Phase.FAILED)
    cluster.annotate(retry_nodes="node-1=before,node-9=gone")
    assert main(["retry", "node-2", "--reason", "a, b=c"]) == 0
    assert capsys.readouterr().out == "node-2: asked to try again: node-2 (Failed)\n"
    asked = dict(pair.split("=", 1) for pair in cluster.notes()["retry-nodes"].split(","))
    assert asked.keys() == {"node-1", "node-2"}
    assert asked["node-1"] == "before"
    assert asked["node-2"].endswith(f" by {ME}: a  b c")
    assert "retry" not in cluster.notes()


def test_a_retry_of_a_policy_asks_for_all_and_of_what_did_not_fail_for_nothing(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    record(cluster, "node-1", Phase.UP_TO_DATE)
    assert main(["retry", "inference"]) == main(["retry", "node-1"]) == 0
    assert cluster.writes == []
    record(cluster, "node-2", Phase.SKIPPED, reason="DriftUnrepaired")
    cluster.annotate(paused="true")
    capsys.readouterr()
    assert main(["retry", "inference"]) == 0
    told = capsys.readouterr().out
    assert told == (
        "inference: asked to try again: node-2 (DriftUnrepaired); inference is paused: they wait until it is resumed\n"
    )
    assert cluster.notes()["retry"].endswith(f" by {ME}")


def test_a_name_that_two_things_have_has_to_be_told_apart() -> None:
    assert target("a", ["a"], []) == (POLICY, "a")
    assert target("node/a", ["a"], ["a"]) == target(f"{NODE}/a", ["a"], ["a"]) == (NODE, "a")
    with pytest.raises(Unusable, match="a policy and a node; write policy/a or node/a"):
        target("a", ["a"], ["a"])
    with pytest.raises(Unusable, match="neither policy nor node"):
        target("pod/a", ["a"], ["a"])
    with pytest.raises(Unusable, match="that is called b"):
        target("policy/b", ["a"], ["b"])


def test_a_freeze_is_written_once_replaced_on_demand_and_taken_back(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["freeze", "--reason", "a move"]) == 0
    (body,) = cluster.objects[CONFIG_MAPS]
    assert body["data"] == {"frozen": "true", "by": ME, "reason": "a move"}
    assert main(["freeze"]) == 0
    assert "frozen already" in capsys.readouterr().out
    body["data"]["by"] = "bob"
    assert main(["freeze", "--reason", "mine"]) == 1
    assert capsys.readouterr().err == "error: everything is frozen: a move (by bob); --overwrite replaces that\n"
    assert main(["freeze", "--until", "2099-01-01T00:00:00Z", "--overwrite"]) == 0
    assert body["data"] == {"frozen": "true", "by": ME, "until": "2099-01-01T00:00:00Z"}
    assert main(["unfreeze"]) == main(["unfreeze"]) == 0
    assert capsys.readouterr().out.endswith("nothing is frozen\n")
    assert cluster.objects[CONFIG_MAPS] == []


@pytest.mark.usefixtures("cluster")
def test_policies_have_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("pause", "resume", "retry"):
        assert main([command]) == 1
        assert "-l" in capsys.readouterr().err
        assert main([command, "nowhere"]) == 1
        assert "nowhere" in capsys.readouterr().err
    assert main(["pause", "inference", "training", "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == [f"{POLICY}/inference", f"{POLICY}/training"]


@pytest.mark.parametrize(
    ("text", "at"),
    [("90s", "06:01:30"), ("1h30m", "07:30:00"), ("2026-12-01T09:00:00+02:00", "07:00:00")],
)
def test_times_are_durations_or_times_with_their_zone(text: str, at: str) -> None:
    assert moment_of(text, NOW) == f"2026-12-01T{at}Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        "h",
        "tomorrow",
        "2026-12-01T09:00:00",
        "2026-12-01",
        "2020-01-01T00:00:00Z",
        "0s",
        "999999d" * 9,
        "9999-12-31T23:59:59-10:00",
        "0001-01-01T00:00:00+10:00",
    ],
)
def test_what_is_no_time_to_come_is_wrong_usage(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        moment_of(text, NOW)
