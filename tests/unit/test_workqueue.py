"""The laws of the work queue, on a clock that leaps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupartition.kube.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class Leap(selectors.DefaultSelector):
    """Where a loop would sleep for its next timer, time leaps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits and no timer is set: this would hang for ever")
        self.now += max(timeout, 0.0)
        return super().select(0)


class LeapingLoop(asyncio.SelectorEventLoop):
    """A real loop with a clock that goes by leaps."""

    def __init__(self) -> None:
        self.leap = Leap()
        super().__init__(self.leap)

    def time(self) -> float:
        return self.leap.now


def play(story: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(story)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_names_are_handed_out_in_the_order_in_which_they_came() -> None:
    async def story() -> list[str]:
        queue = WorkQueue()
        for name in ("b", "a", "c", "a"):
            queue.add(name)
        assert len(queue) == 3
        return [await queue.get() for _ in range(3)]

    assert play(story()) == ["b", "a", "c"]


def test_a_hundred_events_about_one_name_are_one_piece_of_work() -> None:
    async def story() -> None:
        queue = WorkQueue()
        for _ in range(100):
            queue.add("a")
        queue.done(await queue.get())
        assert len(queue) == 0

    play(story())


def test_an_event_while_a_worker_is_busy_is_one_more_piece_of_work_afterwards() -> None:
    async def story() -> None:
        queue = WorkQueue()
        queue.add("a")
        key = await queue.get()
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0, "a name is never in two hands"
        queue.done(key)
        assert await queue.get() == "a"
        queue.done("a")
        assert len(queue) == 0

    play(story())


def test_a_name_that_is_due_later_comes_at_the_earliest_time_that_was_asked_for() -> None:
    async def story() -> list[float]:
        queue = WorkQueue()
        queue.add_after("a", 60)
        queue.add_after("a", 5)
        queue.add_after("a", 30)
        await queue.get()
        first = now()
        queue.done("a")
        queue.add_after("a", 7)
        await queue.get()
        return [first, now()]

    assert play(story()) == pytest.approx([5, 12])


def test_an_event_does_not_cancel_an_appointment() -> None:
    async def story() -> list[float]:
        queue, seen = WorkQueue(), []
        queue.add_after("a", 10)
        queue.add("a")
        for _ in range(2):
            queue.done(await queue.get())
            seen.append(now())
        return seen

    assert play(story()) == pytest.approx([0, 10])


def test_failures_in_a_row_are_tried_again_ever_later_up_to_the_limit_until_one_succeeds() -> None:
    async def story() -> tuple[list[float], float]:
        queue = WorkQueue(first_retry=1, longest_retry=60)
        queue.add("a")
        key, pauses = await queue.get(), []
        for _ in range(40):
            failed = now()
            queue.failed(key)
            key = await queue.get()
            pauses.append(now() - failed)
        queue.done(key)
        queue.add("a")
        return pauses, queue.failed(await queue.get())

    pauses, after_success = play(story())
    for n, pause in enumerate(pauses):
        limit = min(60, 2.0 ** min(n, 20))
        assert limit / 2 - 1e-6 <= pause <= limit + 1e-6, f"pause {n}"
    assert after_success <= 1


def test_something_new_about_a_failed_name_is_looked_at_at_once() -> None:
    async def story() -> float:
        queue = WorkQueue(first_retry=100)
        queue.add("a")
        queue.failed(await queue.get())
        queue.add("a")
        await queue.get()
        return now()

    assert play(story()) == 0


def test_giving_back_what_was_never_taken_is_refused() -> None:
    async def story() -> None:
        with pytest.raises(ValueError, match="without having been taken"):
            WorkQueue().done("a")

    play(story())


def test_a_worker_that_is_cancelled_while_it_waits_takes_no_name_with_it() -> None:
    async def story() -> str:
        queue = WorkQueue()
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return await queue.get()

    assert play(story()) == "a"


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.0, 0.3, 1.0, 4.0])), max_size=30)
WORK = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 2.0]), st.booleans()), min_size=1, max_size=12)


@settings(deadline=None)
@given(events=EVENTS, work=WORK, workers=st.integers(1, 4))
def test_whatever_happens_no_name_is_in_two_hands_and_none_is_forgotten(
    events: list[tuple[str, float]], work: list[tuple[float, bool]], workers: int
) -> None:
    async def story() -> None:
        queue = WorkQueue(first_retry=0.2, longest_retry=1)
        in_hand: Counter[str] = Counter()
        unseen: set[str] = set()
        turns = iter(work)

        async def worker() -> None:
            while True:
                key = await queue.get()
                in_hand[key] += 1
                assert in_hand[key] == 1
                unseen.discard(key)
                lasts, fails = next(turns, (0.1, False))
                await asyncio.sleep(lasts)
                in_hand[key] -= 1
                if fails:
                    unseen.add(key)
                    queue.failed(key)
                else:
                    queue.done(key)

        async with asyncio.TaskGroup() as group:
            working = [group.create_task(worker()) for _ in range(workers)]
            for key, gap in events:
                unseen.add(key)
                queue.add(key)
                await asyncio.sleep(gap)
            await asyncio.sleep(1000)
            assert not unseen
            assert len(queue) == 0
            for task in working:
                task.cancel()

    play(story())
