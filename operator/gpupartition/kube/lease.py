"""Leader election by a Lease: of several processes, one works, and the others stand by.

Three clocks are never mixed. The holder counts on its own monotonic clock from before its last renewal was sent; who waits counts on its
own from after it has read the Lease; the times in the Lease are for people, and nobody decides by them. A holder that could not renew for
`renew_within` has given up before anybody else, who waits for `duration`, can begin.

An election keeps two processes from working against each other, no more: a holder that is stopped between a check and a write may write when
another one holds the Lease. Whatever must not happen then has to be excluded by the write itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpupartition.kube.errors import ApiError, Conflict, Forbidden, NotFound, Unreachable
from gpupartition.kube.kinds import LEASES, Kind

if TYPE_CHECKING:
    from gpupartition.kube.client import Object

log = logging.getLogger(__name__)

NOBODY: Final = ""


class Lost(Exception):  # noqa: N818 - what happened, in the words of the API
    """The Lease could not be renewed in time, or somebody else holds it. Whoever worked under it has to end, and begin anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """In seconds; the defaults are those of Kubernetes' own components.

    `renew_within` must be shorter than `duration`, by more than an answer can be under way.
    """

    duration: float = 15.0
    renew_within: float = 10.0
    retry: float = 2.0

    @property
    def answer(self) -> float:
        """How long one answer is waited for: a request that hangs must leave time for another one."""
        return self.renew_within / 3


