"""What `make bench` makes of its numbers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.bench import __main__ as bench
from tests.bench.bench_overhead import Run, _same_work, _typical_way, _writes
from tests.bench.figures import Figure
from tests.bench.script import Together

if TYPE_CHECKING:
    from pathlib import Path


def request(verb: str, resource: str, name: str, *, code: int = 200, at: int = 0, **more: Any) -> dict[str, Any]:
    """A line of the audit log."""
    return {
        "verb": verb,
        "objectRef": {"resource": resource, "name": name, **more},
        "requestURI": f"/{resource}",
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{at:02}Z",
    }


def test_whatever_was_counted_can_be_printed_for_programs() -> None:
    figure = Figure(name="requests", value=2, rounds=[Counter(["get nodes", "get nodes"])])
    assert json.loads(json.dumps(figure.json()))["rounds"] == [{"get nodes": 2}]


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (1.1, 1)])
def test_a_number_beyond_its_bound_fails_and_is_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, code: int
) -> None:
    told, bounded = Figure(name="told", value=99), Figure(name="bounded", value=value, bound=1.0)
    monkeypatch.setattr(bench, "_apart", lambda _: [told, bounded])
    report = tmp_path / "report.json"
    assert bench.main(["plan", "--json", str(report)]) == code
    figures = json.loads(report.read_text())["figures"]
    assert [(each["name"], each["within"]) for each in figures] == [("told", True), ("bounded", not code)]


def test_a_measurement_that_there_is_not_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        bench.main(["plam"])
    assert "there is no measurement plam; there are: admission, " in capsys.readouterr().err


def test_what_was_refused_or_only_tried_is_no_write() -> None:
    tried = request("create", "daemonsets", "d")
    tried["requestURI"] += "?dryRun=All"
    log = [
        request("update", "drivers", "d", at=2, subresource="status"),
        request("create", "rules", "r", at=1),
        request("update", "rules", "r", code=409),
        request("get", "rules", "r"),
        tried,
    ]
    assert _writes(log) == [("create rules", "r"), ("update drivers/status", "d")]


def test_a_typical_way_is_that_of_most_nodes() -> None:
    made = [("create records", "a"), ("create records", "b"), ("patch nodes", "a"), ("create rules", "gpp-a-1f")]
    made += [("create records", "c"), ("patch nodes", "c"), ("create rules", "gpp-c-2e"), ("update drivers", "d")]
    assert _typical_way(made, ["a", "b", "c"]) == ("create records", "patch nodes", "create rules")


def test_a_script_that_writes_something_else_is_no_comparison() -> None:
    def run(who: str, *way: str) -> Run:
        return Run(who=who, nodes=1, seconds=1, cpu=1, writes={}, way=way)

    _same_work([run("operator", "a", "b"), run("script", "a", "b")])
    with pytest.raises(AssertionError, match=r"have tests/bench/script.py write what the operator writes by now"):
        _same_work([run("operator", "a", "b"), run("script", "b", "a")])


async def test_those_who_ask_for_a_write_while_one_is_under_way_share_the_next() -> None:
    writes, begun, go = 0, asyncio.Event(), asyncio.Event()

    async def write() -> None:
        nonlocal writes
        writes += 1
        begun.set()
        await go.wait()

    together = Together(write)
    first = asyncio.create_task(together())
    await begun.wait()
    others = [asyncio.create_task(together()) for _ in range(5)]
    go.set()
    await asyncio.gather(first, *others)
    assert writes == 2
