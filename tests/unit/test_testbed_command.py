"""The testbed's command line: what becomes a folder that is deleted whole, and what is said where none can be made."""

from functools import partial
from pathlib import Path

import pytest
from testbed import __main__ as command
from testbed.build import Builder, BuildError
from testbed.demo.__main__ import main as demo
from testbed.nodes import node
from testbed.progress import Progress


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["testbed", *arguments])
    return command.main()


@pytest.mark.parametrize("name", ["", ".", "..", "../../elsewhere", "a/b", "-x"])
def test_a_name_that_leads_out_of_the_cache_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPARTITION_CACHE", str(tmp_path))
    (tmp_path / "state" / "another").mkdir(parents=True)
    for asked in (partial(run, monkeypatch, "down", f"--name={name}"), partial(demo, [f"--name={name}"])):
        with pytest.raises(SystemExit) as ended:
            asked()
        assert ended.value.code == 2
        assert "is no name of a testbed" in capsys.readouterr().err
    assert (tmp_path / "state" / "another").exists()


def test_a_folder_given_as_a_name_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "down", f"--name={tmp_path}")
    assert tmp_path.exists()


def test_a_cache_that_cannot_be_written_to_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUPARTITION_CACHE", str(tmp_path / "file"))
    assert run(monkeypatch, "up") == 1
    assert "set GPUPARTITION_CACHE to a folder that can be written to" in capsys.readouterr().err


def test_a_release_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPARTITION_CACHE", str(tmp_path))
    monkeypatch.setenv("GPUPARTITION_KUBERNETES", "1.35")
    says = "GPUPARTITION_KUBERNETES=1.35: there are 1.37, 1.36"
    assert run(monkeypatch, "up") == 1
    assert capsys.readouterr().out == f"error: {says}\n"
    assert demo([]) == 1
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(("asked", "kubelet"), [("1.37", "v1.37."), ("1.36", "v1.36.")])
def test_nodes_say_that_they_are_of_the_release_that_is_asked_for(
    asked: str, kubelet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPARTITION_KUBERNETES", asked)
    assert node("node-1", zone="a")["status"]["nodeInfo"]["kubeletVersion"].startswith(kubelet)


def test_a_testbed_that_somebody_else_is_starting_is_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPARTITION_CACHE", str(tmp_path))
    record = command.Record(tmp_path / "state" / "mine")
    with record.starting():
        (record.folder / "theirs").touch()
        assert run(monkeypatch, "up", "--name=mine") == 1
        assert "somebody else is starting testbed mine" in capsys.readouterr().err
        assert (record.folder / "theirs").exists()


async def test_nothing_is_built_into_a_cache_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "told").open("w") as told, pytest.raises(BuildError, match="set GPUPARTITION_CACHE"):
        await Builder(cache=tmp_path / "file", progress=Progress(told), env={}).tools()
