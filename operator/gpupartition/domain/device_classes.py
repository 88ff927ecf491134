"""DeviceClasses for the kinds of devices that a layout makes: by what a kind is told apart, as CEL that can be asked of every device.

A selector that asks for an attribute which a device does not have is an error, and the scheduler gives up the pod, whatever other devices there
are. So each attribute is asked for only where it is, and nothing is asked of other drivers' devices.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpupartition.domain import quantity

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MIG: Final = re.compile(r"\d+g\.\d+gb(\+[a-z]+(\.[a-z]+)*)*")
_AMD: Final = re.compile(r"[a-z]+_nps\d+")
_EQUAL: Final = re.compile(r"1of(\d+)")
_OURS: Final = re.compile(r"whole|half|third|quarter|\d+g-\d+gb.*|[a-z]+-nps\d+")
"""What other profiles may not be called."""
_PARTS: Final = {1: "whole", 2: "half", 3: "third", 4: "quarter"}
_MOST: Final = 40
"""Characters of a name that somebody else chose: with a mark it stays a label, whatever stands before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A kind of devices: what it is called, and what is true of its devices and of no others of the driver.

    `texts`: string attributes of the driver's own domain; `amounts`: capacities, exactly.
    """

    name: str
    texts: Mapping[str, str] = field(default_factory=dict)
    amounts: Mapping[str, int] = field(default_factory=dict)


def part(parts: int) -> str:
    """What the equal parts of a GPU are called: half, third, quarter, 1of5; one part is the whole."""
    return _PARTS.get(parts, f"1of{parts}")


def name_of(profile: str) -> str:
    """A profile as a name can have it: 1g.10gb+me is 1g-10gb-me, and 1of2 half. Different profiles have different names.

    Names that do not fit, or look like one of these, are marked with what they were made of.
    """
    if found := _EQUAL.fullmatch(profile):
        return part(int(found[1]))
    if profile == "full":
        return part(1)
    if _MIG.fullmatch(profile) or _AMD.fullmatch(profile):
        return re.sub(r"[.+_]", "-", profile)
    if _LABEL.fullmatch(profile) and len(profile) <= _MOST and not _OURS.fullmatch(profile):
        return profile
    mark = hashlib.sha256(profile.encode()).hexdigest()[:8]
    plain = re.sub("[^a-z0-9]+", "-", profile.lower())[:_MOST].strip("-")
    return f"{plain}-{mark}" if plain else mark


def device_class(driver: str, offer: Offer, *, extended: str = "") -> dict[str, Any]:
    """The DeviceClass of the kind, named as drivers name theirs: what it is, then the driver. `extended` is its extended resource, if any."""
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": selector(driver, offer)}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"{offer.name}.{driver}"},
        "spec": spec | ({"extendedResourceName": extended} if extended else {}),
    }


def selector(driver: str, offer: Offer) -> str:
    """What is true of the kind, as an expression that never fails."""
    own = text(driver)
    asked = [f"device.driver == {own}"]
    for name, value in sorted(offer.texts.items()):
        field_ = f"device.attributes[{own}]"
        asked += [f"{text(name)} in {field_}", f"{field_}[{text(name)}] == {text(value)}"]
    for name, amount in sorted(offer.amounts.items()):
        field_ = f"device.capacity[{own}]"
        exactly = f"quantity({text(quantity.render(amount))})"
        asked += [f"{text(name)} in {field_}", f"{field_}[{text(name)}].compareTo({exactly}) == 0"]
    return " && ".join(asked)


def text(value: str) -> str:
    """A CEL string: whatever is in it, it ends where it ends."""
    return f'"{"".join(map(_character, value))}"'


def _character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
