"""When a thread counts as stuck (protocol 5.2)."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import torch

from engine.loop import EngineLoop
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Ended
from kvtransfer.transport.local import LocalFabric, LocalTransport
from worker.watchdog import ThreadStuck, Watchdog

LIMIT = 10.0
PATIENCE = 30.0


def unexpected(error: BaseException) -> None:
    raise AssertionError from error


class Gate:
    """Work that takes as long as the test wants."""

    def __init__(self) -> None:
        self.entered, self.may_leave = threading.Semaphore(0), threading.Semaphore(0)

    def step(self) -> bool:
        return False

    def hang_in_here(self) -> None:
        self.entered.release()
        assert self.may_leave.acquire(timeout=PATIENCE)


class HangingTransport(LocalTransport):
    """Its first poll comes back when the test wants it to."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(torch.zeros(8, 4), "us", LocalFabric())
        self._gate = gate
        self._has_hung = False

    def poll(self) -> list[Ended]:
        if not self._has_hung:
            self._has_hung = True
            self._gate.hang_in_here()
        return super().poll()


@asynccontextmanager
async def busy_engine(gate: Gate) -> AsyncIterator[EngineLoop]:
    """An engine that is in the midst of something, until the test lets it go."""
    engine = EngineLoop(gate, on_failure=lambda error: None)
    engine.start()
    engine.post(gate.hang_in_here)
    assert await asyncio.to_thread(gate.entered.acquire, timeout=PATIENCE)
    try:
        yield engine
    finally:
        gate.may_leave.release()
        await asyncio.to_thread(engine.stop)


def not_expected(error: BaseException) -> None:
    raise error


async def until_asleep(engine: EngineLoop) -> None:
    # The engine tells nobody when it goes to sleep.
    async with asyncio.timeout(PATIENCE):
        while engine.turn is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_step_that_takes_its_time_is_not_stuck_and_one_that_never_ends_is() -> None:
    async with busy_engine(Gate()) as engine:
        watchdog = Watchdog((engine,), not_expected)
        assert watchdog.look(0.5, LIMIT) is None
        assert watchdog.look(LIMIT, LIMIT) is None
        assert watchdog.look(0.5, LIMIT) is engine.thread


async def test_long_steps_one_after_the_other_are_no_fault() -> None:
    gate = Gate()
    async with busy_engine(gate) as engine:
        watchdog = Watchdog((engine,), not_expected)
        for _ in range(3):
            watchdog.look(0.5, LIMIT)
            assert watchdog.look(LIMIT - 1, LIMIT) is None
            engine.post(gate.hang_in_here)
            gate.may_leave.release()
            assert await asyncio.to_thread(gate.entered.acquire, timeout=PATIENCE)


async def test_an_engine_without_work_may_sleep_for_ever() -> None:
    gate = Gate()
    async with busy_engine(gate) as engine:
        gate.may_leave.release()
        await until_asleep(engine)
        watchdog = Watchdog((engine,), not_expected)
        assert not any(watchdog.look(LIMIT, LIMIT) for _ in range(3))


async def test_transfers_that_never_come_back_are_stuck_and_those_that_wait_are_not() -> None:
    gate = Gate()
    transfers = TransferThread([HangingTransport(gate)])
    watchdog = Watchdog((transfers,), unexpected)
    transfers.start()
    assert not any(watchdog.look(LIMIT, LIMIT) for _ in range(3))
    transfers.linger(PATIENCE)
    assert await asyncio.to_thread(gate.entered.acquire, timeout=PATIENCE)
    assert watchdog.look(0.5, LIMIT) is None
    assert watchdog.look(LIMIT + 1, LIMIT) is transfers.thread
    gate.may_leave.release()
    await asyncio.to_thread(transfers.stop)


async def test_a_stuck_engine_ends_the_worker_and_the_log_says_where(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with busy_engine(Gate()) as engine:
        given_up: asyncio.Future[BaseException] = asyncio.Future()
        watchdog = Watchdog((engine,), given_up.set_result)
        watchdog.start(0.1)
        error = await asyncio.wait_for(given_up, PATIENCE)
        watchdog.stop()
    assert isinstance(error, ThreadStuck)
    assert "hang_in_here" in caplog.text
