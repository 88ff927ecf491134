"""One read for many: asked once, and never older than the question."""

from __future__ import annotations

import asyncio

import pytest

from gpupartition.controller.together import Together


class Server:
    """Answers with what is written at the moment at which it is asked, when it is let."""

    def __init__(self) -> None:
        self.written = 0
        self.asked = 0
        self.let = asyncio.Semaphore(0)

    async def read(self) -> int:
        self.asked += 1
        seen = self.written
        await self.let.acquire()
        if seen < 0:
            raise LookupError(seen)
        return seen


async def begun(*tasks: asyncio.Task[int]) -> None:
    """Let all go as far as they come by themselves."""
    for _ in range(5 * (len(tasks) + 1)):
        await asyncio.sleep(0)


async def test_who_asks_while_a_read_is_under_way_sees_what_was_written_after_it_had_begun() -> None:
    server, together = Server(), Together[int]()
    first = asyncio.create_task(together.read("node", server.read))
    await begun(first)
    server.written = 1
    later = [asyncio.create_task(together.read("node", server.read)) for _ in range(20)]
    await begun(*later)
    server.let.release()
    assert await first == 0
    server.written = 2
    server.let.release()
    assert await asyncio.gather(*later) in ([1] * 20, [2] * 20)
    assert server.asked == 2, "twenty ask once"


async def test_keys_do_not_wait_for_one_another() -> None:
    server, together = Server(), Together[int]()
    asked = [asyncio.create_task(together.read(key, server.read)) for key in ("a", "b")]
    await begun(*asked)
    assert server.asked == 2
    server.let.release()
    server.let.release()
    assert await asyncio.gather(*asked) == [0, 0]


async def test_what_fails_fails_for_all_who_asked_and_for_nobody_after_them() -> None:
    server, together = Server(), Together[int]()
    server.written = -1
    asked = [asyncio.create_task(together.read("node", server.read)) for _ in range(3)]
    await begun(*asked)
    server.let.release()
    assert [type(answer) for answer in await asyncio.gather(*asked, return_exceptions=True)] == [LookupError] * 3
    server.written = 7
    server.let.release()
    assert await together.read("node", server.read) == 7


async def test_who_goes_away_takes_the_answer_from_nobody() -> None:
    server, together = Server(), Together[int]()
    goes, stays = (asyncio.create_task(together.read("node", server.read)) for _ in range(2))
    await begun(goes, stays)
    goes.cancel()
    server.let.release()
    assert await stays == 0
    with pytest.raises(asyncio.CancelledError):
        await goes
