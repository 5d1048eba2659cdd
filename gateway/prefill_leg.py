"""The call to the prefill worker, one per attempt (protocol 2.1)."""

import asyncio
import logging
from typing import Protocol

import grpc

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from chassis.error_table import INTERNAL_MESSAGE
from chassis.errors import Internal, ServiceError
from chassis.request_id import METADATA_KEY
from chassis.telemetry import Span
from gateway.attempt_plan import AttemptPlan
from gateway.failures import prefill_error, prefill_lost, violation
from gateway.worker import Worker

log = logging.getLogger(__name__)

_Call = grpc.aio.UnaryStreamCall[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]


class PrefillSink(Protocol):
    """Who hears of the call. ``prefill_failed`` or ``prefill_ended`` comes last, one of them."""

    def prefill_answered(self, response: prefill_pb2.PrefillResponse) -> None:
        """The first tokens."""

    def prefill_failed(self, error: ServiceError) -> None:
        """The worker refused the attempt, gave it up, or was lost."""

    def prefill_ended(self) -> None:
        """The worker has released the blocks."""


async def run_prefill_leg(plan: AttemptPlan, worker: Worker, sink: PrefillSink) -> None:
    """Makes the call and hears it to its end; ends it when cancelled."""
    identity = worker.identity
    span = plan.start_leg("prefill leg", identity.address)
    try:
        await _follow(plan, worker, sink, span)
    except grpc.aio.AioRpcError as error:
        failure = prefill_error(error, identity.name)
        span.fail(failure.message, failure.reason)
        sink.prefill_failed(failure)
    except ServiceError as error:
        span.fail(error.message, error.reason)
        sink.prefill_failed(error)
    except asyncio.CancelledError:
        # Not by us, if the attempt goes on: the connection was closed under the call.
        sink.prefill_failed(prefill_lost(identity.name, "the connection was closed"))
        raise
    except Exception:
        log.exception("attempt %s", plan.attempt_id.hex())
        sink.prefill_failed(Internal(INTERNAL_MESSAGE, reason="INTERNAL"))
    else:
        sink.prefill_ended()
    finally:
        span.end()


async def _follow(plan: AttemptPlan, worker: Worker, sink: PrefillSink, span: Span) -> None:
    request = prefill_pb2.PrefillRequest(
        attempt_id=plan.attempt_id,
        boot_id=worker.identity.boot_id,
        token_ids=plan.token_ids,
        num_prompt_tokens=plan.num_prompt_tokens,
        choices=plan.choices,
        sampling=plan.sampling,
        eos_token_ids=plan.eos_token_ids,
        hand_off=plan.route.decode is not None,
    )
    stub = prefill_pb2_grpc.PrefillServiceStub(worker.channel)
    metadata = (*span.metadata(), (METADATA_KEY, plan.parent.trace_id))
    call: _Call = stub.Prefill(request, timeout=plan.seconds_left, metadata=metadata)
    try:
        response = await call.read()
        if not isinstance(response, prefill_pb2.PrefillResponse):
            raise violation("the prefill worker sent no first token")
        span.event("first token")
        sink.prefill_answered(response)
        # Ends when the worker has released the blocks; the client does not wait for it.
        if await call.read() is not grpc.aio.EOF:
            raise violation("the prefill worker answered twice")
    finally:
        # A task that is cancelled while the request is being sent does not end the call.
        call.cancel()
