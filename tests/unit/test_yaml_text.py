"""YAML and JSON of others: read as kubectl reads it, or refused with the line, in bounded time and memory."""

from __future__ import annotations

from typing import Any, Final

import pytest
import yaml

from gpupartition.domain import yaml_text
from gpupartition.domain.yaml_text import DEEPEST, LARGEST, Illegible, documents

PARSERS: Final = [yaml.SafeLoader, *([yaml.CSafeLoader] if yaml.__with_libyaml__ else [])]


@pytest.fixture(params=PARSERS, ids=lambda parser: parser.__name__, autouse=True)
def _parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of PyYAML's parsers there is on a machine."""
    monkeypatch.setattr(yaml_text, "_LOADER", request.param)


def read(text: str) -> list[Any]:
    return [body for _, body in documents(text)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 8), ("08", 8), ("0o10", 8), ("0b11", 3), ("0x1F", 31), ("-0x1F", -31), ("1_000", 1000), ("+1", 1), ("-0", 0),
        ("1e3", 1000.0), ("1.5E3", 1500.0), ("1.", 1.0), (".5", 0.5), ("0.1_0", 0.1), ("1e+3", 1000.0),
        ("1:30", "1:30"), ("22:00", "22:00"), ("2026-11-30", "2026-11-30"), ("1e400", "1e400"), ("0o8", "0o8"), ("0x", "0x"), ("_1", "_1"),
        ("yes", True), ("y", True), ("on", True), ("True", True), ("n", False), ("No", False), ("OFF", False),
        ("", None), ("~", None), ("Null", None), ("<<", "<<"), ("=", "="),
        ("'1'", "1"), ("! 3", "3"), ("!!str 1", "1"), ('!!int "3"', 3), ("!!float 3", 3.0),
    ],
)  # fmt: skip
def test_scalars_are_what_kubectl_takes_them_for(text: str, value: object) -> None:
    (found,) = read(f"a: {text}")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


def test_keys_are_texts_as_in_json() -> None:
    assert read("{1: a, true: b, 1.5: c, 2026-11-30: d, 2e3: e}") == [
        {"1": "a", "true": "b", "1.5": "c", "2026-11-30": "d", "2000": "e"}
    ]


def test_what_is_merged_gives_way_to_what_is_written_and_the_first_to_the_others() -> None:
    text = "x: &x {a: 1, b: 2}\nz: &z {a: 3, c: 4}\none: {b: 5, <<: *x}\nboth: {<<: [*z, *x]}"
    assert read(text)[0]["one"] == {"a": 1, "b": 5}
    assert read(text)[0]["both"] == {"a": 3, "b": 2, "c": 4}


def test_json_is_read_as_json() -> None:
    assert read('\ufeff {\n\t"a": "\\ud83d\\ude00"}\n{"b": 1}\n') == [{"a": "\U0001f600"}, {"b": 1}]
    assert read('{"' + "k" * 3000 + '": 1}') == [{"k" * 3000: 1}]


def test_each_document_is_told_with_its_line() -> None:
    assert list(documents("a: 1\n--- # more\nb: 2\n...\n---\n[]\n")) == [(1, {"a": 1}), (2, {"b": 2}), (5, [])]
    assert list(documents('\n{"a": 1}\n\n{}')) == [(2, {"a": 1}), (4, {})]


BOMB: Final = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: " + "9" * 100_000, "line 2: a number of 100000 digits; write one that fits into 64 bits"),
        ("a: 0x" + "f" * 1_000_000, "line 1: a number of 1000002 digits"),
        ('{"a": ' + "9" * 100_000 + "}", "line 1: a number of 100000 digits"),
        ("[" * 100_000, "line 1: "),
        ("{a: " * 200 + "}" * 200, f"line 1: more than {DEEPEST} maps and lists in one another"),
        ('{"a":' * 5000 + "1" + "}" * 5000, f"line 1: more than {DEEPEST} maps and lists in one another"),
        ("".join(" " * n + "a:\n" for n in range(200)), f"line {DEEPEST + 1}: more than {DEEPEST} maps and lists"),
        ("- " * 500, f"line 1: more than {DEEPEST} maps and lists in one another"),
        (BOMB, "line 7: up to here the document comes to more than 4 MiB, with what its aliases stand for"),
        (BOMB.replace("[x, x, x, x, x, x, x, x, x]", "{x: 1}").replace("[", "{<<: [").replace("]", "]}"), "line 7: up to here"),
        ("a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 100 + "]", "line 2: up to here the document comes to more than 4 MiB"),
        ("a: &a {b: [*a]}", "line 1: &a contains itself; write what is meant in full"),
        ("a: *b", "line 1: there is no anchor &b before; write one"),
        ("--- &a x\n--- *a", "line 2: there is no anchor &a before"),
        ("a: !!python/object/apply:os.system [ls]", "line 1: the tag !!python/object/apply:os.system says nothing here; leave it out"),
        ("a:\n- !!binary aGk=", "line 2: the tag !!binary says nothing here"),
        ("a: !!int x", "line 1: the tag !!int says nothing here"),
        ("!!set {a}", "line 1: the tag !!set says nothing here"),
        ("a: 1\nb: 2\na: 3", "line 3: the key a is there already; keep one of them"),
        ('{"a": 1,\n"a": 2}', "line 2: the key a is there already"),
        ("1: a\n'1': b", "line 2: the key 1 is there already"),
        ("~: a", "line 1: null, a map or a list is no key; write a text"),
        ("? [a]\n: b", "line 1: null, a map or a list is no key"),
        ("a: {<<: 3}", "line 1: << takes a map, or a list of maps; write one"),
        ("a: b\nc: \0", "line 2: the character U+0000, which no text has; remove it"),
        ("a: \x1b[2J", "line 1: the character U+001B"),
        ("a: \ud800", "line 1: the character U+D800"),
        ('a: "\\ud800"', "line 1: "),
        ('{"a": "\\udfff"}', "line 1: "),
        ("a:\n\tb: 1", "line 2: not YAML: "),
        ("a: b: c", "line 1: not YAML: mapping values are not allowed"),
        ("a: 1\n" * (1 + yaml_text.LONGEST // 5), "line 1: longer than 8 MiB; keep of it what is needed here"),
        ('{"a": "' + "x" * LARGEST + '"}', "line 1: up to here the document comes to more than 4 MiB"),
    ],
    ids=lambda text: repr(text[:40]),
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_line_and_what_to_do(text: str, says: str) -> None:
    with pytest.raises(Illegible) as illegible:
        read(text)
    assert str(illegible.value).startswith(says)
    assert len(str(illegible.value)) < 300


def test_what_lies_as_deep_as_anything_may_is_read() -> None:
    assert read("[" * DEEPEST + "]" * DEEPEST)
    assert read('{"a":' * DEEPEST + "1" + "}" * DEEPEST)
    assert read("{a: " * DEEPEST + "1" + "}" * DEEPEST)
