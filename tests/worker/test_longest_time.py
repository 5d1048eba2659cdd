"""How long an attempt may take (protocol 5.1): its deadline, or else ``max_request_seconds``."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1 import decode_pb2
from chassis.status import from_rpc_error
from tests.e2e.split_client import Attempt
from tests.worker.pair import ENGINE, worker_pair

SHORT = replace(ENGINE, max_request_seconds=0.05)
LONG_ANSWER: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}


async def status_of(attempt: Attempt) -> grpc.aio.AioRpcError:
    assert attempt.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attempt.prefill
    return caught.value


async def test_a_deadline_beyond_the_longest_time_counts(tiny_model: Path) -> None:
    async with worker_pair(tiny_model, engine=SHORT) as pair:
        pair.fabric.held = True
        attempt = await pair.client.begin([5] * 20, seconds=60, **LONG_ANSWER)
        await attempt.prefilled.wait()
        async with asyncio.timeout(20):
            # Without a deadline the next one ends after the longest time: more than that passes.
            other = await pair.client.begin([6] * 20, hand_off=True, decode_leg=False)
            await status_of(other)
            pair.fabric.held = False
            assert len((await attempt.result())[0]) == 400


async def test_prefill_ends_an_attempt_without_a_deadline_after_the_longest_time(
    tiny_model: Path,
) -> None:
    async with worker_pair(tiny_model, engine=SHORT) as pair:
        attempt = await pair.client.begin([5] * 20, hand_off=True, decode_leg=False)
        error = await status_of(attempt)
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert from_rpc_error(error).reason == "REQUEST_TOO_LONG"


async def test_decode_ends_an_attempt_without_a_deadline_after_the_longest_time(
    tiny_model: Path,
) -> None:
    async with worker_pair(tiny_model, engine=SHORT) as pair:
        attempt = await pair.client.begin([5] * 20, prefill_leg=False)
        finished = await attempt.outcome()
        assert finished.outcome == decode_pb2.OUTCOME_CANCELLED
