"""Leader election on simulated time: who leads when, and that two never do, whatever happens to their lines."""

from __future__ import annotations

import asyncio
import copy
import random
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.simulated import play

from gpupartition.kube import ApiError, Conflict, Forbidden, NotFound, Unreachable
from gpupartition.kube.lease import Elector, Lost, Timing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gpupartition.kube import Kind, Object

TIMING = Timing()
LONG_AGO, LONG_HENCE = "1999-12-31T23:59:59.000000Z", "2099-12-31T23:59:59.000000Z"


@dataclass
class Server:
    """Keeps one Lease as an API server does: under its resourceVersion."""

    lease: Object | None = None
    version: int = 0
    writes: int = 0

    def get(self) -> Object:
        if self.lease is None:
            raise NotFound("get", 404, "NotFound", "no Lease")
        return copy.deepcopy(self.lease)

    def store(self, body: Object, *, fresh: bool) -> Object:
        self.writes += 1
        if not fresh and self.lease is None:
            raise NotFound("replace", 404, "NotFound", "no Lease")
        if (fresh and self.lease) or (
            self.lease and body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]
        ):
            raise Conflict("write", 409, "Conflict", "somebody was faster")
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    @property
    def holder(self) -> str:
        return str((self.lease or {}).get("spec", {}).get("holderIdentity", ""))


@dataclass
class Line:
    """One candidate's way to the server.

    `cut`: nothing gets through; `deaf`: what is written is stored, but no answer comes back; `refused`: how the server answers all.
    """

    server: Server
    cut: bool = False
    deaf: bool = False
    refused: ApiError | None = None
    delay: float = 0.01
    chance: random.Random | None = None
    asked: int = 0

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        assert (kind.plural, name, namespace) == ("leases", "op", "ns")
        return await self._carry(self.server.get)

    async def create(self, kind: Kind, body: Object) -> Object:
        assert (kind.plural, body["kind"]) == ("leases", "Lease")
        return await self._carry(lambda: self.server.store(body, fresh=True))

    async def replace(self, kind: Kind, body: Object) -> Object:
        assert kind.plural == "leases"
        return await self._carry(lambda: self.server.store(body, fresh=False))

    async def _carry(self, act: Any) -> Object:
        self.asked += 1
        there, back = self.delay, self.delay
        if self.chance:
            there, back = (self.chance.choice((0, 0.01, 1, 3, 9)) for _ in range(2))
        if self.cut:
            await asyncio.sleep(3600)
        # A request that its sender gave up may be carried out all the same, and late.
        answer = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            try:
                result = act() if self.refused is None else self._refuse()
            except Exception as error:  # noqa: BLE001 - carried back to whoever asked
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

        asyncio.get_running_loop().call_later(there, arrive)
        result: Object = await answer
        if self.deaf:
            await asyncio.sleep(3600)
        await asyncio.sleep(back)
        if self.chance and self.chance.random() < 0.2:
            raise Unreachable("write", 0, "Unreachable", "cut off")
        return result

    def _refuse(self) -> Object:
        assert self.refused is not None
        raise self.refused


@dataclass
class Candidate:
    """An elector at its work, and from when to when it worked."""

    name: str
    line: Line
    elector: Elector
    task: asyncio.Task[None]
    worked: list[tuple[float, float]] = field(default_factory=list)


@asynccontextmanager
async def candidate(server: Server, name: str, **line: Any) -> AsyncIterator[Candidate]:
    own = stand(server, name, **line)
    try:
        yield own
    finally:
        own.task.cancel()
        with suppress(Lost, asyncio.CancelledError):
            await own.task


def stand(server: Server, name: str, **line: Any) -> Candidate:
    way = Line(server, **line)
    elector = Elector(way, namespace="ns", name="op", identity=name, timing=TIMING)
    worked: list[tuple[float, float]] = []

    async def work() -> None:
        began = now()
        try:
            await asyncio.Event().wait()
        finally:
            worked.append((began, now()))

    return Candidate(name, way, elector, asyncio.ensure_future(elector.run(work)), worked)


def now() -> float:
    return asyncio.get_running_loop().time()


async def leads(one: Candidate, *, within: float = 3600) -> float:
    """Wait until somebody leads; returns for how many seconds."""
    began = now()
    while not one.elector.leading:
        assert now() - began < within, f"{one.name} does not lead"
        await asyncio.sleep(0.1)
    return now() - began


