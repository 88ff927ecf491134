"""The search of the allocator: depth first through claims, requests, alternatives and devices, to the first combination that fits.

What is taken while trying is noted here, and given back on the way out of a dead end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpupartition.domain.allocator.claims import Claim, Constraint, Request
from gpupartition.domain.allocator.pools import Counter, Device, Pool, PoolId
from gpupartition.domain.allocator.shares import Amount, Consumed, DeviceId, Held
from gpupartition.domain.allocator.wanted import RESULTS_MAX, GivenUp, Wanted, Wants


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One device of a claim. `consumed` is what it takes of it, when others may have the rest."""

    request: str
    device: Device
    admin: bool
    consumed: Consumed | None

    @property
    def id(self) -> DeviceId:
        """Driver, pool and name of the device."""
        return self.device.id


class _TooMany(Exception):  # noqa: N818 - it is no error, but a way back
    """The devices of the claim would be more than it may have: back to where fewer can be chosen.

    There is such a place in the claim, as the smallest alternatives together are not too many: that was looked at before.
    """


_Steps = Generator["_Steps | None", None, None]
"""One place where there is a choice: yields what to try next, again after each failure, and None when there is nothing left to find."""


class Search:
    """One attempt for the claims of a pod on a node."""

    def __init__(
        self, wants: Wants, claims: Sequence[Claim], held: Held, left: Callable[[Pool], Mapping[Counter, Amount]]
    ) -> None:
        """`left` is what devices that are held leave of the counters of a pool. Raises GivenUp."""
        self._wants, self._claims, self._held, self._counters = wants, claims, held, left
        self._features: Final = wants.features
        self._wanted = [wants.of(claim) for claim in claims]
        self._devices: Final = [device for pool in wants.pools if pool.trouble is None for device in pool.devices]
        self._by_id: Final = {pool.id: pool for pool in wants.pools}
        self._left: Final[dict[PoolId, dict[Counter, Amount]]] = {}
        self._overdrawn: Final[dict[PoolId, list[Counter]]] = {}
        self._takers: Final[dict[DeviceId, list[int]]] = {}
        self._shares: Final[dict[DeviceId, list[Consumed]]] = {}
        self._values: Final[list[list[list[Any]]]] = [[[] for _ in claim.constraints] for claim in claims]
        self._results: Final[list[list[Result]]] = [[] for _ in claims]

    def run(self, late: Callable[[], bool]) -> Sequence[Sequence[Result]] | None:
        """The first solution, or None. Raises GivenUp."""
        places: list[_Steps] = [self._claim(0)]
        too_many: _TooMany | None = None
        while places:
            if late():
                raise GivenUp("the search took too long; there are more combinations than can be tried")
            try:
                place = places[-1].throw(too_many) if too_many else next(places[-1])
            except StopIteration:
                places.pop()
                too_many = None
            except _TooMany as way_back:
                places.pop()
                too_many = way_back
            else:
                too_many = None
                if place is None:
                    return self._results
                places.append(place)
        return None

    # Where there is a choice.

    def _claim(self, number: int) -> _Steps:
        if number == len(self._claims):
            yield None
            return
        yield self._request(number, 0)

    def _request(self, number: int, which: int) -> _Steps:
        if which == len(self._wanted[number]):
            yield self._claim(number + 1)
            return
        alternatives = self._wanted[number][which]
        if not alternatives[0].request.parent:
            yield self._device(number, which, alternatives[0], 0, 0)
            return
        too_many = 0
        for alternative in alternatives:
            try:
                yield self._device(number, which, alternative, 0, 0)
            except _TooMany:
                too_many += 1
        if too_many == len(alternatives):
            raise _TooMany

    def _device(self, number: int, which: int, wanted: Wanted, index: int, start: int) -> _Steps:
        if wanted.all is not None and not wanted.all:
            return
        if index >= wanted.count:
            yield self._request(number, which + 1)
            return
        if wanted.count - index > RESULTS_MAX - len(self._results[number]):
            raise _TooMany
        devices: Sequence[Device] = self._devices if wanted.all is None else wanted.all
        places = range(start, len(devices)) if wanted.all is None else (index,)
        for place in places:
            device = devices[place]
            taken = self._take(number, wanted, device)
            if taken is None:
                continue
            try:
                yield self._device(number, which, wanted, index + 1, place + 1)
            except _TooMany:
                self._give_back(number, device, taken)
                raise
            self._give_back(number, device, taken)

    # Whether one device will do.

    def _take(self, number: int, wanted: Wanted, device: Device) -> _Taken | None:
        """What taking it has changed, or None when it cannot be taken. Of all devices it is known already that they are selected."""
        if self._in_use(number, wanted.request, device):
            return None
        among_all, others = wanted.all is not None, self._shares_of(device)
        if not among_all and not self._wants.selects(wanted, device):
            return None
        consumed = None if among_all else self._wants.takes(wanted, device, others)
        if consumed is None and not among_all:
            return None
        draws, kept = self._draws(device), self._keeps_to(number, wanted.request, device)
        if not self._allowed(wanted.request, device) or (draws and not self._enough(device)):
            return None
        if kept is None and among_all:
            raise GivenUp(f"{wanted.at}: all devices do not agree with a constraint of the claim")
        if among_all:
            consumed = self._wants.takes(wanted, device, others)
        if kept is None or consumed is None:
            return None
        taken = _Taken(draws=draws, shared=self._in_parts(device), kept=kept)
        self._note(number, wanted.request, device, taken, consumed)
        return taken

    def _in_use(self, number: int, request: Request, device: Device) -> bool:
        takers = self._takers.get(device.id, ())
        return number in takers if request.admin else bool(takers) or device.id in self._held.alone

    def _in_parts(self, device: Device) -> bool:
        return device.shared and self._features.consumable_capacity

    def _shares_of(self, device: Device) -> Sequence[Consumed]:
        shares, held = self._shares.get(device.id, []), self._held.shared.get(device.id)
        return shares if held is None else [held, *shares]

    def _draws(self, device: Device) -> bool:
        """Whether it takes something of its counters: of a shared device the first one does for all."""
        return bool(device.costs) and not (self._in_parts(device) and self._shares_of(device))

    def _allowed(self, request: Request, device: Device) -> bool:
        if device.costs and not self._features.partitionable_devices:
            return False
        return not self._features.device_taints or all(request.tolerates(taint) for taint in device.taints)

    def _enough(self, device: Device) -> bool:
        """Whether the counters suffice. A counter that is overdrawn closes all of its pool."""
        pool = device.pool
        if pool not in self._left:
            self._left[pool] = dict(self._counters(self._by_id[pool]))
            self._overdrawn[pool] = [counter for counter, left in self._left[pool].items() if left < 0]
        left, costs = self._left[pool], device.costs
        return all(cost <= left[counter] for counter, cost in costs.items()) and all(
            costs.get(counter, 0) <= left[counter] for counter in self._overdrawn[pool]
        )

    def _keeps_to(self, number: int, request: Request, device: Device) -> Sequence[tuple[int, Any]] | None:
        """Its value for each constraint that it keeps to; None when there is one that it breaks."""
        kept: list[tuple[int, Any]] = []
        for index, constraint in enumerate(self._claims[number].constraints):
            if constraint.is_about(request):
                value = device.attribute(constraint.attribute)
                if value is None or not _agrees(constraint, value, self._values[number][index]):
                    return None
                kept.append((index, value))
        return kept

    def _note(self, number: int, request: Request, device: Device, taken: _Taken, consumed: Consumed) -> None:
        if taken.draws:
            for counter, cost in device.costs.items():
                self._left[device.pool][counter] -= cost
        for index, value in taken.kept:
            self._values[number][index].append(value)
        if taken.shared:
            self._shares.setdefault(device.id, []).append(consumed)
        else:
            self._takers.setdefault(device.id, []).append(number)
        self._results[number].append(
            Result(
                request=request.name, device=device, admin=request.admin, consumed=consumed if taken.shared else None
            )
        )

    def _give_back(self, number: int, device: Device, taken: _Taken) -> None:
        self._results[number].pop()
        (self._shares if taken.shared else self._takers)[device.id].pop()
        for index, _ in taken.kept:
            self._values[number][index].pop()
        if taken.draws:
            for counter, cost in device.costs.items():
                self._left[device.pool][counter] += cost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    draws: bool
    shared: bool
    kept: Sequence[tuple[int, Any]]


_COMPARED: Final = {"string", "int", "bool", "version"}
"""Kinds of attributes that constraints compare. Lists are not among them."""


def _agrees(constraint: Constraint, value: tuple[str, Any], others: Sequence[tuple[str, Any]]) -> bool:
    if not others:
        return True
    if value[0] not in _COMPARED:
        return False
    return value not in others if constraint.distinct else value == others[0]
