"""Turns, limits and estimates of admission."""

import asyncio

import pytest

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


async def test_the_number_of_waiting_requests_is_told() -> None:
    told: list[int] = []
    admission = Admission(AdmissionLimits(1, 8, 30.0), told.append)
    await admission.enter()
    task = asyncio.create_task(admission.enter())
    await parked(task, admission, 1)
    admission.leave()
    await task
    assert told == [1, 0]
