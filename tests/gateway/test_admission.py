"""Turns, limits and estimates of admission."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chassis.errors import ResourceExhausted
from gateway.admission import Admission, AdmissionLimits


async def parked(task: "asyncio.Task[None]", admission: Admission, waiting: int) -> None:
    """Lets ``task`` run until it waits in the queue."""
    while admission.waiting < waiting:
        assert not task.done()
        await asyncio.sleep(0)


async def test_requests_get_their_turn_in_order_of_arrival() -> None:
    admission = Admission(AdmissionLimits(1, 8, 30.0))
    await admission.enter()
    order: list[int] = []

    async def queue(number: int) -> None:
        await admission.enter()
        order.append(number)

    tasks = []
    for number in range(3):
        tasks.append(asyncio.create_task(queue(number)))
        await parked(tasks[-1], admission, number + 1)
    for task in tasks:
        admission.leave()
        await task
    assert order == [0, 1, 2]
    assert (admission.in_flight, admission.waiting) == (1, 0)


async def test_a_full_queue_refuses_at_once_with_an_estimate() -> None:
    admission = Admission(AdmissionLimits(1, 1, 30.0))
    await admission.enter()
    task = asyncio.create_task(admission.enter())
    await parked(task, admission, 1)
    with pytest.raises(ResourceExhausted) as caught:
        await admission.enter()
    assert caught.value.reason == "QUEUE_FULL"
    assert caught.value.retry_after is not None and 0 < caught.value.retry_after <= 30
    admission.leave()
    await task


async def test_the_estimate_follows_the_pace_of_the_queue() -> None:
    now = 0.0
    admission = Admission(AdmissionLimits(1, 100, 1000.0), clock=lambda: now)
    await admission.enter()
    tasks = []
    for number in range(60):
        tasks.append(asyncio.create_task(admission.enter()))
        await parked(tasks[-1], admission, number + 1)
    for task in tasks[:50]:
        now += 3.0
        admission.leave()
        await task
    # Ten wait before a newcomer, and a place came free every three seconds.
    assert admission.retry_after() == pytest.approx(33.0, rel=0.05)
    for task in tasks[50:]:
        admission.leave()
        await task


async def test_waiting_too_long_is_refused_and_leaves_no_trace() -> None:
    admission = Admission(AdmissionLimits(1, 8, 0.01))
    await admission.enter()
    with pytest.raises(ResourceExhausted) as caught:
        await admission.enter()
    assert caught.value.reason == "QUEUE_TIMEOUT"
    assert admission.waiting == 0
    admission.leave()
    await admission.enter()


async def test_a_request_cancelled_in_the_queue_gives_up_its_turn() -> None:
    admission = Admission(AdmissionLimits(1, 8, 30.0))
    await admission.enter()
    first = asyncio.create_task(admission.enter())
    await parked(first, admission, 1)
    second = asyncio.create_task(admission.enter())
    await parked(second, admission, 2)
    first.cancel()
    await asyncio.wait([first])
    admission.leave()
    await second
    assert admission.in_flight == 1


@pytest.mark.parametrize(
    "cancel_first", [True, False], ids=["cancel-then-turn", "turn-then-cancel"]
)
async def test_a_turn_that_meets_a_cancel_goes_to_the_next(cancel_first: bool) -> None:
    admission = Admission(AdmissionLimits(1, 8, 30.0))
    await admission.enter()
    first = asyncio.create_task(admission.enter())
    await parked(first, admission, 1)
    second = asyncio.create_task(admission.enter())
    await parked(second, admission, 2)
    if cancel_first:
        first.cancel()
        admission.leave()
    else:
        admission.leave()
        first.cancel()
    await asyncio.wait([first])
    await second
    assert (admission.in_flight, admission.waiting) == (1, 0)
    admission.leave()
    assert admission.in_flight == 0


async def test_what_waits_and_the_tokens_in_flight_are_told() -> None:
    told: list[tuple[int, int, int | None]] = []
    admission = Admission(AdmissionLimits(1, 8, 30.0, lambda: 90), lambda *now: told.append(now))
    await admission.enter(5)
    task = asyncio.create_task(admission.enter(7))
    await parked(task, admission, 1)
    admission.leave(5)
    await task
    assert told == [(0, 5, 90), (1, 5, 90), (0, 7, 90)]


async def test_nobody_overtakes_a_request_that_waits_for_its_tokens() -> None:
    admission = Admission(AdmissionLimits(8, 8, 30.0, lambda: 10))
    await admission.enter(6)
    large = asyncio.create_task(admission.enter(8))
    await parked(large, admission, 1)
    # It would fit beside the first one, again and again, while the large one waits.
    small = asyncio.create_task(admission.enter(1))
    await parked(small, admission, 2)
    admission.leave(6)
    await asyncio.gather(large, small)
    assert (admission.in_flight, admission.tokens_in_flight) == (2, 9)


async def test_what_has_more_tokens_than_may_be_in_flight_runs_alone() -> None:
    admission = Admission(AdmissionLimits(8, 8, 30.0, lambda: 10))
    await admission.enter(1)
    huge = asyncio.create_task(admission.enter(50))
    await parked(huge, admission, 1)
    admission.leave(1)
    await huge
    assert (admission.in_flight, admission.tokens_in_flight) == (1, 50)
    small = asyncio.create_task(admission.enter(1))
    await parked(small, admission, 1)
    admission.leave(50)
    await small


async def test_one_that_gives_up_lets_those_behind_it_in() -> None:
    admission = Admission(AdmissionLimits(8, 8, 30.0, lambda: 10))
    await admission.enter(6)
    large = asyncio.create_task(admission.enter(8))
    await parked(large, admission, 1)
    small = asyncio.create_task(admission.enter(1))
    await parked(small, admission, 2)
    large.cancel()
    await small
    assert admission.tokens_in_flight == 7


async def test_a_limit_that_grows_lets_in_who_waits() -> None:
    limit = 10
    admission = Admission(AdmissionLimits(8, 8, 30.0, lambda: limit))
    await admission.enter(6)
    task = asyncio.create_task(admission.enter(8))
    await parked(task, admission, 1)
    limit = 20
    admission.admit_waiting()
    await task
    assert admission.tokens_in_flight == 14


@given(
    moves=st.lists(st.one_of(st.integers(1, 15), st.sampled_from(["leave", "give up"]))),
    data=st.data(),
)
def test_turns_come_in_order_within_the_limits_and_to_everybody(
    moves: list[int | str], data: st.DataObject
) -> None:
    async def walk() -> None:
        admission = Admission(AdmissionLimits(4, 100, 30.0, lambda: 10))
        waiting: list[tuple[int, asyncio.Task[None]]] = []
        running: list[int] = []

        async def settle() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            while waiting and waiting[0][1].done():
                running.append(waiting.pop(0)[0])
            # Whoever is in came in order: nobody has a turn behind one that waits.
            assert not any(task.done() for _, task in waiting)
            assert (admission.in_flight, admission.waiting) == (len(running), len(waiting))
            assert admission.tokens_in_flight == sum(running)
            assert len(running) <= 4 and (sum(running) <= 10 or len(running) == 1)
            # Who waits at the head would not fit.
            if waiting:
                assert len(running) == 4 or sum(running) + waiting[0][0] > 10

        for move in [*moves, *["leave"] * len(moves)]:
            if isinstance(move, int):
                waiting.append((move, asyncio.create_task(admission.enter(move))))
            elif move == "leave" and running:
                admission.leave(running.pop(data.draw(st.integers(0, len(running) - 1))))
            elif move == "give up" and waiting:
                waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))[1].cancel()
            await settle()
        assert not waiting and not running

    asyncio.run(walk())
