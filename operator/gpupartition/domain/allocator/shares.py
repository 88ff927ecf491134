"""What claims hold of devices, and how much of a device a request takes: alone, or a share of what it has.

Follows k8s.io/dynamic-resource-allocation v0.37 (structured, consumable_capacity.go) and, for which claim holds what, the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any, Final

from gpupartition.domain import quantity

Amount = int | Fraction
"""A quantity, exactly: the scheduler adds and compares them so."""

DeviceId = tuple[str, str, str]
"""Driver, pool, name: two devices of one id are one device."""

Consumed = Mapping[str, Amount]


@lru_cache(maxsize=4096)  # a cluster says the same few amounts hundreds of thousands of times
def amount_of(text: str) -> Amount:
    """A quantity, exactly: a whole number where it is one. Raises ValueError for what is none."""
    return _plain(quantity.exact(text))


def _plain(amount: Fraction) -> Amount:
    return amount.numerator if amount.denominator == 1 else amount


def _optional_amount(value: Any) -> Amount | None:
    return None if value is None else amount_of(str(value))


class Unrepresentable(ValueError):  # noqa: N818 - what the request is
    """A request is beyond what is counted with, and the pod is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How much a device has of something, and in which amounts it gives it to those who share the device."""

    value: Amount
    default: Amount | None = None
    least: Amount | None = None
    most: Amount | None = None
    step: Amount | None = None
    ranged: bool = False
    values: Sequence[Amount] = ()

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Capacity:
        """From a device's `capacity`."""
        policy = body.get("requestPolicy") or {}
        limits = policy.get("validRange")
        return cls(
            value=amount_of(str(body["value"])),
            default=_optional_amount(policy.get("default")),
            least=_optional_amount((limits or {}).get("min")),
            most=_optional_amount((limits or {}).get("max")),
            step=_optional_amount((limits or {}).get("step")),
            ranged=limits is not None,
            values=[amount_of(str(value)) for value in policy.get("validValues") or ()],
        )

    def consumed(self, asked: Amount | None, *, fractions: bool) -> Amount:
        """What a request for so much takes, rounded up to what is given away. Raises Unrepresentable.

        `fractions`: thousandths are told apart (DRAFractionalCapacityRange); otherwise whole numbers.
        """
        if asked is None:
            taken = self.value if self.default is None else self.default
        elif self.least is not None:
            taken = self._rounded(asked, self.least, fractions=fractions)
        else:
            taken = next((value for value in self.values if asked <= value), asked)
        if taken < 0:
            raise Unrepresentable(f"{taken} is less than nothing")
        return taken

    def _rounded(self, asked: Amount, least: Amount, *, fractions: bool) -> Amount:
        if asked < least or self.step is None:
            return max(asked, least)
        unit = self._unit(fractions=fractions)
        if asked > quantity.INT64_MAX or (unit != 1 and not _in_thousandths(asked)):
            raise Unrepresentable(
                f"{asked} cannot be counted in steps of {self.step}; ask for a multiple of a thousandth"
            )
        start, step = _count(least, unit), _count(self.step, unit)
        taken = start + -(-(_count(asked, unit) - start) // step) * step
        if taken > quantity.INT64_MAX:
            raise Unrepresentable(f"{asked} is more than can be counted in steps of {self.step}")
        return _plain(Fraction(taken) * unit)

    def _unit(self, *, fractions: bool) -> Amount:
        """In what is counted: thousandths where they are on and suffice for all limits."""
        limits = [limit for limit in (self.least, self.most, self.step) if limit is not None]
        if (
            fractions
            and all(_in_thousandths(limit) for limit in limits)
            and (self.step is None or self.step >= _THOUSANDTH)
        ):
            return _THOUSANDTH
        return 1

    def refuses(self, taken: Amount, *, fractions: bool) -> bool:
        """Whether so much is not given to anyone."""
        if self.default is not None and taken == self.default:
            return False
        if self.ranged:
            return (self.most is not None and taken > self.most) or self._between_steps(taken, fractions=fractions)
        return bool(self.values) and taken not in self.values

    def _between_steps(self, taken: Amount, *, fractions: bool) -> bool:
        if self.step is None:
            return False
        unit = self._unit(fractions=fractions)
        if unit != 1 and not _in_thousandths(taken):
            return True
        return (_count(taken, unit) - _count(self.least or 0, unit)) % _count(self.step, unit) != 0


_THOUSANDTH: Final = Fraction(1, 1000)


def _count(amount: Amount, unit: Amount) -> int:
    return ceil(Fraction(amount) / unit)


def _in_thousandths(amount: Amount) -> bool:
    thousandths = Fraction(amount) * 1000
    return thousandths.denominator == 1 and abs(thousandths) <= quantity.INT64_MAX


def takes(
    capacity: Mapping[str, Capacity], asked: Consumed, already: Iterable[Consumed], *, fractions: bool
) -> dict[str, Amount] | None:
    """What a request takes of a device of which others have taken something; None when the device does not have that.

    Names are compared letter by letter: a request for `memory` does not mean `gpu.example.com/memory`. Raises Unrepresentable.
    """
    if not asked.keys() <= capacity.keys():
        return None
    taken = {name: each.consumed(asked.get(name), fractions=fractions) for name, each in capacity.items()}
    others = list(already)
    for name, each in capacity.items():
        total = taken[name] + sum(other.get(name, 0) for other in others)
        if each.refuses(taken[name], fractions=fractions) or total > each.value:
            return None
    return taken


@dataclass(frozen=True, slots=True)
class Held:
    """What is allocated: devices that somebody has alone, and those of which some have shares, with what the shares come to."""

    alone: frozenset[DeviceId] = frozenset()
    shared: Mapping[DeviceId, Consumed] = field(default_factory=dict)

    @classmethod
    def read(cls, claims: Iterable[Mapping[str, Any]], *, consumable_capacity: bool = True) -> Held:
        """From all ResourceClaims of the cluster. Who has admin access looks on, and holds nothing."""
        alone: set[DeviceId] = set()
        shared: dict[DeviceId, dict[str, Amount]] = {}
        for claim in claims:
            allocation = (claim.get("status") or {}).get("allocation") or {}
            for result in (allocation.get("devices") or {}).get("results") or ():
                device = result["driver"], result["pool"], result["device"]
                if result.get("adminAccess"):
                    continue
                if result.get("shareID") is None or not consumable_capacity:
                    alone.add(device)
                    continue
                total = shared.setdefault(device, {})
                for name, value in (result.get("consumedCapacity") or {}).items():
                    total[name] = total.get(name, 0) + amount_of(str(value))
        return cls(frozenset(alone), shared)

    def and_also(self, alone: Iterable[DeviceId], shares: Iterable[tuple[DeviceId, Consumed]]) -> Held:
        """What is held once these are too."""
        shared = dict(self.shared)
        for device, consumed in shares:
            before = shared.get(device, {})
            shared[device] = {name: before.get(name, 0) + consumed.get(name, 0) for name in {*before, *consumed}}
        return Held(self.alone.union(alone), shared)

    def __contains__(self, device: DeviceId) -> bool:
        return device in self.alone or device in self.shared
