"""What the requests of a pod come to on one node, before anything is searched: which devices each may have, and how many it needs.

What is wrong here is wrong on every node, so the scheduler gives the pod up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpupartition.domain.allocator.claims import Claim, Request
from gpupartition.domain.allocator.places import Node
from gpupartition.domain.allocator.pools import Device, Features, Pool
from gpupartition.domain.allocator.selectors import Unknown, selects
from gpupartition.domain.allocator.shares import Consumed, Unrepresentable, takes

RESULTS_MAX: Final = 32
"""Devices of one claim: `AllocationResultsMaxSize` of resource.k8s.io/v1."""


class GivenUp(ValueError):  # noqa: N818 - what the scheduler does
    """What is wrong with a claim, a class or a pool, so that the scheduler tries no other node either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request, or an alternative of one, with what has to be found out about it only once."""

    request: Request
    at: str
    """Which one, for messages."""

    selectors: Sequence[str]
    """All that is asked of a device, by its class first."""

    count: int
    all: Sequence[Device] | None = None
    """All that there are, if all are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """The requests of a pod, looked at from one node."""

    features: Features
    classes: Mapping[str, Sequence[str]]
    node: Node
    pools: Sequence[Pool]

    def of(self, claim: Claim) -> Sequence[Sequence[Wanted]]:
        """Of each request its alternatives. Raises GivenUp."""
        wanted, least = [], 0
        for alternatives in claim.requests:
            self._refuse_what_is_off(claim, alternatives)
            each = [self._looked_up(claim, request) for request in alternatives]
            least += min(alternative.count for alternative in each)
            if least > RESULTS_MAX:
                raise GivenUp(f"{claim.name}: it asks for {least} devices, and a claim may have {RESULTS_MAX}")
            wanted.append(each)
        if any(constraint.beyond for constraint in claim.constraints):
            raise GivenUp(
                f"{claim.name}: there is a constraint of an unknown kind; use matchAttribute or distinctAttribute"
            )
        return wanted

    def _refuse_what_is_off(self, claim: Claim, alternatives: Sequence[Request]) -> None:
        off = {
            "alternatives": alternatives[0].parent and not self.features.prioritized_list,
            "a capacity": any(r.capacity is not None for r in alternatives) and not self.features.consumable_capacity,
        }
        for what, is_off in off.items():
            if is_off:
                raise GivenUp(f"{claim.name}, request {alternatives[0].name}: it has {what}, and that feature is off")

    def _looked_up(self, claim: Claim, request: Request) -> Wanted:
        at, known = f"{claim.name}, request {request.name}", self.classes.get(request.device_class)
        if request.beyond or (request.says_admin and not self.features.admin_access):
            raise GivenUp(f"{at}: {request.beyond or 'admin access'} is off or unknown")
        if known is None:
            raise GivenUp(f"{at}: there is no DeviceClass {request.device_class!r}")
        wanted = Wanted(request=request, at=at, selectors=[*known, *request.selectors], count=request.count or 0)
        if request.count is not None:
            return wanted
        found = [device for pool in self.pools for device in self._all_of(pool, wanted)]
        return replace(wanted, count=len(found), all=found)

    def _all_of(self, pool: Pool, wanted: Wanted) -> Iterable[Device]:
        if pool.trouble is not None:
            name = "/".join(pool.id)
            raise GivenUp(f"{wanted.at}: it asks for all devices, and pool {name} is {pool.trouble.value}: {pool.why}")
        for device in pool.devices:
            if self.selects(wanted, device) and self.takes(wanted, device, ()) is not None:
                yield device

    def selects(self, wanted: Wanted, device: Device) -> bool:
        """Whether it is one of those that are asked for, whoever has it. Raises GivenUp and Unknown."""
        if not self.features.binding_conditions and device.body.get("bindingConditions"):
            return False
        try:
            chosen = all(selects(selector, device) for selector in wanted.selectors)
        except ValueError as error:
            raise GivenUp(f"{wanted.at}: {error}") from None
        return chosen and (not device.placed_alone or device.place.reaches(self.node))

    def takes(self, wanted: Wanted, device: Device, others: Sequence[Consumed]) -> Consumed | None:
        """What it takes of the device beside others, or None when there is not so much of it. Raises GivenUp and Unknown."""
        asked = wanted.request.capacity or {}
        if "capacity" in device.unknown and not asked.keys() <= device.capacity.keys():
            raise Unknown(f"{wanted.at}: it is not known how much device {device.id[2]} has of what it asks for")
        if not self.features.consumable_capacity or not (asked or others or device.shared):
            return {}  # all of it, which is there
        try:
            return takes(device.capacity, asked, others, fractions=self.features.fractional_capacity_range)
        except Unrepresentable as error:
            raise GivenUp(f"{wanted.at}, device {'/'.join(device.id)}: {error}") from None
