"""The rules of the API as they are read without an API server: as CEL has it, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from gpupartition.domain.cel import function


@pytest.mark.parametrize(
    ("expression", "value", "comes_to"),
    [
        ("true || self.missing && self.missing", {}, True),
        ("false && self.missing || self.a == 1", {"a": 1}, True),
        ("!(self in [1, 2]) && self != 3", 3, False),
        ("self > 1 ? (self > 2 ? 'many' : 'two') : 'one'", 2, "two"),
        ("self - 1 - 1 + 10", 5, 13),
        ("has(self.a) && has(self.a.b)", {"a": {}}, False),
        ("self.filter(k, k.startsWith('a'))[0] + '!'", {"b": 1, "ab": 2}, "ab!"),
        ("self.all(x, self.exists_one(y, y == x))", ["a", "b", "a"], False),
        ("self.exists(x, x.size() > size(self))", ["abc", "d"], True),
        ("type(self) == int ? self >= 0 : self.matches('^[0-9]%$')", "5%", True),
        ("self.matches('^[0-9]%$')", "5%\n", False),
        ("isQuantity(self) && quantity(self).isGreaterThan(quantity('1Gi'))", "1025Mi", True),
        ("isQuantity(self)", "40 GB", False),
        ("quantity(self).compareTo(quantity('1000M'))", "1G", 0),
    ],
)
def test_an_expression_comes_to_what_cel_has_it_come_to(expression: str, value: Any, comes_to: object) -> None:
    assert function(expression)(value) == comes_to


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ("qualifiedName", ["pool", "a.b/C_d", "x" * 63], ["", "/", "a/", "/a", "a/b/c", "a b", "A.b/c", "x" * 64]),
        ("labelValue", ["", "a", "A.b_c-d", "x" * 63], [" ", "-a", "a.", "a/b", "x" * 64]),
        ("dns1123Label", ["a", "a-1", "x" * 63], ["", "A", "a.b", "-a", "x" * 64]),
    ],
)
def test_a_format_fits_what_kubernetes_means_by_it(form: str, right: list[str], wrong: list[str]) -> None:
    refuses = function(f"format.{form}().validate(self).hasValue()")
    assert [refuses(text) for text in (*right, *wrong)] == [False] * len(right) + [True] * len(wrong)


@pytest.mark.parametrize("text", ["", "self.", "self ==", "(self", "a b", "1 ; 2"])
def test_what_is_no_cel_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no CEL"):
        function(text)


@pytest.mark.parametrize("text", ["now()", "self.unknown() || false", "unknown == 1", "self.missing == 1", "self != 3"])
def test_what_is_not_known_here_is_refused_when_it_is_asked_and_never_taken_for_true(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be asked"):
        function(text)({"a": 1})
