"""What `profiles` says of GPUs, and by which names they may be called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from testbed.controlplane import python_env

from gpupartition.__main__ import main
from gpupartition.cli import profiles
from gpupartition.cli.paint import rendered
from gpupartition.tables import amd, mig

if TYPE_CHECKING:
    from gpupartition.domain.amd_modes import AmdModel
    from gpupartition.domain.mig import GpuModel

KNOWN: Final[list[GpuModel | AmdModel]] = [*mig.builtin(), *amd.builtin()]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["profiles", *arguments]) == 0
    return capsys.readouterr().out


def test_a_model_of_nvidia_tells_what_each_profile_takes_and_where_it_may_begin() -> None:
    lines = rendered(profiles.pictured(profiles.look_up("A30-24GB"), datetime.now(UTC)), colour=False).splitlines()
    assert lines[:4] == [
        "A30-24GB (NVIDIA Ampere): 4 memory slices, 4 compute slices",
        "NVIDIA A30",
        "",
        "PROFILE      COMPUTE   SLICES   MEMORY      AT MOST   BEGINS AT",
    ]
    assert "2g.12gb      2         2        11968 MiB   2         0 2" in lines


def test_a_model_of_amd_tells_its_modes_and_how_far_they_are_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "MI300X").splitlines()
    assert "CPX/NPS4   8            validated" in lines
    assert "CPX/NPS1   8            driver-allowed" in lines


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("A100-40GB", ["A100-40GB"]),
        ("NVIDIA A100-SXM4-40GB", ["A100-40GB"]),  # as the driver spells it
        ("NVIDIA-A100-SXM4-40GB", ["A100-40GB"]),  # as a label does
        ("a100", ["A100-40GB", "A100-80GB"]),
        ("AMD_Instinct_MI300X_OAM", ["MI300X"]),
        ("mi300x", ["MI300X"]),
        ("mi35", ["MI350X", "MI355X", "MI350P"]),
    ],
)
def test_a_gpu_may_be_called_by_its_model_its_product_or_a_part_of_either(name: str, models: list[str]) -> None:
    assert [model.name for model in profiles.look_up(name)] == models


def test_every_model_is_found_by_its_own_name_alone() -> None:
    for model in KNOWN:
        assert profiles.look_up(model.name) == [model]


def test_a_name_that_is_near_others_is_told_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "A1000-80GB"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no GPU is known that is called A1000-80GB; near are A100-80GB, ")


def test_names_are_those_that_a_policy_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "A30", "-o", "name").splitlines() == ["1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"]
    assert told(capsys, "-o", "name").splitlines() == [model.name for model in KNOWN]


def test_programs_are_told_the_same_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "-o", "json"))
    assert yaml.safe_load(told(capsys, "-o", "yaml")) == found
    (a30,) = [model for model in found["models"] if model["model"] == "A30-24GB"]
    (half,) = [each for each in a30["profiles"] if each["profile"] == "2g.12gb"]
    assert (half["computeSlices"], half["memorySlices"], half["most"], half["starts"]) == (2, 2, 2, [0, 2])


def test_whoever_closes_the_pipe_has_seen_enough() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gpupartition", "profiles"]
    ended = subprocess.run(command, env=python_env(), stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")
