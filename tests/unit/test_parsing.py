"""JSON that is more than its parsers read: too deep, too large, no text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupartition.kube.parsing import DEEPEST, parsed

ENDLESS = 9900  # levels; an API server takes 10,000


@pytest.mark.parametrize(("opens", "closes"), ["[]", ('{"a":', "}"), ('[{"]":[', "]}]")])
def test_what_is_too_deep_is_cut_off_and_all_else_is_as_it_was(opens: str, closes: str) -> None:
    deep = f"{opens * ENDLESS}{'1' if ':' in opens else ''}{closes * ENDLESS}"
    found = parsed(f'{{"before": "\\\\\\"[{{", "deep": {deep}, "after": [{{"b": [1]}}, "]}}"]}}'.encode())
    assert {**found, "deep": None} == {"before": '\\"[{', "deep": None, "after": [{"b": [1]}, "]}"]}
    level, depth = found["deep"], 0
    while level is not None:
        level, depth = next(iter(level.values() if isinstance(level, dict) else level)), depth + 1
    assert depth == DEEPEST - 2


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_is_beside_it_is_read_as_json_has_it(value: object) -> None:
    text = json.dumps(value)
    assert parsed(f"[{text}, {'[' * ENDLESS}{']' * ENDLESS}, {text}]".encode())[::2] == [value, value]


@pytest.mark.parametrize("text", ["[" * ENDLESS, "]" * ENDLESS, "[" * ENDLESS + "}" * ENDLESS, '{"a":' * ENDLESS, '"'])
def test_what_is_no_json_stays_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        parsed(text.encode())


def test_numbers_beyond_all_bounds_and_bytes_that_are_no_text_spoil_nothing_beside_them() -> None:
    text = (
        b'{"huge": 123456789012345678901234567890, "vast": 1e999, "torn": "\xff", "lone": "\\ud800", "good": [1, "a"]}'
    )
    found = parsed(text)
    assert found["good"] == [1, "a"]
    assert found.keys() == {"huge", "vast", "torn", "lone", "good"}
