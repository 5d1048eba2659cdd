"""The multiplexed stream to a decode worker when that does not behave."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from baton.v1 import decode_pb2
from chassis.channel import open_channel
from chassis.errors import ServiceError, Unavailable
from gateway.session import Session
from gateway.turns import Turns
from tests.gateway.scripted_workers import ScriptedDecode


class Deaf(ScriptedDecode):
    """Welcomes a session and then reads nothing more."""

    async def Session(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        await anext(requests)
        welcome = decode_pb2.Welcome(boot_id=self.info.boot_id)
        yield decode_pb2.SessionResponse(welcome=welcome)
        await self.hang_up.wait()


class Collector:
    """Hears of one attempt."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.error: ServiceError | None = None
        self.over = asyncio.Event()

    def decode_token(self, choice: int, index: int, token_id: int, *rest: Any) -> None:
        self.tokens.append(token_id)

    def decode_finished(self, finished: decode_pb2.Finished) -> None:
        self.over.set()

    def decode_failed(self, error: ServiceError) -> None:
        self.error = error
        self.over.set()


class BrokenAtTheEnd(Collector):
    """Has a bug in the last thing it hears."""

    def decode_finished(self, finished: decode_pb2.Finished) -> None:
        raise ZeroDivisionError

    def decode_failed(self, error: ServiceError) -> None:
        super().decode_failed(error)
        raise ZeroDivisionError


class Broken(Collector):
    """Has a bug."""

    def decode_token(self, choice: int, index: int, token_id: int, *rest: Any) -> None:
        raise ZeroDivisionError


@pytest.fixture
async def opened() -> AsyncIterator[Any]:
    """Opens a session with a worker; returns it and the task that runs it."""
    cleanups = []
    turns = Turns()

    async def open_with(worker: ScriptedDecode, **options: float) -> tuple[Session, Any]:
        serving = worker.serving()
        await serving.__aenter__()
        channel = open_channel(worker.address)
        session = Session(channel, "d", worker.info.boot_id, turns, **options)
        has_opened = asyncio.Event()
        task = asyncio.create_task(session.run(has_opened.set))
        cleanups.append((task, channel, serving))
        await asyncio.wait_for(has_opened.wait(), 10)
        return session, task

    yield open_with
    for task, channel, serving in cleanups:
        task.cancel()
        await asyncio.wait([task])
        await channel.close()
        await serving.__aexit__(None, None, None)


async def test_a_worker_that_takes_nothing_is_lost(opened: Any) -> None:
    worker = Deaf()
    session, task = await opened(worker, stall_seconds=0.1)
    sink = Collector()
    # More than gRPC buffers on both sides.
    for _ in range(40):
        session.submit(decode_pb2.Submit(token_ids=[100_000] * 100_000), sink)
    with pytest.raises(Unavailable) as caught:
        await asyncio.wait_for(task, 20)
    assert caught.value.reason == "DECODE_WORKER_LOST"
    assert "took no message" in caught.value.message
    assert isinstance(sink.error, Unavailable)
    assert not session.is_open
    worker.hang_up.set()


async def test_who_ends_a_session_ends_it_also_while_it_breaks(opened: Any) -> None:
    worker = Deaf()
    session, task = await opened(worker, stall_seconds=0.1)
    for _ in range(40):
        session.submit(decode_pb2.Submit(token_ids=[100_000] * 100_000), Collector())
    while session._write_error is None:  # noqa: ASYNC110 - it tells nobody else
        await asyncio.sleep(0)
    # The writer has just given the call up, and the reader has not heard of it.
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    worker.hang_up.set()


