"""A Submit as the event loop sees it."""

import asyncio
import time

from baton.v1 import decode_pb2
from chassis.errors import ServiceError
from chassis.telemetry import Span, TraceContext, start_span
from decode_svc.attempt import Attempt, Grant
from decode_svc.outbox import Outbox
from kvtransfer.chunk_reader import ChunkRecord
from kvtransfer.fence import Fence
from kvtransfer.pull import Pull


class DecodeJob:
    """One attempt from Submit to its last word, with its spans. Event loop only.

    Spans: ``decode.queue`` until room is reserved, ``kv.pull`` until the hand-off is over,
    ``decode.generate`` from the first step on. ``pull`` is None where this worker computes the
    prompt itself; ``decode.prefill`` then takes the place of ``kv.pull``.
    """

    def __init__(
        self, attempt: Attempt, outbox: Outbox, pull: Pull | None, parent: TraceContext | None
    ) -> None:
        self.attempt = attempt
        self.outbox = outbox
        self.pull = pull
        self.room: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self.hand_off: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.ended = False
        self.transfer_seconds: float | None = None
        self.preemptions = 0
        self.own_prompt: decode_pb2.OwnPrompt | None = None
        self._parent = parent
        self._arrived_at = time.monotonic()
        self._granted_at = 0.0
        self._cached_tokens = 0
        self._complete_at: float | None = None
        # Each is None once it has ended.
        self._queue_span: Span | None = start_span("decode.queue", parent=parent)
        self._kv_span: Span | None = None
        self._generate_span: Span | None = None

    @property
    def log_extra(self) -> dict[str, object]:
        """Names the request in a log line."""
        return {"fields": {"request": self._parent.trace_id}} if self._parent else {}

    def grant(self, grant: Grant) -> None:
        """Room is reserved."""
        if not self.room.done():
            self.room.set_result(grant)
        if self._queue_span is not None:
            self._queue_span.end()
            self._queue_span = None
        self._granted_at = time.monotonic()
        self._cached_tokens = grant.cached_tokens
        self._kv_span = start_span(
            "kv.pull" if self.pull is not None else "decode.prefill",
            parent=self._parent,
            attributes={"baton.cached_tokens": grant.cached_tokens},
        )

    def begin(self, arrived_at: float | None = None) -> None:
        """The first step follows; what was read was complete at ``arrived_at``, of
        time.monotonic."""
        self._complete_at = arrived_at
        self._generate_span = start_span("decode.generate", parent=self._parent)

    def released(self) -> None:
        """The hand-off is over, and went well."""
        assert self.pull is not None, "there was a hand-off"
        if self._kv_span is not None:
            self._kv_span.set({"baton.exposed": self.pull.exposed_seconds})
        if self.pull.records:
            self.transfer_seconds = time.monotonic() - self._granted_at
        self._end_kv_span()

    def prompted(self) -> None:
        """The prompt is computed here, and its first tokens have left."""
        self.own_prompt = decode_pb2.OwnPrompt(cached_tokens=self._cached_tokens)
        queue, compute = self.own_prompt.queue, self.own_prompt.compute
        queue.FromNanoseconds(round((self._granted_at - self._arrived_at) * 1e9))
        compute.FromNanoseconds(round((time.monotonic() - self._granted_at) * 1e9))
        self._end_kv_span()
        self.begin()

    def end(self, error: ServiceError | None, fence: Fence) -> None:
        """Nothing more happens here; ends what is open. ``fence``: what the pull left behind."""
        self.ended = True
        for waiting in (self.room, self.hand_off, self.deadline):
            if waiting is not None:
                waiting.cancel()
        if self._kv_span is not None:
            self._describe_pull(self._kv_span)
            self._kv_span.set({"baton.fenced_blocks": len(fence.block_ids)})
        if self._generate_span is not None:
            self._describe_generation(self._generate_span)
        for span in (self._queue_span, self._kv_span, self._generate_span):
            if span is not None:
                if error is not None:
                    span.fail(error.message, error.reason)
                span.end()

    def _end_kv_span(self) -> None:
        if self._kv_span is not None:
            self._describe_pull(self._kv_span)
            self._kv_span.end()
            self._kv_span = None

    def _describe_pull(self, span: Span) -> None:
        """What has arrived, whether it was of use or not."""
        if self.pull is None:
            return
        records = self.pull.records
        for record in records:
            span.event("chunk", _facts(record), record.end_ns)
        span.set(
            {
                "baton.blocks": sum(record.num_blocks for record in records),
                "baton.bytes": sum(record.num_bytes for record in records),
            }
        )

    def _describe_generation(self, span: Span) -> None:
        pace = self.attempt.pace
        itl = {f"baton.itl.{name}": gap for name, gap in pace.percentiles().items()}
        if self._complete_at is not None and pace.num_steps:
            span.set({"baton.join_wait": pace.began_at - self._complete_at})
        span.set({"baton.steps": pace.num_steps, "baton.preemptions": self.preemptions, **itl})


def _facts(record: ChunkRecord) -> dict[str, int | float | str]:
    return {
        "baton.blocks": record.num_blocks,
        "baton.bytes": record.num_bytes,
        "baton.transport": record.transport,
        "baton.rate": record.num_bytes / record.seconds if record.seconds else 0.0,
    }
