"""What a worker does when it is told to stop while it works (protocol 5.6)."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.v1 import decode_pb2
from bench.tiny_model import tiny_prompt
from chassis.channel import open_channel
from chassis.health import NOT_SERVING, SERVING
from chassis.status import from_rpc_error
from tests.e2e.split_client import Attempt, SplitClient, is_quiet, split_client
from tests.e2e.tiny_model import POOL
from tests.e2e.worker_process import WorkerProcess, running

LONG: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30_000, "ignore_eos": True}
SHORT: dict[str, Any] = {"temperature": 0.0, "max_tokens": 2, "ignore_eos": True}


@pytest.fixture
def pair(
    request: pytest.FixtureRequest, tiny_model: str, tmp_path: Path
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """A prefill and a decode worker with ``request.param`` seconds of grace."""
    grace = ("--drain-grace", str(request.param))
    with ExitStack() as stack:
        prefill, decode = (
            stack.enter_context(
                running(role, *POOL, *grace, trace_directory=tmp_path, model=tiny_model)
            )
            for role in ("prefill", "decode")
        )
        yield prefill.wait_ready(), decode.wait_ready()


async def health_of(worker: WorkerProcess, *services: str) -> list[int]:
    async with open_channel(worker.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        requests = [health_pb2.HealthCheckRequest(service=service) for service in services]
        return [(await stub.Check(each)).status for each in requests]


async def decoding(client: SplitClient, seed: int) -> Attempt:
    """An attempt that has begun to decode and will for long."""
    attempt = await client.begin(tiny_prompt(30, seed=seed), **LONG)
    await attempt.stepped.wait()
    return attempt


async def refusal(attempt: Attempt) -> str:
    """The reason for which the prefill worker ends an attempt."""
    assert attempt.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attempt.prefill
    return from_rpc_error(caught.value).reason


async def told_to_stop(client: SplitClient, role: str, worker: WorkerProcess) -> None:
    """Returns once the worker's watchers know."""
    worker.terminate()
    await client.watch_until(role, lambda load: not load.accepting)


# Time enough for all that comes before its end.
@pytest.mark.parametrize("pair", [4], indirect=True)
async def test_a_decode_worker_refuses_new_attempts_and_hands_over_what_outlives_its_grace(
    pair: tuple[WorkerProcess, WorkerProcess],
) -> None:
    prefill, decode = pair
    async with split_client(prefill, decode, outlived=False) as client:
        long = await decoding(client, seed=1)
        await told_to_stop(client, "decode", decode)
        states = await health_of(decode, "", "baton.v1.DecodeService")
        assert states == [SERVING, NOT_SERVING]
        late = await client.begin(tiny_prompt(30, seed=2), **SHORT)
        assert (await late.rejected).reason == "WORKER_DRAINING"
        await client.cancel(late)
        finished = await long.outcome()
        assert finished.outcome == decode_pb2.OUTCOME_FAILED
        assert finished.failure.reason == "WORKER_DRAINING"
        await client.watch_until("prefill", is_quiet)
    assert await asyncio.to_thread(decode.wait_exit) == 0
    assert "work may be left after 4 s of draining" in "".join(decode.log)


@pytest.mark.parametrize("pair", [60], indirect=True)
async def test_a_prefill_worker_refuses_new_prompts_and_finishes_what_it_has(
    pair: tuple[WorkerProcess, WorkerProcess],
) -> None:
    prefill, decode = pair
    async with split_client(prefill, decode, outlived=False) as client:
        tokens, attempt_id = tiny_prompt(30, seed=3), os.urandom(16)
        taken = await client.begin(
            tokens, attempt_id=attempt_id, decode_leg=False, hand_off=True, **SHORT
        )
        await taken.prefilled.wait()
        await told_to_stop(client, "prefill", prefill)
        states = await health_of(prefill, "", "baton.v1.PrefillService")
        assert states == [SERVING, NOT_SERVING]
        late = await client.begin(tiny_prompt(30, seed=9), **SHORT)
        assert await refusal(late) == "WORKER_DRAINING"
        await client.cancel(late)
        # What it has taken is pulled while it drains, also by one who comes only now.
        pulling = await client.begin(tokens, attempt_id=attempt_id, prefill_leg=False, **SHORT)
        assert (await pulling.outcome()).outcome == decode_pb2.OUTCOME_COMPLETED
        assert taken.prefill is not None
        await taken.prefill
        await client.watch_until("decode", is_quiet)
    assert await asyncio.to_thread(prefill.wait_exit) == 0


@pytest.mark.parametrize("pair", [3], indirect=True)
async def test_a_prefill_worker_gives_back_what_outlives_its_grace(
    pair: tuple[WorkerProcess, WorkerProcess],
) -> None:
    prefill, _decode = pair
    async with split_client(*pair, outlived=False) as client:
        # Nobody pulls it.
        taken = await client.begin(
            tiny_prompt(30, seed=12), decode_leg=False, hand_off=True, **SHORT
        )
        await taken.prefilled.wait()
        await told_to_stop(client, "prefill", prefill)
        assert await refusal(taken) == "WORKER_DRAINING"
    assert await asyncio.to_thread(prefill.wait_exit) == 0


@pytest.mark.parametrize("pair", [60], indirect=True)
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_second_signal_ends_a_worker_at_once_whatever_it_does(
    pair: tuple[WorkerProcess, WorkerProcess], role: str
) -> None:
    worker = dict(zip(("prefill", "decode"), pair, strict=True))[role]
    async with split_client(*pair, outlived=False) as client:
        await decoding(client, seed=10)
        await client.begin(tiny_prompt(30_000, seed=11), **SHORT)
        await client.watch_until("prefill", lambda load: load.running > 0)
        await told_to_stop(client, role, worker)
        worker.terminate()
        assert await asyncio.to_thread(worker.wait_exit) == 0
    assert "stopping at once" in "".join(worker.log)
