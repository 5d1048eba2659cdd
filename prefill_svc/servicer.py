"""Serves PrefillService: decodes, calls the worker, encodes."""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from chassis.durations import to_duration
from chassis.errors import Cancelled, DeadlineExceeded, FailedPrecondition
from chassis.telemetry import current_span
from prefill_svc.job import Computed, FirstToken, PrefillJob
from prefill_svc.worker import PrefillWorker
from worker.leg import Leg
from worker.parts import Parts
from worker.results import finish_to_pb, logprobs_to_pb


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """One call is one attempt; it stays open until the attempt's blocks are released."""

    def __init__(self, worker: PrefillWorker, parts: Parts, max_request_seconds: float) -> None:
        self._worker = worker
        self._boot_id = parts.identity.boot_id
        self._limits = parts.model.limits
        self._max_request_seconds = max_request_seconds

    async def Prefill(
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse],
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        if request.boot_id != self._boot_id:
            raise FailedPrecondition("meant for an earlier process", reason="BOOT_ID_STALE")
        leg = Leg.from_pb(request, self._limits)
        job = self._worker.submit(leg, hand_off=request.hand_off, parent=current_span())
        timer = None if context.time_remaining() is not None else self._limit_time(job)
        try:
            yield _to_pb(await asyncio.shield(job.computed))
            await asyncio.shield(job.ended)
        finally:
            if timer is not None:
                timer.cancel()
            self._worker.end(job, Cancelled("the call has ended", reason="PREFILL_ENDED"))

    def _limit_time(self, job: PrefillJob) -> asyncio.TimerHandle:
        """For a call without a deadline (protocol 5.1); gRPC itself ends the others at theirs."""
        late = DeadlineExceeded("the longest time of a request is over", reason="REQUEST_TOO_LONG")
        loop = asyncio.get_running_loop()
        return loop.call_later(self._max_request_seconds, self._worker.end, job, late)


def _to_pb(computed: Computed) -> prefill_pb2.PrefillResponse:
    return prefill_pb2.PrefillResponse(
        first_tokens=[_first_token_to_pb(first) for first in computed.first_tokens],
        cached_tokens=computed.cached_tokens,
        queue=to_duration(computed.queue_seconds),
        compute=to_duration(computed.compute_seconds),
    )


def _first_token_to_pb(first: FirstToken) -> prefill_pb2.FirstToken:
    sample = first.sample
    return prefill_pb2.FirstToken(
        choice=sample.choice,
        token_id=sample.token_id,
        logprobs=None if sample.logprobs is None else logprobs_to_pb(sample.logprobs),
        finish=None if first.status is None else finish_to_pb(first.status, sample.token_id),
    )
