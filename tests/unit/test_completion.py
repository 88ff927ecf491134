"""What shells and kubectl are told may be written next, and that the shells' own scripts understand it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from testbed.controlplane import python_env

from gpupartition.__main__ import COMMANDS, main, parser_of
from gpupartition.cli import completion
from gpupartition.cli.candidates import FILES, NO_FILES, candidates, told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

POLICIES: Final = ["inference", "training"]
NODES: Final = ["node-1", "node-2"]


def names(kinds: Sequence[str], cluster: Mapping[str, str]) -> Iterable[str]:
    """Of a cluster that is there unless another context is asked for."""
    if cluster.get("context"):
        return [f"in-{cluster['context']}"]
    return [name for kind in kinds for name in {"POLICY": POLICIES, "NODE": NODES}[kind]]


def asked(*words: str) -> tuple[list[str], str]:
    found, directive = candidates(words, {n: c.help for n, c in COMMANDS.items()}, parser_of, names)
    return [value for value, _ in found], directive


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([""], list(COMMANDS)),
        (["un"], ["unfreeze"]),
        (["nothing", ""], []),
        (["pause", ""], POLICIES),
        (["pause", "inference", ""], POLICIES),
        (["pause", "tr"], ["training"]),
        (["explain", ""], NODES),
        (["explain", "node-1", ""], []),
        (["retry", ""], [*POLICIES, *NODES]),
        (["history", "node-"], NODES),
        (["status", "-o", "j"], ["json"]),
        (["status", "--output=j"], ["--output=json"]),
        (["pause", "--dry-run="], ["--dry-run=client", "--dry-run=none", "--dry-run=server"]),
        (["pause", "--dry-run", ""], POLICIES),
        (["pause", "--until", ""], ["1d", "2h", "30m"]),
        (["pause", "--rea"], ["--reason"]),
        (["pause", "--reason", "inference", "--rea"], []),
        (["plan", "-f", "a.yaml", "--file"], ["--filename"]),
        (["pause", "--reason", ""], []),
        (["pause", "--context", "other", ""], ["in-other"]),
        (["pause", "--context=other", ""], ["in-other"]),
        (["check", "--fail-on", ""], ["failed", "unknown", "warned"]),
        (["check", "--fail-on=failed,w"], ["--fail-on=failed,warned"]),
        (["check", "--fail-on", "failed,warned,"], ["failed,warned,unknown"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["freeze", ""], []),
        ([], list(COMMANDS)),
    ],
)
def test_what_may_come_next(words: list[str], found: list[str]) -> None:
    assert sorted(asked(*words)[0]) == sorted(found)


@pytest.mark.parametrize(
    "words", [["plan", "-f", ""], ["map", "--svg", "a"], ["plan", "--html=a"], ["map", "--kubeconfig", ""]]
)
def test_where_files_are_meant_the_shell_is_left_to_name_them(words: list[str]) -> None:
    assert asked(*words) == ([], FILES)


def test_every_command_can_be_completed_at_every_place() -> None:
    for command in COMMANDS:
        for rest in ([""], ["-"], ["--"], ["x", ""], ["-o", ""], ["--context"]):
            assert asked(command, *rest)[1] in {FILES, NO_FILES}


def test_kubectl_is_answered_in_its_own_words() -> None:
    assert told([("pause", "stop it"), ("node-1", "")], NO_FILES) == "pause\tstop it\nnode-1\n:4"


def test_a_cluster_that_does_not_answer_has_no_names_and_costs_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "kubeconfig"
    assert main(["__complete", "pause", "--kubeconfig", str(nowhere), ""]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == (":4\n", "")


@pytest.mark.parametrize("shell", sorted(completion.SHELLS))
def test_a_script_is_printed_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "__complete" in capsys.readouterr().out


def test_kubectls_own_program_is_installed_beside_the_plugin() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'kubectl_complete-gpp = "gpupartition.__main__:complete"' in project


# ------------------------------------------------------------------------------------------------------------------ in real shells

BASH: Final = """
source "$1"
COMP_LINE="$2" COMP_POINT=${#2}
COMP_WORDBREAKS=$' \\t\\n=:'
_gpupartition
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH: Final = """
compdef() { : }
_describe() { local -a given=("${(@P)3}"); printf '%s\\n' "${(@)given%%:*}" }
_files() { echo files }
source "$1"
words=(${(z)2}); [[ $2 == *' ' ]] && words+=("")
CURRENT=${#words}
_gpupartition
"""
FISH: Final = """
source $argv[1]
complete -C $argv[2] | string replace -r '\\t.*' ''
"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program under its own name, on a PATH."""
    path = tmp_path / "bin" / "gpupartition"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpupartition "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gpupartition un", ["unfreeze"]),
        ("gpupartition status -o n", ["name"]),
        ("gpupartition completion ", ["bash", "fish", "zsh"]),
    ],
)
@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_a_shell_completes(shell: str, line: str, found: list[str], program: Path, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        assert shell != "bash", "every machine of ours has one"
        pytest.skip(f"there is no {shell} on this machine")
    (tmp_path / "script").write_text(completion.SHELLS[shell])
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    asks = [shell, *flags, "-c", SCRIPTS[shell], *([] if shell == "fish" else ["-"]), str(tmp_path / "script"), line]
    env = {**python_env(), "PATH": path, "HOME": str(tmp_path)}
    ran = subprocess.run(asks, env=env, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == found, ran.stderr


def test_bash_gets_only_what_stands_behind_the_sign_at_which_it_cuts_words(program: Path, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(completion.BASH)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    asks = ["bash", "--norc", "-c", BASH, "-", str(tmp_path / "script"), "gpupartition pause --dry-run=s"]
    ran = subprocess.run(asks, env={**python_env(), "PATH": path}, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["server"], ran.stderr
