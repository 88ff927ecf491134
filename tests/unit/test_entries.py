"""Config that layouts share: entries come, stay as they are, are counted as used, and go, and nothing else in there is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from gpupartition.domain import entries
from gpupartition.domain.entries import Document, Unreadable, identity, is_there, used, waits_for_rest, written
from gpupartition.domain.yaml_text import documents
from gpupartition.names import ENTRIES

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = T0 + timedelta(hours=1)
FILE = Document(
    namespace="gpus", name="layouts", file="config.yaml", under="layouts", frame={"version": 1, "layouts": {"none": []}}
)


def config_map(text: str, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "gpus", "name": "layouts", "resourceVersion": "3", **meta},
        "data": {"config.yaml": text},
    }


def in_file(body: dict[str, Any]) -> Any:
    return yaml.safe_load(body["data"]["config.yaml"])


def test_the_first_entry_makes_the_document() -> None:
    made = FILE.with_entry(None, "a", [1], T0)
    assert (made["apiVersion"], made["kind"], made["metadata"]["name"]) == ("v1", "ConfigMap", "layouts")
    assert in_file(made) == {"version": 1, "layouts": {"none": [], "a": [1]}}


def test_a_document_of_json_stays_one() -> None:
    of_json = Document(namespace="gpus", name="layouts", file="config.json", under="layouts", frame={"layouts": {}})
    assert json.loads(of_json.with_entry(None, "a", [1], T0)["data"]["config.json"]) == {"layouts": {"a": [1]}}


def test_an_entry_is_written_once_and_used_again_and_again() -> None:
    first = FILE.with_entry(None, "a", [1], T0)
    again = FILE.with_entry(first, "a", [1], LATER)
    entry = FILE.entry("a", [1])
    assert (written(entry, again), used(entry, again)) == (T0, LATER)
    assert in_file(again) == in_file(first)


def test_an_entry_that_was_changed_is_young_again() -> None:
    changed = config_map(FILE.with_entry(None, "a", [2], T0)["data"]["config.yaml"])
    entry = FILE.entry("a", [1])
    assert not is_there(entry, changed)
    assert (written(entry, changed), used(entry, changed)) == (None, None)
    mended = FILE.with_entry(changed, "a", [1], LATER)
    assert (is_there(entry, mended), written(entry, mended)) == (True, LATER)


def test_an_entry_that_somebody_else_wrote_is_as_young_as_its_first_use() -> None:
    theirs = config_map("layouts: {a: [1]}")
    entry = FILE.entry("a", [1])
    assert (is_there(entry, theirs), written(entry, theirs)) == (True, None)
    assert written(entry, FILE.with_entry(theirs, "a", [1], LATER)) == LATER


def test_only_entries_of_ours_are_ours_and_only_they_go() -> None:
    theirs = config_map("layouts: {theirs: [1]}\nmore: true", annotations={"a": "b"}, labels={"c": "d"})
    both = FILE.with_entry(theirs, "a", [1], T0)
    assert set(FILE.ours(both)) == {"a"}
    gone = FILE.without(both, {"a"}, LATER)
    assert in_file(gone) == {"version": 1, "layouts": {"none": [], "theirs": [1]}, "more": True}
    assert set(FILE.ours(gone)) == set()
    assert gone["metadata"]["annotations"]["a"] == "b"
    assert gone["metadata"]["labels"]["c"] == "d"
    assert gone["metadata"]["resourceVersion"] == "3"


HOSTILE = [
    "[" * 100_000,
    "a: " + "9" * 100_000,
    "a: &a {b: *a}",
    "a: 1\na: 2",
    "a: !!python/name:os.system",
    "a: 1\n---\nb: 2",
]


@pytest.mark.parametrize("text", ["{", "[]", "layouts: []", "a", *HOSTILE], ids=lambda text: text[:20])
def test_a_document_of_another_shape_is_never_written_over(text: str) -> None:
    with pytest.raises(Unreadable):
        FILE.with_entry(config_map(text), "a", [1], T0)
    assert not is_there(FILE.entry("a", [1]), config_map(text))


def test_what_cannot_be_read_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text, looked = "layouts: {a: [1], a: [2]}", list[str]()

    def look(text: str) -> Iterator[tuple[int, Any]]:
        looked.append(text)
        return documents(text)

    monkeypatch.setattr(entries, "documents", look)
    for _ in range(3):
        with pytest.raises(Unreadable, match="line 1: the key a is there already; keep one of them"):
            FILE.read(config_map(text))
    assert looked == [text]


STAMPS = [{"a": 1}, {"a": {"used": 5, "written": "soon"}}, {"a": {"used": "2026-11-30", "written": None}}]


@pytest.mark.parametrize(
    "note", ["", "{", "[]", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", *map(json.dumps, STAMPS)], ids=lambda n: n[:20]
)
def test_a_note_that_nobody_can_read_makes_every_entry_new(note: str) -> None:
    text = FILE.with_entry(None, "a", [1], T0)["data"]["config.yaml"]
    spoilt = config_map(text, annotations={ENTRIES: note})
    assert used(FILE.entry("a", [1]), spoilt) is None
    assert written(FILE.entry("a", [1]), FILE.with_entry(spoilt, "a", [1], LATER)) == LATER


def test_entries_of_one_document_are_told_apart() -> None:
    assert identity(FILE.entry("a", [1])) != identity(FILE.entry("b", [1]))


# ------------------------------------------------------------------------- a document whose every edit has drivers start over


RERUNS = Document(
    namespace="gpus", name="layouts", file="config.json", under="layouts", frame={"layouts": {}}, reruns=True
)
BY_HAND = '{"layouts":   {"a": [1]}}'


def by_hand() -> dict[str, Any]:
    return config_map("") | {"data": {"config.json": BY_HAND}}


def test_to_say_that_an_entry_is_in_use_edits_nothing() -> None:
    used_now = RERUNS.with_entry(by_hand(), "a", [1], T0)
    assert used_now["data"]["config.json"] == BY_HAND
    assert used(RERUNS.entry("a", [1]), used_now) == T0
    assert used(RERUNS.entry("a", [1]), RERUNS.with_entry(used_now, "a", [1], LATER)) == LATER


def test_every_edit_makes_all_entries_young_where_each_has_drivers_start_over() -> None:
    first = RERUNS.with_entry(None, "a", [1], T0)
    second = RERUNS.with_entry(first, "b", [2], LATER)
    assert written(RERUNS.entry("a", [1]), first) == T0
    assert written(RERUNS.entry("a", [1]), second) == LATER


def test_to_remove_an_entry_is_an_edit_too() -> None:
    both = RERUNS.with_entry(RERUNS.with_entry(None, "a", [1], T0), "b", [2], T0)
    shorter = RERUNS.without(both, {"b"}, LATER)
    assert written(RERUNS.entry("a", [1]), shorter) == LATER
    assert set(RERUNS.ours(shorter)) == {"a"}


def test_only_where_drivers_would_start_over_has_an_edit_to_wait() -> None:
    there = RERUNS.with_entry(None, "a", [1], T0)
    assert waits_for_rest(RERUNS.entry("b", [1]), there)
    assert waits_for_rest(RERUNS.entry("a", [2]), there)
    assert waits_for_rest(RERUNS.entry("a", [1]), None)
    assert not waits_for_rest(RERUNS.entry("a", [1]), there)
    assert not waits_for_rest(FILE.entry("a", [1]), None)
