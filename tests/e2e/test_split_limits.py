"""Workers with hardly any room, and workers that must not or no longer serve."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1 import decode_pb2
from chassis.model_store import resolve
from chassis.status import from_rpc_error
from tests.e2e.engine_reference import Reference
from tests.e2e.pool_size import pool_of
from tests.e2e.prompts import prompt
from tests.e2e.split_client import SplitClient, split_client
from tests.e2e.worker_process import WorkerProcess, running

TINY = (*pool_of(12), "--max-queue", "2")


@pytest.fixture(scope="module")
def tiny_workers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """Both workers with twelve blocks, seats for two waiting requests, and little patience."""
    traces = tmp_path_factory.mktemp("traces")
    impatient = ("--handoff-timeout", "15", "--revoke-after", "0.1")
    slow = ("--max-num-batched-tokens", "16")
    with (
        running("prefill", *TINY, *impatient, *slow, trace_directory=traces) as prefill,
        running("decode", *TINY, trace_directory=traces) as decode,
    ):
        yield prefill.wait_ready(), decode.wait_ready()


@pytest.fixture
async def tiny(tiny_workers: tuple[WorkerProcess, WorkerProcess]) -> AsyncIterator[SplitClient]:
    async with split_client(*tiny_workers) as client:
        yield client


async def test_a_preempted_request_goes_on_in_a_new_attempt_and_loses_no_token(
    tiny: SplitClient, reference: Reference
) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_tokens": 60, "ignore_eos": True}
    prompts = [prompt(70, seed=seed) for seed in (40, 41)]
    # Together they grow to 18 blocks.
    attempts = [await tiny.begin(tokens, **options) for tokens in prompts]
    outcomes = [await attempt.outcome() for attempt in attempts]
    assert [finished.outcome for finished in outcomes] == [
        decode_pb2.OUTCOME_COMPLETED,
        decode_pb2.OUTCOME_PREEMPTED,
    ]
    assert (list(outcomes[1].unfinished_choices), outcomes[1].preemptions) == ([0], 1)
    expected = [reference.generate(tokens, **options) for tokens in prompts]
    assert attempts[0].tokens == expected[0]
    committed = attempts[1].tokens[0]
    assert 1 < len(committed) < 60
    rest = await tiny.generate([*prompts[1], *committed], num_prompt_tokens=70, **options)
    assert committed + rest[0] == expected[1][0]


async def test_what_never_fits_is_refused_with_both_numbers(tiny: SplitClient) -> None:
    attempt = await tiny.begin(prompt(300, seed=42), temperature=0.0, max_tokens=10)
    failure = await attempt.rejected
    assert failure.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert "20 KV blocks" in failure.message
    assert "has 12" in failure.message
    assert attempt.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attempt.prefill
    error = from_rpc_error(caught.value)
    assert (caught.value.code(), error.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "POOL_TOO_SMALL",
    )


async def test_a_full_queue_is_refused_with_a_time_to_retry(tiny: SplitClient) -> None:
    # The first fills the pool of prefill for a dozen steps, so the second waits.
    options: dict[str, Any] = {"decode_leg": False, "temperature": 0.0, "max_tokens": 2}
    first = await tiny.begin(prompt(190, seed=43), **options)
    await tiny.watch_until("prefill", lambda load: load.running == 1)
    waiting = [await tiny.begin(prompt(20, seed=seed), **options) for seed in (44, 45)]
    await tiny.watch_until("prefill", lambda load: load.waiting == 2)
    refused = await tiny.begin(prompt(20, seed=53), **options)
    assert refused.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await refused.prefill
    error = from_rpc_error(caught.value)
    assert (caught.value.code(), error.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
    )
    assert error.retry_after is not None
    assert error.retry_after > 0
    # What continues an answer was admitted once, and is taken.
    going_on = await tiny.begin(prompt(20, seed=55), num_prompt_tokens=19, **options)
    for attempt in (first, *waiting, going_on):
        assert attempt.prefill is not None
        await attempt.prefill


async def test_a_full_decode_queue_rejects_and_goes_on_reading(tiny: SplitClient) -> None:
    options: dict[str, Any] = {"prefill_leg": False, "max_tokens": 5}
    waiting = [await tiny.begin(prompt(20, seed=seed), **options) for seed in (46, 47)]
    refused = await tiny.begin(prompt(20, seed=54), **options)
    failure = await refused.rejected
    assert failure.reason == "QUEUE_FULL"
    assert failure.HasField("retry_delay")
    going_on = await tiny.begin(prompt(20, seed=55), num_prompt_tokens=19, **options)
    for attempt in (*waiting, going_on):
        await tiny.cancel(attempt)
        assert (await attempt.finished).outcome == decode_pb2.OUTCOME_CANCELLED


async def test_a_prompt_nobody_pulls_makes_room_for_one_that_is(tiny: SplitClient) -> None:
    left_alone = await tiny.begin(
        prompt(170, seed=48), decode_leg=False, hand_off=True, temperature=0.0, max_tokens=5
    )
    await left_alone.prefilled.wait()
    wanted = await tiny.begin(prompt(100, seed=49), temperature=0.0, max_tokens=5)
    await wanted.result()
    assert left_alone.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await left_alone.prefill
    assert caught.value.code() == grpc.StatusCode.ABORTED
    assert from_rpc_error(caught.value).reason == "LEASE_REVOKED"


async def test_a_prompt_nobody_comes_for_is_given_up(tiny: SplitClient) -> None:
    attempt = await tiny.begin(
        prompt(20, seed=50), decode_leg=False, hand_off=True, temperature=0.0, max_tokens=5
    )
    assert attempt.prefill is not None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attempt.prefill
    assert caught.value.code() == grpc.StatusCode.ABORTED
    assert from_rpc_error(caught.value).reason == "HANDOFF_TIMEOUT"


async def test_a_draining_worker_finishes_what_it_has_and_takes_nothing_new(
    tmp_path: Path,
) -> None:
    with (
        running("prefill", *TINY, trace_directory=tmp_path) as prefill,
        running("decode", *TINY, "--drain-grace", "250", trace_directory=tmp_path) as decode,
    ):
        async with split_client(
            prefill.wait_ready(), decode.wait_ready(), outlived=False
        ) as client:
            running_on = await client.begin(
                prompt(20, seed=51), temperature=0.0, max_tokens=100, ignore_eos=True
            )
            await running_on.stepped.wait()
            decode.terminate()
            await client.watch_until("decode", lambda load: not load.accepting)
            late = await client.begin(prompt(20, seed=52), prefill_leg=False, max_tokens=5)
            assert (await late.rejected).reason == "WORKER_DRAINING"
            assert len((await running_on.result())[0]) == 100
            assert await asyncio.to_thread(decode.wait_exit) == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_truncated_checkpoint_stops_the_service_in_one_line(role: str, tmp_path: Path) -> None:
    whole = resolve("smollm2-135m").path.read_bytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(whole[: len(whole) // 2])
    with running(role, trace_directory=tmp_path, model=str(broken)) as worker:
        assert worker.wait_exit() == 1
    (line,) = worker.log
    assert "cannot start" in line
    assert "broken.gguf" in line


def test_a_worker_whose_transport_is_unusable_refuses_to_start(tmp_path: Path) -> None:
    with running("decode", *TINY, trace_directory=tmp_path, UCX_TLS="rc_mlx5") as worker:
        assert worker.wait_exit() == 1
    assert "cannot start" in worker.log[-1]
    assert "UCX_TLS" in worker.log[-1]
    assert not any("Traceback" in line for line in worker.log)
