"""One write in flight, steps merged meanwhile, and a gateway that takes nothing given up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from baton.v1 import decode_pb2
from chassis.errors import Unavailable
from decode_svc.outbox import Outbox


class Gateway:
    """Takes one message whenever it is allowed to."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[decode_pb2.SessionResponse] = asyncio.Queue()
        self._allowed = asyncio.Semaphore(0)
        self.offered = asyncio.Event()

    def allow(self) -> None:
        self._allowed.release()

    async def write(self, response: decode_pb2.SessionResponse) -> None:
        self.offered.set()
        await self._allowed.acquire()
        self.offered.clear()
        self.taken.put_nowait(response)


def step(
    handle: int, *, logprob: float | None = None, ends: bool = False
) -> decode_pb2.StepOutputs:
    made = decode_pb2.StepOutputs(handles=[handle], choices=[0], indices=[1], token_ids=[handle])
    if logprob is not None:
        made.logprobs.add(row=0).logprobs.chosen.logprob = logprob
    if ends:
        made.finishes.add(row=0)
    return made


def finished(handle: int) -> decode_pb2.SessionResponse:
    return decode_pb2.SessionResponse(finished=decode_pb2.Finished(handle=handle))


@asynccontextmanager
async def draining(outbox: Outbox, gateway: Gateway) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(outbox.drain(gateway.write))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_steps_that_come_during_a_write_are_one_message() -> None:
    outbox, gateway = Outbox(), Gateway()
    async with draining(outbox, gateway):
        outbox.put_step(step(1))
        await gateway.offered.wait()
        for handle in (2, 3, 4):
            outbox.put_step(step(handle))
        gateway.allow()
        gateway.allow()
        assert list((await gateway.taken.get()).step.handles) == [1]
        assert list((await gateway.taken.get()).step.handles) == [2, 3, 4]


async def test_merged_rows_keep_their_logprobs_and_ends() -> None:
    outbox, gateway = Outbox(), Gateway()
    outbox.put_step(step(1, logprob=-1.0))
    outbox.put_step(step(2))
    outbox.put_step(step(3, logprob=-3.0, ends=True))
    async with draining(outbox, gateway):
        gateway.allow()
        merged = (await gateway.taken.get()).step
    assert [(each.row, each.logprobs.chosen.logprob) for each in merged.logprobs] == [
        (0, -1.0),
        (2, -3.0),
    ]
    assert [each.row for each in merged.finishes] == [2]


async def test_the_last_word_about_an_attempt_follows_its_rows() -> None:
    outbox, gateway = Outbox(), Gateway()
    outbox.put_step(step(1))
    outbox.put(finished(1))
    outbox.put_step(step(2))
    async with draining(outbox, gateway):
        gateway.allow()
        gateway.allow()
        assert list((await gateway.taken.get()).step.handles) == [1, 2]
        assert (await gateway.taken.get()).finished.handle == 1


async def test_a_gateway_that_takes_nothing_is_given_up() -> None:
    outbox, gateway = Outbox(stall_seconds=0.01), Gateway()
    outbox.put_step(step(1))
    async with draining(outbox, gateway) as task:
        with pytest.raises(Unavailable) as caught:
            await task
    assert caught.value.reason == "SESSION_STALLED"


async def test_steps_without_end_do_not_hold_back_what_else_is_said() -> None:
    """Each write lets another step in; what was pending with a step is still written after it."""
    outbox, gateway = Outbox(), Gateway()
    async with draining(outbox, gateway):
        outbox.put_step(step(1))
        outbox.put(finished(1))
        for _ in range(2):
            await gateway.offered.wait()
            outbox.put_step(step(2))
            gateway.allow()
            kinds = (await gateway.taken.get()).WhichOneof("message")
        assert kinds == "finished"
