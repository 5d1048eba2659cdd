"""A Prefill call as the event loop sees it."""

import asyncio
import time
from dataclasses import dataclass

from chassis.errors import ServiceError
from chassis.telemetry import Span, start_span
from engine.batch import Sample
from engine.request import RequestStatus
from prefill_svc.prompt import Progress, Prompt


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of a choice; ``status`` is final where the choice ends on it."""

    sample: Sample
    status: RequestStatus | None


@dataclass(frozen=True, slots=True)
class Computed:
    """What the call answers. Seconds: arrival to first chunk, first chunk to first token."""

    first_tokens: tuple[FirstToken, ...]
    cached_tokens: int
    queue_seconds: float
    compute_seconds: float


class PrefillJob:
    """One prompt from arrival to the end of its lease, with its spans. Event loop only.

    ``computed`` resolves when the first tokens are known, ``ended`` when the worker has let go of
    the blocks; both fail with the ServiceError that the call is to end with.
    """

    def __init__(self, prompt: Prompt, parent: Span | None) -> None:
        loop = asyncio.get_running_loop()
        self.prompt = prompt
        self.computed: asyncio.Future[Computed] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.admitted = False
        self._parent = parent
        self._arrived = time.monotonic()
        self._began = 0.0
        # The stage under way; None once the prompt is computed.
        self._span: Span | None = start_span("prefill.queue", parent=parent)

    @property
    def attempt_id(self) -> bytes:
        return self.prompt.attempt_id

    @property
    def log_extra(self) -> dict[str, object]:
        """Names the request in a log line."""
        return {"fields": {"request": self._parent.trace_id}} if self._parent else {}

    def begin(self) -> None:
        """All blocks are there and the first chunk is about to be computed."""
        self.admitted = True
        self._began = time.monotonic()
        self._end_span(None)
        self._span = start_span(
            "prefill.compute",
            parent=self._parent,
            attributes={"baton.cached_tokens": self.prompt.request.num_cached_tokens},
        )

    def advance(self, progress: Progress, step: int) -> None:
        """A chunk was computed in engine step number ``step``."""
        if self._span is not None:
            facts = {"baton.tokens": progress.num_new_tokens, "baton.step": step}
            self._span.event("chunk", facts)

    def answer(self, first_tokens: tuple[FirstToken, ...]) -> None:
        """The prompt is computed."""
        self._end_span(None)
        if not self.computed.done():
            now = time.monotonic()
            cached = self.prompt.request.num_cached_tokens
            queue, compute = self._began - self._arrived, now - self._began
            self.computed.set_result(Computed(first_tokens, cached, queue, compute))

    def end(self, error: ServiceError | None) -> None:
        """The lease has ended: well, or with the error that the call ends with. Idempotent."""
        if self.ended.done():
            return
        self._end_span(error)
        if error is None:
            assert self.computed.done(), f"{self.attempt_id.hex()} ended well without a token"
            self.ended.set_result(None)
            return
        for future in (self.computed, self.ended):
            if not future.done():
                future.set_exception(error)
                # The call may be gone, and with it whoever would have looked at the error.
                future.exception()

    def _end_span(self, error: ServiceError | None) -> None:
        if self._span is not None:
            if error is not None:
                self._span.fail(error.message, error.reason)
            self._span.end()
            self._span = None
