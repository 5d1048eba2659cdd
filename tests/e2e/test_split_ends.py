"""How attempts end other than well: refused, cancelled, late; every block comes back."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1 import decode_pb2, prefill_pb2
from chassis.status import from_rpc_error
from tests.e2e.prompts import prompt
from tests.e2e.split_client import Attempt, SplitClient, split_client
from tests.e2e.worker_process import WorkerProcess


async def test_an_attempt_is_taken_once_by_each_worker(client: SplitClient) -> None:
    tokens = prompt(20, seed=9)
    first = await client.begin(tokens, temperature=0.0, max_tokens=5_000, ignore_eos=True)
    await first.stepped.wait()
    again = await client.begin(tokens, attempt_id=first.attempt_id, temperature=0.0, max_tokens=3)
    assert (await again.rejected).reason == "ATTEMPT_EXISTS"
    assert again.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await again.prefill
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    await client.cancel(first)
    assert (await first.finished).outcome == decode_pb2.OUTCOME_CANCELLED


async def test_messages_for_an_earlier_process_are_refused(client: SplitClient) -> None:
    request = prefill_pb2.PrefillRequest(attempt_id=os.urandom(16), boot_id=bytes(16))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.prefill_stub.Prefill(request).read()
    assert from_rpc_error(caught.value).reason == "BOOT_ID_STALE"
    session = client.decode_stub.Session()
    hello = decode_pb2.Hello(boot_id=bytes(16))
    await session.write(decode_pb2.SessionRequest(hello=hello))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await session.read()
    assert from_rpc_error(caught.value).reason == "BOOT_ID_STALE"


async def test_a_submit_that_names_an_earlier_prefill_process_fails(client: SplitClient) -> None:
    client.boot_ids["prefill"] = os.urandom(16)
    attempt = await client.begin(prompt(20, seed=10), prefill_leg=False, max_tokens=3)
    finished = await attempt.outcome()
    assert finished.outcome == decode_pb2.OUTCOME_FAILED
    assert finished.failure.reason == "BOOT_ID_STALE"


async def test_cancel_is_answered_for_a_handle_that_nobody_knows(client: SplitClient) -> None:
    attempt = await client.begin([5], prefill_leg=False, decode_leg=False)
    await client.cancel(attempt)
    assert (await attempt.finished).outcome == decode_pb2.OUTCOME_CANCELLED


async def _until_waiting(client: SplitClient, attempt: Attempt) -> None:
    # It may have got its blocks already: then it waits for its turn in a step.
    await client.watch_until("prefill", lambda load: load.waiting > 0 or load.running > 1)


async def _until_computing(client: SplitClient, attempt: Attempt) -> None:
    await client.watch_until("prefill", lambda load: load.blocks.leased > 0)


async def _until_first_token(client: SplitClient, attempt: Attempt) -> None:
    await attempt.prefilled.wait()


async def _until_decoding(client: SplitClient, attempt: Attempt) -> None:
    await attempt.stepped.wait()


@pytest.mark.parametrize(
    "state",
    [_until_waiting, _until_computing, _until_first_token, _until_decoding],
    ids=["queued", "in prefill", "in transfer", "in decode"],
)
async def test_a_cancelled_request_gives_every_block_back(
    client: SplitClient, state: Callable[[SplitClient, Attempt], Awaitable[None]]
) -> None:
    busy = await client.begin(prompt(1_000, seed=20), temperature=0.0, max_tokens=2)
    attempt = await client.begin(
        prompt(600, seed=21), temperature=0.0, max_tokens=1_000, ignore_eos=True
    )
    await state(client, attempt)
    await client.cancel(attempt)
    assert (await attempt.outcome()).outcome == decode_pb2.OUTCOME_CANCELLED
    await busy.result()
    await client.all_blocks_back()


async def test_a_choice_that_is_cancelled_stops_and_the_others_go_on(client: SplitClient) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 8, "ignore_eos": True}
    attempt = await client.begin(prompt(40, seed=90), choices=(0, 1), max_tokens=200, **options)
    await attempt.stepped.wait()
    await client.send(cancel=decode_pb2.Cancel(handle=attempt.handle, choices=[1]))
    tokens = await attempt.result()
    assert len(tokens[0]) == 200
    assert len(tokens[1]) < 200
    await client.all_blocks_back()


async def test_a_deadline_ends_both_legs_and_gives_every_block_back(client: SplitClient) -> None:
    attempt = await client.begin(
        prompt(30, seed=22), seconds=1.0, temperature=0.0, max_tokens=5_000, ignore_eos=True
    )
    assert (await attempt.outcome()).outcome == decode_pb2.OUTCOME_CANCELLED
    await client.all_blocks_back()


async def test_a_deadline_that_has_passed_is_rejected(client: SplitClient) -> None:
    attempt = await client.begin([5], seconds=-1.0, prefill_leg=False, max_tokens=3)
    assert (await attempt.rejected).reason == "DEADLINE_EXCEEDED"


async def test_a_broken_session_gives_every_block_back(
    workers: tuple[WorkerProcess, WorkerProcess],
) -> None:
    async with split_client(*workers) as client:
        attempt = await client.begin(
            prompt(30, seed=23), temperature=0.0, max_tokens=5_000, ignore_eos=True
        )
        await attempt.stepped.wait()
        client.session.cancel()
        await client.watch_until("decode", lambda load: load.running == 0)


async def test_a_prompt_that_fails_on_decode_frees_prefill_too(client: SplitClient) -> None:
    tokens = prompt(30, seed=24)
    attempt = await client.begin(tokens, temperature=0.0, max_tokens=5_000, ignore_eos=True)
    await attempt.prefilled.wait()
    await client.send(cancel=decode_pb2.Cancel(handle=attempt.handle))
    assert (await attempt.outcome()).outcome == decode_pb2.OUTCOME_CANCELLED
    await client.all_blocks_back()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"token_ids": [49_152]}, "TOKEN_ID_UNKNOWN"),
        ({"token_ids": []}, "PROMPT_EMPTY"),
        ({"token_ids": [5], "choices": (3, 3)}, "CHOICES_INVALID"),
        ({"token_ids": [5], "max_tokens": 10_000}, "CONTEXT_EXCEEDED"),
        ({"token_ids": [5], "temperature": float("nan")}, "VALUE_NOT_FINITE"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_no_step_could_compute_is_refused_by_both_workers(
    client: SplitClient, options: dict[str, object], reason: str
) -> None:
    attempt = await client.begin(**options)  # type: ignore[arg-type]
    assert (await attempt.rejected).reason == reason
    assert attempt.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attempt.prefill
    error = from_rpc_error(caught.value)
    assert (caught.value.code(), error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