async def test_tokens_after_a_cancel_are_dropped(opened: Any) -> None:
    worker = ScriptedDecode()
    session, _task = await opened(worker)
    first, second = Collector(), Collector()
    session.submit(decode_pb2.Submit(choices=[0]), second)
    handle = session.submit(decode_pb2.Submit(choices=[0]), first)
    calls = [await worker.calls.get() for _ in range(2)]
    session.cancel(handle)
    session.cancel(handle)
    calls[1].tokens([5], 1)
    calls[0].tokens([6], 1)
    calls[0].finished(decode_pb2.OUTCOME_COMPLETED)
    await asyncio.wait_for(second.over.wait(), 10)
    assert (first.tokens, second.tokens) == ([], [6])
    assert calls[0].submit.handle != calls[1].submit.handle


async def test_a_bug_in_one_request_does_not_end_the_others(opened: Any) -> None:
    worker = ScriptedDecode()
    session, _task = await opened(worker)
    broken, healthy = Broken(), Collector()
    session.submit(decode_pb2.Submit(choices=[0]), broken)
    session.submit(decode_pb2.Submit(choices=[0]), healthy)
    calls = [await worker.calls.get() for _ in range(2)]
    calls[0].tokens([5], 1)
    calls[1].tokens([6], 1)
    calls[1].finished(decode_pb2.OUTCOME_COMPLETED)
    await asyncio.wait_for(healthy.over.wait(), 10)
    assert healthy.tokens == [6]
    assert broken.error is not None and broken.error.reason == "INTERNAL"
    await asyncio.wait_for(calls[0].cancelled.wait(), 10)


async def test_a_bug_at_the_end_of_one_request_leaves_the_session_open(opened: Any) -> None:
    worker = ScriptedDecode()
    session, _task = await opened(worker)
    broken, healthy = BrokenAtTheEnd(), Collector()
    session.submit(decode_pb2.Submit(choices=[0]), broken)
    session.submit(decode_pb2.Submit(choices=[0]), healthy)
    calls = [await worker.calls.get() for _ in range(2)]
    calls[0].finished(decode_pb2.OUTCOME_COMPLETED)
    calls[1].tokens([6], 1)
    calls[1].finished(decode_pb2.OUTCOME_COMPLETED)
    await asyncio.wait_for(healthy.over.wait(), 10)
    assert healthy.tokens == [6] and session.is_open
    assert broken.error is not None and broken.error.reason == "INTERNAL"


async def test_another_incarnation_is_refused() -> None:
    worker = ScriptedDecode()
    async with worker.serving():
        channel = open_channel(worker.address)
        with pytest.raises(Unavailable, match="was restarted"):
            await Session(channel, "d", b"another boot id.", Turns()).run()
        await channel.close()


async def test_a_session_that_is_not_open_takes_nothing() -> None:
    channel = open_channel("127.0.0.1:1")
    session = Session(channel, "d", bytes(16), Turns())
    with pytest.raises(Unavailable):
        session.submit(decode_pb2.Submit(), Collector())
    await channel.close()


async def test_the_rows_of_large_steps_have_a_turn_of_the_loop_each(opened: Any) -> None:
    workers = [ScriptedDecode(), ScriptedDecode()]
    turn = 0
    taken: list[int] = []

    class Watcher(Collector):
        """Notes the turn in which each token came."""

        def decode_token(self, choice: int, index: int, token_id: int, *rest: Any) -> None:
            taken.append(turn)

    sinks = [Watcher(), Watcher()]
    for worker, sink in zip(workers, sinks, strict=True):
        session, _task = await opened(worker)
        session.submit(decode_pb2.Submit(attempt_id=b"a" * 16, choices=[0]), sink)
    for worker in workers:
        call = await asyncio.wait_for(worker.calls.get(), 10)
        call.tokens([100] * 1000, 1)
        call.finished(decode_pb2.OUTCOME_COMPLETED)
    while not all(sink.over.is_set() for sink in sinks):
        turn += 1
        await asyncio.sleep(0)
    assert len(taken) == 2000
    # A row that comes with its message may share another's turn: a few do, and none of the others.
    assert len(set(taken)) >= 1980
