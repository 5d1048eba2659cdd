"""An attempt id is good for one attempt (protocol 1.2, 3.2)."""

from pathlib import Path

from tests.worker.pair import worker_pair


async def test_decode_remembers_an_attempt_for_a_minute_after_its_end(tiny_model: Path) -> None:
    now = 0.0
    async with worker_pair(tiny_model, clock=lambda: now) as pair:
        attempt = await pair.client.begin([5] * 20, prefill_leg=False)
        now += 100.0
        await pair.client.cancel(attempt)
        await attempt.finished
        now += 59.0
        again = await pair.client.begin([5] * 20, prefill_leg=False, attempt_id=attempt.attempt_id)
        assert (await again.rejected).reason == "ATTEMPT_EXISTS"
        now += 1.0
        later = await pair.client.begin([5] * 20, prefill_leg=False, attempt_id=attempt.attempt_id)
        await pair.client.cancel(later)
        assert not (await later.outcome()).HasField("failure")


async def test_decode_refuses_an_attempt_that_lives(tiny_model: Path) -> None:
    async with worker_pair(tiny_model) as pair:
        attempt = await pair.client.begin([5] * 20, prefill_leg=False)
        again = await pair.client.begin([5] * 20, prefill_leg=False, attempt_id=attempt.attempt_id)
        assert (await again.rejected).reason == "ATTEMPT_EXISTS"
