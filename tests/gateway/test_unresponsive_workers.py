"""Workers whose connection lives and who do nothing: silent, or stuck in a step (protocol 5.2)."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from baton.v1 import decode_pb2, worker_pb2
from chassis.channel import open_channel
from chassis.errors import Unavailable
from gateway import worker_link
from gateway.circuit import RetryBudget
from gateway.worker import Worker, WorkerIdentity
from tests.gateway.scripted_workers import LENGTH, ScriptedPrefill, ScriptedWorker
from tests.gateway.stage import Stage, error_of, request


def worker_of(stage: Stage, role: str) -> ScriptedWorker:
    return {"prefill": stage.prefill[0], "decode": stage.decode[0]}[role]


async def until_gone(stage: Stage, role: str, problem: str) -> None:
    async with asyncio.timeout(30):
        await stage.pool.wait_until(lambda: problem in stage.pool.why_none(role))
    assert not stage.router.has_pair()


async def until_all_report(stage: Stage, steps: int) -> None:
    """Returns once the gateway has heard of so many steps from every worker."""
    for worker in (*stage.prefill, *stage.decode):
        worker.report(steps=steps)

    def all_have() -> bool:
        known = (*stage.pool.prefill_workers, *stage.pool.decode_workers)
        return [worker.load.steps for worker in known] == [steps, steps]

    async with asyncio.timeout(10):
        await stage.pool.wait_until(all_have)


async def check_goes_on(stage: Stage, role: str, call: Awaitable[Any]) -> None:
    """Decode computes the prompt where prefill is gone; without decode nothing can."""
    if role == "decode":
        assert isinstance(await error_of(call), Unavailable)
        return
    async with asyncio.timeout(10):
        decode = await stage.decode[0].calls.get()
    assert decode.submit.prefill_address == ""
    decode.tokens([101], 0, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    await call


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_that_falls_silent_loses_its_requests_and_gets_no_other(
    stage: Stage, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_link, "_SILENCE_SECONDS", 2.0)
    call = stage.stub.Generate(request())
    await stage.legs()
    worker = worker_of(stage, role)
    worker.watch_interval = None
    await until_gone(stage, role, "has said nothing for 2 s")
    await check_goes_on(stage, role, call)
    assert stage.metric("baton_workers_lost_total", role=role, reason="WORKER_SILENT") >= 1
    worker.watch_interval = 0.1
    async with asyncio.timeout(30):
        await stage.pool.wait_until(stage.router.has_pair)


async def test_a_worker_is_not_silent_while_the_gateway_itself_is_stopped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_link, "_SILENCE_SECONDS", 1.5)
    workers = (*stage.prefill, *stage.decode)
    await until_all_report(stage, steps=1)
    # As SIGSTOP does: time goes by, and nothing is read.
    time.sleep(3.0)  # noqa: ASYNC251
    await until_all_report(stage, steps=2)
    assert [worker.num_watches for worker in workers] == [1, 1]


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_that_is_stuck_loses_its_requests_and_gets_no_other_until_it_moves(
    stage: Stage, role: str
) -> None:
    call = stage.stub.Generate(request())
    await stage.legs()
    worker = worker_of(stage, role)
    worker.report(running=1, steps=7, step_limit=0.3)
    await until_gone(stage, role, "is stuck in step 8, with 1 requests running")
    await check_goes_on(stage, role, call)
    assert stage.metric("baton_workers_lost_total", role=role, reason="WORKER_STUCK") == 1
    # Looked at again and again, and not taken for well.
    num_watches = worker.num_watches
    async with asyncio.timeout(30):
        while worker.num_watches < num_watches + 3:  # noqa: ASYNC110  # a count, in a fake
            await asyncio.sleep(0.01)
    assert not stage.router.has_pair()
    worker.report(steps=8)
    async with asyncio.timeout(30):
        await stage.pool.wait_until(stage.router.has_pair)


async def test_a_worker_that_was_slow_once_is_not_slow_for_ever() -> None:
    now = 0.0
    async with open_channel("127.0.0.1:1") as channel:
        identity = WorkerIdentity.from_pb(ScriptedPrefill().info, "127.0.0.1:1")
        worker = Worker(identity, channel, RetryBudget(), clock=lambda: now)
        worker.report(worker_pb2.WorkerLoad(steps=2, rate=1.6))
        assert worker.rate == 1.6
        for _ in range(20):
            now += 1.0
            worker.report(worker_pb2.WorkerLoad(steps=2, rate=1.6))
        assert worker.rate == 0.0
        worker.report(worker_pb2.WorkerLoad(steps=3, rate=0.5))
        assert worker.rate == 0.5


async def test_steps_may_stand_still_for_as_long_as_one_may_take_or_nothing_runs() -> None:
    now = 0.0
    async with open_channel("127.0.0.1:1") as channel:
        identity = WorkerIdentity.from_pb(ScriptedPrefill().info, "127.0.0.1:1")
        worker = Worker(identity, channel, RetryBudget(), clock=lambda: now)

        def report(**load: Any) -> bool:
            worker.report(worker_pb2.WorkerLoad(**{"step_limit": 10.0, **load}))
            return worker.is_stuck

        assert not report(steps=3, running=1)
        now += 9.0
        assert not report(steps=3, running=1)
        now += 2.0
        assert report(steps=3, running=1)
        assert not report(steps=4, running=1)
        now += 60.0
        assert not report(steps=4, running=0)
        now += 60.0
        assert not report(steps=4, running=1, waiting=5)
        now += 60.0
        assert not report(steps=4, running=1, step_limit=0.0)
