"""The command line: what is wrong usage, what could not be planned, and with which words."""

from __future__ import annotations

import socket
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from tests.unit.fleet import policy

from gpupartition.__main__ import main
from gpupartition.cli import plan
from gpupartition.controller.operator import Operator
from gpupartition.domain import plan_summary
from gpupartition.kube import NotFound

NOWHERE = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "c",
}


@pytest.mark.parametrize(("named", "wrong"), [("blocked,late", "late"), ("", ""), (" , ", " , ")])
def test_an_unknown_finding_or_none_at_all_is_wrong_usage(
    named: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", f"--fail-on={named}"])
    assert ended.value.code == 2
    assert f"{wrong!r} is none of blocked, infeasible, failed, evict, unschedulable" in capsys.readouterr().err


def test_every_finding_of_a_plan_can_be_named() -> None:
    assert set(plan.FINDINGS) == {*plan_summary.FINDINGS, plan.UNSCHEDULABLE}


def test_without_a_kubeconfig_nothing_can_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert "no kubeconfig at" in capsys.readouterr().err


@pytest.mark.parametrize("field", ["certificate-authority", "client-certificate"])
def test_a_certificate_that_is_none_is_no_matter_of_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    of_cluster, of_user = ({field: str(broken)} if field.startswith(of) else {} for of in ("certificate", "client"))
    config = NOWHERE | {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", **of_cluster}}],
        "users": [{"name": "u", "user": of_user | ({"client-key": str(broken)} if of_user else {})}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    assert main(["plan", "--kubeconfig", str(tmp_path / "config")]) == 1
    told = capsys.readouterr().err
    assert str(broken) in told
    assert "could not be written" not in told


@pytest.mark.parametrize("content", [b"", b"hello", b"a: [", b"\xff\xfe\x00"])
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_file_that_is_no_kubeconfig_is_named(
    command: str, content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kubeconfig").write_bytes(content)
    assert main([command, "--kubeconfig", str(tmp_path / "kubeconfig")]) == 1
    assert f"{tmp_path / 'kubeconfig'} is no kubeconfig" in capfd.readouterr().err + caplog.text


def test_an_operator_whose_port_is_taken_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(NOWHERE))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("GPUPARTITION_HOST", "127.0.0.1")
        monkeypatch.setenv("GPUPARTITION_PORT", str(taken.getsockname()[1]))
        assert main(["run", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 1
    assert "set GPUPARTITION_PORT" in caplog.text


def test_a_cluster_that_does_not_answer_is_named_with_what_to_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(NOWHERE))
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy()))
    assert main(["plan", "-f", str(tmp_path / "policy.yaml"), "--kubeconfig", str(tmp_path / "kubeconfig")]) == 1
    assert "is this the right kubeconfig and context?" in capsys.readouterr().err


def test_an_operator_that_is_refused_what_it_begins_with_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(NOWHERE))

    async def refused(_: Operator) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("more", [NotFound("list policies", 404, "NotFound", "none")])])

    monkeypatch.setattr(Operator, "run", refused)
    assert main(["run", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 1
    assert "list policies: 404 NotFound: none; see to its rights" in caplog.text
    assert "Traceback" not in caplog.text


def test_who_asks_for_the_version_is_told_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out == f"gpupartition {version('gpupartition')}\n"
