"""Quantities mean to this operator what they mean to Kubernetes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupartition.domain import quantity

SPELLINGS = [
    ("0", 0), ("7", 7), ("+7", 7), ("-7", -7), ("007", 7), ("1.", 1), (".5", 1), ("0.5", 1), ("1.5", 2), ("-1.5", -2),
    ("1Ki", 1024), ("80Gi", 85899345920), ("0.5Gi", 536870912), ("1.5Ki", 1536), ("1Ei", 2**60), ("7Ei", 7 * 2**60),
    ("1k", 1000), ("1M", 10**6), ("100G", 10**11), ("1E", 10**18), ("1m", 1), ("1500m", 2), ("1000000u", 1), ("1n", 1),
    ("1e3", 1000), ("1E3", 1000), ("1e+3", 1000), ("1.5e3", 1500), ("1e-3", 1), ("5e0", 5),
    ("9223372036854775807", 2**63 - 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SPELLINGS)
def test_every_spelling_of_kubernetes_is_understood(text: str, value: int) -> None:
    assert quantity.parse(text) == value


NOT_QUANTITIES = [
    "", " 1", "1 ", "1Gb", "1GiB", "1K", "1ki", "1gi", "1,5", "1_000", "Gi", ".", "+", "1e", "1e1.5", "1Gi1", "--1", "1/2",
    "inf", "nan", "٣", "1\n", "0x10",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_QUANTITIES)
def test_what_kubernetes_refuses_is_refused_and_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity") as refused:
        quantity.parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "10E", "1e19", "-9223372036854775809"])
def test_what_does_not_fit_into_64_bits_is_refused_rather_than_capped(text: str) -> None:
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        quantity.parse(text)


def test_half_a_byte_is_kept_where_exactness_counts() -> None:
    assert quantity.exact("1500m") == Fraction(3, 2)
    assert quantity.exact("-0.25Ki") == -256


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1023, "1023"), (1024, "1Ki"), (85899345920, "80Gi"), (28633115306, "28633115306"), (-2048, "-2Ki")],
)
def test_amounts_are_written_as_people_write_memory(value: int, text: str) -> None:
    assert quantity.render(value) == text


@given(st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1))
def test_what_is_written_reads_as_what_it_was(value: int) -> None:
    assert quantity.parse(quantity.render(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("80Gi", 80 * 2**30), ("8Ei", 2**63 - 1), ("1e999", 2**63 - 1), ("-1e999", 1 - 2**63), ("9" * 5000, 2**63 - 1)],
)
def test_of_what_others_publish_no_amount_is_too_large_to_be_read(text: str, value: int) -> None:
    assert quantity.capped(text) == value


def test_what_is_no_quantity_is_none_even_of_others() -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        quantity.capped("eight")