def test_the_first_leads_and_the_others_stand_by_for_as_long_as_it_lives() -> None:
    async def story() -> None:
        server = Server()
        async with candidate(server, "a") as a:
            await leads(a, within=1)
            async with candidate(server, "b") as b, candidate(server, "c") as c:
                await asyncio.sleep(3600)
                assert a.elector.leading
                assert not b.elector.leading
                assert not c.elector.leading
                assert not b.worked

    play(story())


@pytest.mark.parametrize("renewed", [LONG_AGO, LONG_HENCE, "no time at all"])
def test_whoever_takes_over_has_itself_seen_the_lease_stand_still_whatever_its_times_say(renewed: str) -> None:
    async def story() -> None:
        spec = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 4}
        server = Server()
        server.store({"metadata": {}, "spec": spec}, fresh=True)
        async with candidate(server, "b") as b:
            assert TIMING.duration <= await leads(b) <= TIMING.duration + 2 * TIMING.retry
            assert server.get()["spec"]["leaseTransitions"] == 5

    play(story())


FORBIDDEN = Forbidden("get leases ns/op", 403, "Forbidden", "cannot get resource")
NO_NAMESPACE = NotFound("create leases ns/op", 404, "NotFound", "no namespace", {"name": "ns", "kind": "namespaces"})
NO_SERVER = Unreachable("get leases ns/op", 0, "Unreachable", "refused")


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (
            FORBIDDEN,
            f"{FORBIDDEN}; grant its account get, create and update of leases.coordination.k8s.io in namespace ns, if that is its own",
        ),
        (NO_NAMESPACE, f"{NO_NAMESPACE}; make the namespace ns, or name the one that this program is in"),
        (NO_SERVER, f"{NO_SERVER}; see whether the API server is up, and can be reached from here"),
    ],
)
def test_who_cannot_ask_for_the_lease_says_once_why_and_what_to_do(
    refused: ApiError, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with candidate(Server(), "a", refused=refused) as a:
            await asyncio.sleep(3600)
            assert not a.elector.leading
            a.line.refused = None
            await leads(a, within=2 * TIMING.retry)

    with caplog.at_level("INFO"):
        play(story())
    assert caplog.messages == [f"standing by, because ns/op cannot be asked for: {told}", "leading: ns/op is held by a"]


def test_who_stands_by_says_it_anew_when_the_reason_is_another_one(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        server = Server()
        server.store({"metadata": {}, "spec": {"holderIdentity": "z", "leaseDurationSeconds": 3600}}, fresh=True)
        async with candidate(server, "a") as a:
            for refused, cut in ((None, False), (FORBIDDEN, False), (NO_SERVER, False), (None, True), (None, False)):
                a.line.refused, a.line.cut = refused, cut
                await asyncio.sleep(60)

    with caplog.at_level("INFO"):
        play(story())
    assert [message.partition(";")[0].removeprefix("standing by") for message in caplog.messages] == [
        ": ns/op is held by z",
        f", because ns/op cannot be asked for: {FORBIDDEN}",
        f", because ns/op cannot be asked for: {NO_SERVER}",
        ", because ns/op cannot be asked for: no answer within 3.3 s",
        ": ns/op is held by z",
    ]


def test_a_holder_that_promised_more_time_is_given_it() -> None:
    async def story() -> None:
        server = Server()
        server.store({"metadata": {}, "spec": {"holderIdentity": "slow", "leaseDurationSeconds": 60}}, fresh=True)
        async with candidate(server, "b") as b:
            assert await leads(b) >= 60

    play(story())


def test_a_holder_that_is_cut_off_has_stopped_before_another_one_begins() -> None:
    async def story() -> None:
        server = Server()
        async with candidate(server, "a") as a, candidate(server, "b") as b:
            await leads(a)
            a.line.cut, cut = True, now()
            with pytest.raises(Lost, match="not renewed for 10 s"):
                await a.task
            assert now() - cut <= TIMING.renew_within
            ((_, ended),) = a.worked
            assert not a.elector.leading
            await leads(b)
            assert now() - ended >= TIMING.duration - TIMING.renew_within - TIMING.retry

    play(story())


def test_a_short_silence_is_survived() -> None:
    async def story() -> None:
        server = Server()
        async with candidate(server, "a") as a, candidate(server, "b") as b:
            await leads(a)
            for _ in range(20):
                a.line.deaf = True
                await asyncio.sleep(5)
                a.line.deaf = False
                await asyncio.sleep(5)
                assert a.elector.leading
            assert not b.elector.leading

    play(story())


def test_who_is_asked_to_end_finishes_its_work_and_then_gives_the_lease_back() -> None:
    async def story() -> None:
        server = Server()
        seen = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(30)  # longer than the Lease lasts without renewal
                seen.append((server.holder, a.leading))

        a = Elector(Line(server), namespace="ns", name="op", identity="a")
        task = asyncio.ensure_future(a.run(work))
        async with candidate(server, "b") as b:
            await asyncio.sleep(5)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert seen == [("a", True)]
            assert server.holder in {"", "b"}
            await leads(b, within=2 * TIMING.retry)

    play(story())


def test_work_that_fails_gives_the_lease_back_and_says_why() -> None:
    async def story() -> None:
        server = Server()

        async def work() -> None:
            raise RuntimeError("a mistake")

        with pytest.raises(RuntimeError, match="a mistake"):
            await Elector(Line(server), namespace="ns", name="op", identity="a").run(work)
        assert server.lease is not None
        assert server.holder == ""

    play(story())


def test_who_was_not_told_that_it_has_the_lease_does_not_wait_for_itself() -> None:
    async def story() -> None:
        server = Server()
        async with candidate(server, "a", deaf=True) as a:
            await asyncio.sleep(1)
            assert server.holder == "a"
            a.line.deaf = False
            await leads(a, within=TIMING.answer + 2 * TIMING.retry)

    play(story())


def test_a_note_on_the_lease_disturbs_nobody() -> None:
    async def story() -> None:
        server = Server()
        async with candidate(server, "a") as a:
            await leads(a)
            for _ in range(10):
                await asyncio.sleep(3.3)
                body = server.get()
                body["metadata"]["annotations"] = {"seen": str(now())}
                server.store(body, fresh=False)
            await asyncio.sleep(10)
            assert a.elector.leading
            assert "seen" in server.get()["metadata"]["annotations"]

    play(story())


def test_a_lease_that_somebody_deletes_is_made_again() -> None:
    async def story() -> None:
        server = Server()
        async with candidate(server, "a") as a:
            await leads(a)
            server.lease = None
            await asyncio.sleep(2 * TIMING.retry)
            assert server.holder == "a"
            assert a.elector.leading

    play(story())


def test_who_is_asked_to_end_while_its_namespace_goes_ends_as_ever() -> None:
    async def story() -> None:
        async with candidate(Server(), "a") as a:
            await leads(a)
            a.line.refused = NO_NAMESPACE
            await asyncio.sleep(TIMING.retry + 1)
            assert a.elector.leading
            a.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await a.task

    play(story())


def test_a_lease_that_cannot_be_made_again_is_given_up_after_few_tries() -> None:
    async def story() -> None:
        async with candidate(Server(), "a") as a:
            await leads(a)
            a.line.asked, a.line.refused = 0, NO_NAMESPACE
            with pytest.raises(Lost, match="not renewed for 10 s"):
                await a.task
            assert a.line.asked <= 1 + TIMING.renew_within / TIMING.retry

    play(story())


def test_who_reads_another_name_in_the_lease_stops_at_once() -> None:
    async def story() -> None:
        server = Server()
        async with candidate(server, "a") as a:
            await leads(a)
            body = server.get()
            body["spec"]["holderIdentity"] = "usurper"
            server.store(body, fresh=False)
            with pytest.raises(Lost, match="held by usurper"):
                await asyncio.wait_for(a.task, 2 * TIMING.retry)
            assert server.holder == "usurper"

    play(story())


@pytest.mark.parametrize("seed", range(40))
def test_two_never_lead_at_once_however_slow_deaf_or_cut_off_their_lines_are(seed: int) -> None:
    async def story() -> None:
        chance, server = random.Random(seed), Server()  # noqa: S311 - a seed that can be replayed
        living = [stand(server, f"c{n}", chance=chance) for n in range(3)]
        led = set()
        for turn in range(3000):
            await asyncio.sleep(chance.choice((0.05, 0.1, 0.5)))
            leading = [each.name for each in living if each.elector.leading]
            assert len(leading) <= 1, leading
            led |= set(leading)
            one = chance.randrange(len(living))
            if chance.random() < 0.05:
                living[one].line.cut = not living[one].line.cut
            if living[one].task.done():  # it lost the Lease, ended, and was started anew
                with suppress(Lost):
                    living[one].task.result()
                living[one] = stand(server, f"c{one}-{turn}", chance=chance)
        for each in living:
            each.task.cancel()
        await asyncio.gather(*(each.task for each in living), return_exceptions=True)
        assert len(led) > 1, "nobody ever took over: the story says nothing"

    play(story())
