"""A cancel is legal at any time, after the end and twice, and what comes later is refused
(protocol 2.2, 3.2, 5.1)."""

import asyncio
from pathlib import Path

from baton.v1 import decode_pb2
from tests.e2e.split_client import Attempt
from tests.worker.pair import WorkerPair, worker_pair

PROMPT = [5] * 20


async def cancelled_again(pair: WorkerPair, attempt: Attempt) -> decode_pb2.Finished:
    """What a decode worker says to a cancel of an attempt that is over."""
    attempt.finished = asyncio.Future()
    await pair.client.cancel(attempt)
    return await attempt.finished


async def test_of_an_attempt_that_has_sent_its_last_token(tiny_model: Path) -> None:
    async with worker_pair(tiny_model) as pair:
        attempt = await pair.client.begin(PROMPT, max_tokens=4, ignore_eos=True)
        assert len((await attempt.result())[0]) == 4
        for _ in range(2):
            again = await cancelled_again(pair, attempt)
            assert again.outcome == decode_pb2.OUTCOME_CANCELLED
        await pair.client.all_blocks_back()


async def test_of_an_attempt_that_was_cancelled_while_it_ran(tiny_model: Path) -> None:
    async with worker_pair(tiny_model) as pair:
        attempt = await pair.client.begin(PROMPT, max_tokens=480, ignore_eos=True)
        await attempt.stepped.wait()
        await pair.client.cancel(attempt)
        assert (await attempt.outcome()).outcome == decode_pb2.OUTCOME_CANCELLED
        again = await cancelled_again(pair, attempt)
        assert again.outcome == decode_pb2.OUTCOME_CANCELLED
        await pair.client.all_blocks_back()


async def test_a_leg_that_comes_after_the_cancel_of_the_other_one_gets_nothing(
    tiny_model: Path,
) -> None:
    async with worker_pair(tiny_model) as pair:
        taken = await pair.client.begin(PROMPT, decode_leg=False, hand_off=True, max_tokens=4)
        await taken.prefilled.wait()
        await pair.client.cancel(taken)
        await pair.client.watch_until("prefill", lambda load: load.handing_off == 0)
        late = await pair.client.begin(
            PROMPT, attempt_id=taken.attempt_id, prefill_leg=False, max_tokens=4
        )
        finished = await late.outcome()
        assert finished.outcome == decode_pb2.OUTCOME_FAILED
        assert finished.failure.reason == "ATTEMPT_UNKNOWN"
        assert not late.tokens
        await pair.client.all_blocks_back()
