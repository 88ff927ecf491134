"""Expressions that a DeviceClass may have, the device of which they are asked, and what Kubernetes has them come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

GPU: Final = "gpu.example.com"
ATTRIBUTES: Final = {
    "index": {"int": 1},
    "model": {"string": "A100"},
    "full": {"bool": True},
    "version": {"version": "1.2.3-rc.1"},
    "other.com/root": {"string": "pci"},
}
CAPACITY: Final = {"memory": {"value": "40Gi"}}
OWN: Final = f'device.attributes["{GPU}"]'
HAS: Final = f'device.capacity["{GPU}"]'
COMES_TO: Final[tuple[tuple[str, bool | None], ...]] = (  # None: it cannot be asked, and the scheduler gives the pod up
    (f"{OWN}.index == 1", True),
    (f"{OWN}.model == 1", False),
    (f"{OWN}.model != 1", True),
    (f"{OWN}.full == 1", False),
    (f"{OWN}.absent == 1", None),
    (f"{OWN}.absent == 1 || true", True),
    (f"false && {OWN}.absent == 1", False),
    (f"has({OWN}.absent) && {OWN}.absent == 1", False),
    (f'{OWN}.?absent.orValue("x") == "x"', True),
    (f'{OWN}[?"index"].orValue(2) == 1', True),
    (f"{OWN}.?absent.hasValue()", False),
    ('device.attributes[?"nobody.com"].hasValue()', True),
    ('"nobody.com" in device.attributes', False),
    ('"other.com" in device.attributes && "root" in device.attributes["other.com"]', True),
    ('device.attributes["nobody.com"].x == 1', None),
    ('has(device.attributes["nobody.com"].x)', False),
    (f"cel.bind(own, {OWN}, own.full && own.index == 1)", True),
    (f"cel.bind(own, {OWN}, own.absent) || true", True),
    (f"cel.bind(own, {OWN}, cel.bind(index, own.index, index > 0))", True),
    (f"{OWN}.index in [1, 2]", True),
    (f'{OWN}.index in ["x"]', False),
    (f"{OWN}.index == 1.0", True),
    (f"{OWN}.model < 1", None),
    (f"!{OWN}.model", None),
    (f"{OWN}.model", None),
    (f"{OWN}.full", True),
    (f'{OWN}.version.isGreaterThan(semver("1.2.2"))', True),
    (f'{OWN}.version.isLessThan(semver("1.2.3"))', True),
    (f'{OWN}.version == semver("1.2.3-rc.1+build")', True),
    (f'{OWN}.version.compareTo(semver("v1.2", true)) > 0', True),
    (f"{OWN}.version.major() == 1 && {OWN}.version.minor() == 2 && {OWN}.version.patch() == 3", True),
    ('isSemver("1.02.3") || isSemver("1.2") || !isSemver("1.2.3")', False),
    (f'{OWN}.version.isGreaterThan(semver("x"))', None),
    (f'{HAS}.memory.isGreaterThan(quantity("1Gi"))', True),
    (f'{HAS}.memory.isLessThan(quantity("1Gi"))', False),
    (f'{HAS}.memory.compareTo(quantity("40960Mi")) == 0', True),
    (f'{HAS}.memory == quantity("40Gi")', True),
    (f'{HAS}.memory.add(quantity("1")).sub(1).isInteger() && {HAS}.memory.asInteger() == 42949672960', True),
    (f"sign({HAS}.memory) == 1", True),
    (f'{HAS}.lanes.isGreaterThan(quantity("1"))', None),
    (f'{HAS}.?lanes.orValue(quantity("0")).isGreaterThan(quantity("1"))', False),
    ('isQuantity("40 GB") || !isQuantity("40G")', False),
    ("device.allowMultipleAllocations == false", True),
    (f'{OWN}.model.lowerAscii() == "a100" && {OWN}.model.upperAscii() == "A100"', True),
    (f'{OWN}.model.startsWith("A") && {OWN}.model.endsWith("0") && {OWN}.model.contains("10")', True),
    (f'{OWN}.model.matches("^A[0-9]+$")', True),
    (f"{OWN}.model.size() == 4 && size({OWN}.model) == 4", True),
    (
        f'{OWN}.model.split("1")[0] == "A" && {OWN}.model.replace("1", "2") == "A200" && {OWN}.model.substring(1) == "100"',
        True,
    ),
    ('["a", "b"].join("-") == "a-b" && " x ".trim() == "x"', True),
    (f'{OWN}.exists(name, name == "model") && {OWN}.all(name, name != "x")', True),
    (f"[1, 2, 3].exists_one(n, n == {OWN}.index) && [1, 2].filter(n, n > {OWN}.index).size() == 1", True),
    (f'[1, 2].map(n, n + {OWN}.index)[0] == 2 && {OWN}.model + "X" == "A100X"', True),
    (f"{OWN}.index + 9223372036854775807 > 0", None),
    (f"{OWN}.index % 2 == 1 && -{OWN}.index == -1 && {OWN}.index * 3 / 2 == 1", True),
    (f"{OWN}.absent ? true : false", None),
    (f"{OWN}.full ? {OWN}.index == 1 : {OWN}.absent", True),
    ("optional.of(1).hasValue() && !optional.none().hasValue() && optional.of(3).value() == 3", True),
    (f'{OWN}.?absent.or(optional.of("y")).value() == "y"', True),
    (f'{OWN}.?model.optMap(model, model.startsWith("A")).orValue(false)', True),
    (f'{OWN}.?absent.optMap(absent, absent == "x").orValue(false)', False),
    (f"{OWN}.?index.optFlatMap(index, index > 0 ? optional.of(index) : optional.none()).hasValue()", True),
    (f"optional.of({OWN}).?index == optional.of(1) && optional.none() == {OWN}.?absent", True),
    (f'dyn({OWN}.model) == "A100" && string({OWN}.index) == "1" && int("1") == {OWN}.index', True),
    (f'{{"a": 1}}.a == 1 && {{"a": {OWN}.index}}["a"] == 1 && "a" in {{"a": 1}}', True),
    (f"[{OWN}.index] == [1] && [1] + [2] == [1, 2]", True),
    ('".?x[?" == ".?x[?"', True),
)


@dataclass(frozen=True, eq=False)
class Published:
    """A device of a slice."""

    body: Mapping[str, Any]
    driver: str = GPU
