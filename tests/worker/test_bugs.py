"""A bug that one attempt meets ends this attempt with INTERNAL, and costs no other anything."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1 import decode_pb2
from decode_svc.attempt import Attempt as DecodeAttempt
from decode_svc.hand_off import HandOff
from decode_svc.job import DecodeJob
from kvtransfer.consumer import Consumer
from prefill_svc.job import PrefillJob
from tests.worker.pair import WorkerPair, worker_pair

INTERNAL = grpc.StatusCode.INTERNAL.value[0]
ANSWER: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}


class Bug(Exception):
    """What no code expects."""


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a method raise the first time it is called."""

    def plant(cls: type, name: str, error: BaseException) -> None:
        original = getattr(cls, name)

        def broken(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(cls, name, original)
            raise error

        monkeypatch.setattr(cls, name, broken)

    yield plant


async def check_that_others_go_on(pair: WorkerPair) -> None:
    tokens = await pair.client.generate([9] * 21, **ANSWER)
    assert len(tokens[0]) == 8
    await pair.client.all_blocks_back()
    assert pair.failures == []


@pytest.mark.parametrize(
    ("cls", "name", "error"),
    [
        (HandOff, "_check_completion", Bug()),
        (HandOff, "_check_completion", asyncio.CancelledError()),
        (DecodeJob, "begin", Bug()),
        (DecodeJob, "grant", Bug()),
        (DecodeJob, "released", Bug()),
    ],
    ids=["hand-off", "cancelled from inside", "begin", "grant", "released"],
)
async def test_in_a_hand_off(
    tiny_model: Path,
    bug: Any,
    caplog: pytest.LogCaptureFixture,
    cls: type,
    name: str,
    error: BaseException,
) -> None:
    async with worker_pair(tiny_model) as pair:
        bug(cls, name, error)
        attempt = await pair.client.begin([5] * 20, **ANSWER)
        finished = await attempt.outcome()
        assert finished.outcome == decode_pb2.OUTCOME_FAILED
        assert (finished.failure.code, finished.failure.reason) == (INTERNAL, "INTERNAL")
        await check_that_others_go_on(pair)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert attempt.attempt_id.hex() in record.getMessage()
    assert record.exc_info is not None
    assert record.fields == {"request": attempt.trace_id}  # type: ignore[attr-defined]


async def test_in_a_submit(tiny_model: Path, bug: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with worker_pair(tiny_model) as pair:
        bug(DecodeAttempt, "of", Bug())
        attempt = await pair.client.begin([5] * 20, prefill_leg=False)
        failure = await attempt.rejected
        assert (failure.code, failure.reason) == (INTERNAL, "INTERNAL")
        await check_that_others_go_on(pair)
    assert attempt.attempt_id.hex() in caplog.text


async def test_in_a_pairing(tiny_model: Path, bug: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with worker_pair(tiny_model) as pair:
        bug(Consumer, "pair", Bug("no such pair"))
        await pair.client.send(pair=decode_pb2.Pair(prefill_address="127.0.0.1:1"))
        await check_that_others_go_on(pair)
    assert "no such pair" in caplog.text


@pytest.mark.parametrize("name", ["begin", "advance", "answer"])
async def test_on_prefill(
    tiny_model: Path, bug: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with worker_pair(tiny_model) as pair:
        bug(PrefillJob, name, Bug())
        attempt = await pair.client.begin([5] * 20, **ANSWER)
        assert (await attempt.outcome()).outcome == decode_pb2.OUTCOME_FAILED
        assert attempt.prefill is not None
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await attempt.prefill
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        await check_that_others_go_on(pair)
    assert attempt.attempt_id.hex() in caplog.text
