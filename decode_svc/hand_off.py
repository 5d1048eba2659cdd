"""The way of one attempt's KV from the prefill worker into the running batch."""

import asyncio

from chassis.errors import Internal
from decode_svc.attempt import Attempt, Grant
from decode_svc.job import DecodeJob
from decode_svc.stepper import DecodeStepper
from engine.loop import EngineLoop
from kvtransfer.handoff import Completion
from kvtransfer.pull import Pull


class HandOff:
    """Takes the steps of a hand-off in order; who runs it ends the attempt where one fails.

    Event loop only.
    """

    def __init__(self, engine: EngineLoop, stepper: DecodeStepper, *, vocab_size: int) -> None:
        self._engine = engine
        self._stepper = stepper
        self._vocab_size = vocab_size

    async def run(self, job: DecodeJob, pull: Pull) -> None:
        """Returns when the KV is confirmed. Raises PullFailed, or Internal for a wrong prompt."""
        attempt = job.attempt
        await pull.computing()
        self._engine.post(lambda: self._stepper.add(attempt))
        grant = await self._room(job, pull)
        await pull.start(grant.cached_tokens, grant.block_ids)
        completion = await pull.complete()
        self._check_completion(attempt, completion)
        job.begin(pull.arrived_at)
        self._engine.post(lambda: self._stepper.join(attempt, completion.first_samples))
        await pull.released()
        job.released()
        self._engine.post(lambda: self._stepper.release(attempt))

    async def _room(self, job: DecodeJob, pull: Pull) -> Grant:
        """Waits for room. Raises PullFailed as soon as prefill gives the attempt up."""
        given_up = asyncio.ensure_future(pull.complete())
        try:
            await asyncio.wait((job.room, given_up), return_when=asyncio.FIRST_COMPLETED)
            if given_up.done():
                given_up.result()
            return await job.room
        finally:
            given_up.cancel()

    def _check_completion(self, attempt: Attempt, completion: Completion) -> None:
        samples = completion.first_samples
        choices = tuple(sample.choice for sample in samples)
        known = all(sample.token_id < self._vocab_size for sample in samples)
        if choices != attempt.choices or completion.num_tokens != attempt.num_tokens or not known:
            raise Internal(f"prefill completed another prompt: {completion}", reason="BAD_COMPLETE")