class Api(Protocol):
    """What is asked of the API server; `kube.Client` does it."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object: ...  # noqa: D102
    async def create(self, kind: Kind, body: Object) -> Object: ...  # noqa: D102
    async def replace(self, kind: Kind, body: Object) -> Object: ...  # noqa: D102


class Elector:
    """One candidate for one Lease. `identity` must be of this very process: a restart is another candidate."""

    def __init__(self, api: Api, *, namespace: str, name: str, identity: str, timing: Timing | None = None) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing or Timing()
        self._lease: Object = {}  # as last read or written
        self._unchanged_since = 0.0  # on our clock, when we read it first
        self._good_until = 0.0  # on our clock; 0: we do not hold it

    @property
    def leading(self) -> bool:
        """Whether we hold the Lease, as far as our own clock can tell; false at once when a renewal is overdue."""
        return _clock() < self._good_until

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, work while it is held, and give it back when the work has ended, or has been cancelled and is over.

        Raises Lost, after `work` was cancelled, when the Lease was lost meanwhile; and whatever `work` raises.
        """
        await self._acquire()
        log.info("leading: %s/%s is held by %s", self._namespace, self._name, self._identity)
        working = asyncio.ensure_future(work())
        keeping = asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait((working, keeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Renewed until the work is over: what was begun under the Lease ends under it.
            await _end(working)
            await _end(keeping)
            await self._release()
        if keeping.done() and not keeping.cancelled():
            keeping.result()
        working.result()

    async def _acquire(self) -> None:
        lease, told = f"{self._namespace}/{self._name}", ""
        while True:
            try:
                if await self._try():
                    return
                holder = _holder(self._lease) or "somebody who was faster"
                level, news = logging.INFO, f"standing by: {lease} is held by {holder}"
            except (ApiError, TimeoutError) as error:
                why = f"{self._why(error)}; {self._remedy(error)}"
                level, news = logging.WARNING, f"standing by, because {lease} cannot be asked for: {why}"
            if news != told:
                log.log(level, "%s", news)
                told = news
            await asyncio.sleep(self._timing.retry * random.uniform(1, 1.2))  # noqa: S311 - two that stand by drift apart

    async def _try(self) -> bool:
        """Look, and take the Lease if nobody has it, or if it has stood still for as long as its holder had promised to renew it."""
        began = _clock()
        try:
            async with asyncio.timeout(self._timing.answer):
                found = await self._api.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            return await self._write({}, began)
        if _version(found) != _version(self._lease):
            self._lease, self._unchanged_since = found, _clock()
        promised = max(float(found.get("spec", {}).get("leaseDurationSeconds") or 0), self._timing.duration)
        overdue = began - self._unchanged_since >= promised
        # It is ours already when only the answer to our last write was lost.
        free = overdue or _holder(found) in {NOBODY, self._identity}
        return free and await self._write(found, began)

    def _why(self, error: ApiError | TimeoutError) -> str:
        return str(error) or f"no answer within {self._timing.answer:.1f} s"

    def _remedy(self, error: ApiError | TimeoutError) -> str:
        if isinstance(error, Forbidden):
            return f"grant its account get, create and update of {LEASES} in namespace {self._namespace}, if that is its own"
        if isinstance(error, NotFound) and error.details.get("kind") == "namespaces":
            return f"make the namespace {self._namespace}, or name the one that this program is in"
        if isinstance(error, TimeoutError | Unreachable):
            return "see whether the API server is up, and can be reached from here"
        return "it is asked for again"

    async def _keep(self) -> None:
        """Renew for ever. Raises Lost as soon as that has failed for too long."""
        while True:
            await asyncio.sleep(self._timing.retry)
            try:
                async with asyncio.timeout_at(self._good_until):
                    await self._renew()
            except TimeoutError:
                self._good_until = 0.0
                raise Lost(f"the Lease was not renewed for {self._timing.renew_within:g} s") from None

    async def _renew(self) -> None:
        while True:
            began = _clock()
            try:
                if await self._write(self._lease, began):
                    return
                # Somebody wrote: another holder, a person with an annotation, or we, whose answer was lost.
                async with asyncio.timeout(self._timing.answer):
                    self._lease = await self._api.get(LEASES, self._name, namespace=self._namespace)
            except (ApiError, TimeoutError) as error:
                if isinstance(error, NotFound) and self._lease:
                    self._lease = {}  # deleted: whoever creates it now has it
                    continue
                log.warning("the Lease was not renewed: %s", self._why(error))
                await asyncio.sleep(self._timing.retry)
                continue
            if _holder(self._lease) != self._identity:
                self._good_until = 0.0
                raise Lost(f"the Lease is held by {_holder(self._lease) or 'nobody'}")

    async def _write(self, lease: Object, began: float) -> bool:
        """Write that we hold it, under the version that was read. False: somebody else wrote."""
        spec = dict(lease.get("spec", {}))
        now = _now()
        if spec.get("holderIdentity") != self._identity:
            transitions = int(spec.get("leaseTransitions", 0)) + (1 if lease else 0)
            spec |= {"acquireTime": now, "leaseTransitions": transitions}
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "renewTime": now,
        }
        try:
            async with asyncio.timeout(self._timing.answer):
                self._lease = await self._put(lease, spec)
        except Conflict:
            return False
        self._good_until = began + self._timing.renew_within
        return True

    async def _put(self, lease: Object, spec: dict[str, Any]) -> Object:
        if lease:
            return await self._api.replace(LEASES, {**lease, "spec": spec})
        body = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        return await self._api.create(LEASES, body)

    async def _release(self) -> None:
        """Give it back, so that the next one need not wait. Who cannot say so is found out by standing still."""
        if not self.leading or not self._lease:
            return
        self._good_until = 0.0
        spec = {**self._lease["spec"], "holderIdentity": NOBODY, "renewTime": _now()}
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self._timing.answer):
                await self._api.replace(LEASES, {**self._lease, "spec": spec})


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel, and wait until it is over, however it ends."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # looked at: asyncio would otherwise complain that nobody has


def _clock() -> float:
    """Seconds on the loop's monotonic clock."""
    return asyncio.get_running_loop().time()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holder(lease: Object) -> str:
    return str(lease.get("spec", {}).get("holderIdentity") or NOBODY)


def _version(lease: Object) -> str:
    return str(lease.get("metadata", {}).get("resourceVersion", ""))
