"""Settings come from the environment; what cannot be used is refused, all of it at once."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

from gpupartition.domain.world import Limits
from gpupartition.settings import _READERS, Settings

REFERENCE = Path(__file__).parents[2] / "docs/reference.md"
LIMIT_NAMES = [f.name for f in fields(Limits)]


def read(**environ: str) -> Settings:
    return Settings.from_environment({f"GPUPARTITION_{k}": v for k, v in environ.items()})


def test_without_any_variable_the_defaults_hold() -> None:
    assert Settings.from_environment({"PATH": "/bin", "HOME": "/"}) == Settings()


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_every_time_limit_can_be_set(name: str) -> None:
    settings = read(**{f"{name.upper()}_SECONDS": "12.5"})
    assert getattr(settings.limits, name) == timedelta(seconds=12.5)
    others = [n for n in LIMIT_NAMES if n != name]
    assert all(getattr(settings.limits, n) == getattr(Limits(), n) for n in others)


@pytest.mark.parametrize("name", ["resync", "summary", "ignore_not_ready"])
def test_every_interval_can_be_set(name: str) -> None:
    assert getattr(read(**{f"{name.upper()}_SECONDS": "0.5"}), name) == timedelta(seconds=0.5)


@pytest.mark.parametrize(
    ("variable", "name", "value"),
    [
        ("NAMESPACE", "namespace", "gpus"),
        ("HOST", "host", "127.0.0.1"),
        ("PORT", "port", 0),
        ("PORT", "port", 65535),
        ("WORKERS", "workers", 8),
    ],
)
def test_everything_else_can_be_set(variable: str, name: str, value: object) -> None:
    assert getattr(read(**{variable: str(value)}), name) == value


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_leader_election_can_be_asked_for(text: str, value: bool) -> None:
    assert read(LEADER_ELECTION=text).leader_election is value


def test_every_field_of_the_settings_has_a_variable() -> None:
    tested = {"namespace", "host", "port", "workers", "leader_election", "read_only"}
    tested |= {"resync", "summary", "ignore_not_ready", "limits"}
    assert {f.name for f in fields(Settings)} == tested


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SETTLE_SECONDS", "soon", "GPUPARTITION_SETTLE_SECONDS='soon' is not a number of seconds, such as 90 or 0.5"),
        ("SETTLE_SECONDS", "", "is not a number of seconds"),
        ("SETTLE_SECONDS", "5s", "is not a number of seconds"),
        ("SETTLE_SECONDS", "nan", "is not a number of seconds"),
        ("SETTLE_SECONDS", "inf", "is not a number of seconds"),
        ("SETTLE_SECONDS", "1e300", "is not a number of seconds"),
        ("SETTLE_SECONDS", "-1", "GPUPARTITION_SETTLE_SECONDS='-1' is negative; write 0 or more"),
        ("SETTLE", "5", "GPUPARTITION_SETTLE is unknown"),
        ("SETTEL_SECONDS", "5", "GPUPARTITION_SETTEL_SECONDS is unknown"),
        ("LEADER_ELECTION", "yes", "GPUPARTITION_LEADER_ELECTION='yes' is neither true nor false"),
        ("PORT", "http", "GPUPARTITION_PORT='http' is not a whole number from 0 to 65535"),
        ("PORT", "-1", "GPUPARTITION_PORT='-1' is not a whole number"),
        ("PORT", "65536", "GPUPARTITION_PORT='65536' is not a whole number from 0 to 65535"),
        ("PORT", "", "is not a whole number"),
        ("PORT", "²", "is not a whole number"),
        ("WORKERS", "2.5", "GPUPARTITION_WORKERS='2.5' is not a whole number"),
        ("WORKERS", "0", "GPUPARTITION_WORKERS='0' is not a whole number from 1 to 256"),
        ("NAMESPACE", "", "GPUPARTITION_NAMESPACE='' is empty; leave the variable out for the default"),
        ("HOST", "", "GPUPARTITION_HOST='' is empty"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(variable: str, value: str, words: str) -> None:
    with pytest.raises(ValueError, match="GPUPARTITION") as refused:
        read(**{variable: value})
    assert words in str(refused.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ValueError, match="GPUPARTITION") as refused:
        read(PORT="x", WORKERS="y", SETTLE_SECONDS="-1", NONSENSE="1")
    for variable in ("PORT", "WORKERS", "SETTLE_SECONDS", "NONSENSE"):
        assert f"GPUPARTITION_{variable}" in str(refused.value)


def test_the_testbeds_own_variables_are_none_of_our_business() -> None:
    assert read(CACHE="/somewhere", KUBECONFIG="/somewhere/else") == Settings()


def test_the_reference_has_every_setting_with_its_default() -> None:
    told: dict[str, str] = {}
    for row in re.findall(r"^\| (`GPUPARTITION_.*?) \| (.*?) \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE):
        variables, values = (
            re.findall(r"GPUPARTITION_(\w+)", row[0]),
            row[1].partition(";")[0].replace("`", "").split(", "),
        )
        told |= dict(zip(variables, values, strict=True))
    assert told == {variable: default(variable) for variable in _READERS}


def default(variable: str) -> str:
    name = variable.removesuffix("_SECONDS").lower()
    value = getattr(Limits() if name in LIMIT_NAMES else Settings(), name)
    return f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value).replace("False", "false")
