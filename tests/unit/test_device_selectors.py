"""What selectors come to: as Kubernetes has it, which tests/e2e/test_oracle.py asks of the same expressions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
from tests.unit.expressions import ATTRIBUTES, CAPACITY, COMES_TO, HAS, OWN, Published

from gpupartition.domain.allocator.selectors import UNKNOWN, Unknown, _answer, selects
from gpupartition.domain.allocator.semver import Semver


@pytest.mark.parametrize(("expression", "comes_to"), COMES_TO)
def test_an_expression_comes_to_what_kubernetes_has_it_come_to(expression: str, comes_to: bool | None) -> None:
    device = Published({"name": "d", "attributes": ATTRIBUTES, "capacity": CAPACITY})
    if comes_to is None:
        with pytest.raises(ValueError, match="asked of device d"):
            selects(expression, device)
    else:
        assert selects(expression, device) is comes_to


@pytest.mark.parametrize("expression", ["device.", "device.attributes[?", "1 +* 2", ""])
def test_what_is_no_expression_is_refused_and_never_taken_for_true(expression: str) -> None:
    with pytest.raises(ValueError, match=r"no CEL|asked of device"):
        selects(expression, Published({"name": "d"}))


@pytest.mark.parametrize(
    "expression",
    [
        "now()",
        "cel.bind(a, 1)",
        "cel.bind(1, 1, true)",
        f"{OWN}.model.reverse() == 'x'",
        f"{'(' * 3000}true{')' * 3000}",
    ],
)
def test_what_is_not_read_here_nobody_can_say(expression: str) -> None:
    with pytest.raises(Unknown, match="has what is not read here"):
        selects(expression, Published({"name": "d", "attributes": ATTRIBUTES}))


@pytest.mark.parametrize(
    ("expression", "comes_to"),  # None: nobody can say
    [
        (f"{OWN}.index == 1", True),
        (f"{OWN}.index == 2", False),
        (f'{OWN}.uuid == "x"', None),
        (f'{OWN}.uuid == "x" || {OWN}.index == 1', True),
        (f'device.driver == "other.com" && {OWN}.uuid == "x"', False),
        (f"has({OWN}.index)", True),
        (f"has({OWN}.uuid)", None),
        (f'"index" in {OWN}', True),
        (f'"uuid" in {OWN}', None),
        (f'"uuid" in {OWN} && {OWN}.uuid == "x"', None),
        (f'{OWN}.?uuid.orValue("x") == "x"', None),
        (f"{OWN}.?index.orValue(0) == 1", True),
        (f'{OWN}[?"uuid"].hasValue()', None),
        ('has(device.attributes["other.com"].root)', True),
        ('has(device.attributes["nobody.com"].root)', None),
        ('"nobody.com" in device.attributes', None),
        (f"{OWN}.size() == 1", None),
        (f'{OWN}.exists(name, name == "index")', None),
        (f'{HAS}.memory.compareTo(quantity("40Gi")) == 0', True),
        (f'{HAS}.?lanes.orValue(quantity("0")).isGreaterThan(quantity("1"))', False),
    ],
)
def test_what_hangs_on_what_is_not_known_of_a_device_nobody_can_say(expression: str, comes_to: bool | None) -> None:
    device = Published({"name": "d", "attributes": ATTRIBUTES, "capacity": CAPACITY, UNKNOWN: ["attributes"]})
    if comes_to is None:
        with pytest.raises(Unknown, match="not known of device d"):
            selects(expression, device)
    else:
        assert selects(expression, device) is comes_to


@pytest.mark.parametrize("expression", [each for each, _ in COMES_TO])
def test_what_is_said_of_a_device_of_which_little_is_known_is_true_of_it_when_all_is(expression: str) -> None:
    whole = Published({"name": "d", "attributes": ATTRIBUTES, "capacity": CAPACITY})
    for known in (names for size in range(len(ATTRIBUTES) + 1) for names in combinations(ATTRIBUTES, size)):
        some: Mapping[str, Any] = {name: ATTRIBUTES[name] for name in known}
        for capacity in (CAPACITY, {}):
            told = {"name": "d", "attributes": some, "capacity": capacity, UNKNOWN: ["attributes", "capacity"]}
            try:
                said = _said(expression, Published(told))
            except Unknown:
                continue
            assert _said(expression, whole) is said, (known, capacity)


def _said(expression: str, device: Published) -> bool | None:
    try:
        return selects(expression, device)
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("expression", "other"),
    [
        (f"{OWN}.index == 1", {"attributes": ATTRIBUTES | {"index": {"int": 2}}}),
        (f"{OWN}.index == 1", {"attributes": ATTRIBUTES | {"index": {"string": "1"}}}),
        (f"has({OWN}.full)", {"attributes": {}}),
        (f'"full" in {OWN}', {"attributes": {}}),
        (f'{OWN}[?"full"].hasValue()', {"attributes": {}}),
        (f'{HAS}["memory"] == quantity("40Gi")', {"capacity": {"memory": {"value": "80Gi"}}}),
        ("!device.allowMultipleAllocations", {"allowMultipleAllocations": True}),
        (f'{OWN}.size() == 4 || "x" == "device.driver"', {"attributes": {}}),
        (f'cel.bind(own, {OWN}, "full" in own)', {"attributes": {}}),
    ],
)
def test_of_a_device_it_is_remembered_only_what_is_true_of_all_that_are_alike(
    expression: str, other: Mapping[str, Any]
) -> None:
    body = {"name": "d", "attributes": ATTRIBUTES, "capacity": CAPACITY}
    assert selects(expression, Published(body))
    assert selects(expression, Published({**body, "attributes": {"more": {"int": 1}, **ATTRIBUTES}})) is (
        "size" not in expression
    )
    assert not selects(expression, Published({**body, **other}))


@pytest.mark.parametrize("expression", [each for each, comes_to in COMES_TO if comes_to is not None])
def test_what_is_remembered_is_what_asking_says(expression: str) -> None:
    for device in [
        Published({"name": "d", "attributes": ATTRIBUTES, "capacity": CAPACITY}),
        Published({"name": "d"}, "x.com"),
    ]:
        try:
            asked = _answer(expression, device)
        except ValueError:
            continue
        assert selects(expression, device) is asked


def test_a_list_is_searched_and_a_value_of_an_unknown_kind_is_told() -> None:
    lists = {
        "nodes": {"ints": [0, 1]},
        "sizes": {"strings": ["a"]},
        "on": {"bools": [True]},
        "of": {"versions": ["1.0.0"]},
    }
    device = Published({"name": "d", "attributes": lists})
    assert selects(f'1 in {OWN}.nodes && "a" in {OWN}.sizes && true in {OWN}.on && semver("1.0.0") in {OWN}.of', device)
    with pytest.raises(ValueError, match="attribute x has no value that is known here"):
        selects("true", Published({"name": "d", "attributes": {"x": {"complex": 1}}}))


def test_versions_are_in_the_order_of_semver_org() -> None:
    order = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "2.1.0",
    ]
    assert sorted(map(Semver.parse, reversed(order))) == list(map(Semver.parse, order))
    assert Semver.parse("1.0.0+a") == Semver.parse("1.0.0+b")
    assert Semver.parse("v01.2", lenient=True) == Semver(1, 2, 0)
    for wrong in ("1.2", "v1.2.3", "01.2.3", "1.2.3-01", "1.2.3-", ""):
        with pytest.raises(ValueError, match="no semantic version"):
            Semver.parse(wrong)
