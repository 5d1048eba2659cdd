"""One request's life at the gateway, from its first attempt to its last token."""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from baton.v1 import gateway_pb2, generation_pb2, prefill_pb2
from chassis.error_table import INTERNAL_MESSAGE
from chassis.errors import DeadlineExceeded, Internal, ResourceExhausted, ServiceError
from chassis.telemetry import Span, start_span
from gateway.attempt import Attempt
from gateway.attempt_plan import AttemptPlan
from gateway.choice import Choice
from gateway.failures import is_draining, no_other_worker
from gateway.memory import HeldMemory
from gateway.retries import Retries
from gateway.router import Demand, Route, Router
from gateway.unread import UnreadOutput

log = logging.getLogger(__name__)

# Between two looks for a worker that may be back at once.
_RETURN_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """``max_attempts`` bounds the tries of a choice, ``max_unread_tokens`` what waits for a client
    that does not read: tokens, or log probabilities where there are some."""

    max_attempts: int
    max_unread_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationTask:
    """What to generate: ``sampling`` has every default resolved, ``deadline`` is on the monotonic
    clock, ``span`` is the request's."""

    token_ids: Sequence[int]
    sampling: generation_pb2.SamplingParams
    eos_token_ids: Collection[int]
    deadline: float
    span: Span


class Generation:
    """The one mutable object of a request. Owned by the task that reads its deltas.

    Tokens and failures arrive by calls from the legs and never wait for the reader; a request
    whose reader falls too far behind is ended.
    """

    def __init__(
        self,
        task: GenerationTask,
        choices: Sequence[Choice],
        router: Router,
        limits: GenerationLimits,
        keep: Callable[[asyncio.Task[None]], None],
        memory: HeldMemory,
        on_retry: Callable[[str], None],
        rng: random.Random | None = None,
    ) -> None:
        """``keep`` holds tasks that may outlive the request by a moment, ``memory`` counts what the
        client has not read, ``on_retry`` hears of what an attempt failed that is tried again."""
        self.choices = tuple(choices)
        self.prefill: prefill_pb2.PrefillResponse | None = None
        self.kv_transfer: Duration | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.failure: ServiceError | None = None
        self.was_interrupted = False
        self._task = task
        self._router = router
        self._keep = keep
        self._on_retry = on_retry
        self._attempts: set[Attempt] = set()
        self._retries = Retries(limits.max_attempts, rng or random.Random())
        self._checkpoint: bytes | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._unread = UnreadOutput(task.sampling, limits.max_unread_tokens, memory)
        self._is_over = False
        self._reader = asyncio.current_task()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def request_id(self) -> str:
        """Equal to the trace id."""
        return self._task.span.trace_id

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the client sent."""
        return len(self._task.token_ids)

    @property
    def cached_tokens(self) -> int:
        """Of these, tokens whose KV the prefill worker already had."""
        return self.prefill.cached_tokens if self.prefill is not None else 0

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far over all choices."""
        return sum(len(choice.token_ids) for choice in self.choices)

    def start(self) -> None:
        """Sends the first attempt; what goes wrong is raised by ``next_deltas``."""
        seconds = max(self._task.deadline - time.monotonic(), 0.0)
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._expire))
        self._launch(self.choices, None)

    async def next_deltas(self) -> list[gateway_pb2.ChoiceDelta]:
        """Waits for new output and returns all there is; empty once every choice has ended.

        Raises the ServiceError that ended the request, after what was generated before it.
        """
        while True:
            if self.failure is not None and self.was_interrupted:
                raise self.failure
            self._unread.clear()
            deltas = [choice.take_delta() for choice in self.choices if choice.has_delta]
            if deltas:
                return deltas
            if self.failure is not None:
                raise self.failure
            if self._is_over:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def close(self) -> None:
        """Cancels whatever still runs. Legal in every state."""
        self._end(None)
        self._unread.clear()

    def interrupt(self, error: ServiceError) -> None:
        """Ends the request also where its reader hangs in a write to a client that is stuck."""
        if self._is_over:
            return
        self.was_interrupted = True
        self._end(error)
        if self._waiter is None and self._reader is not None:
            self._reader.cancel()

    def committed(self, num_tokens: int) -> None:
        """See AttemptOwner."""
        self.last_token_at = now = time.monotonic()
        if self.first_token_at is None:
            self.first_token_at = now
        try:
            self._unread.add(num_tokens)
        except ResourceExhausted as error:
            self.interrupt(error)
            return
        self._wake()

    def prefilled(self, response: prefill_pb2.PrefillResponse) -> None:
        """See AttemptOwner. Usage and timings are the first attempt's: others repeat its work."""
        if self.prefill is None:
            self.prefill = response

    def attempt_over(self, attempt: Attempt, error: ServiceError | None) -> None:
        """See AttemptOwner."""
        self._attempts.discard(attempt)
        if attempt.kv_transfer is not None:
            self.kv_transfer = attempt.kv_transfer
        if self._is_over:
            return
        if error is not None:
            with self._bugs_end_it():
                self._recover(attempt, error)
        elif all(choice.finish is not None for choice in self.choices):
            self._end(None)

    @contextmanager
    def _bugs_end_it(self) -> Iterator[None]:
        """For what no caller watches: without this a bug of ours would leave the client waiting."""
        try:
            yield
        except Exception:
            log.exception("request %s", self.request_id)
            self._end(Internal(INTERNAL_MESSAGE, reason="INTERNAL"))

    def _recover(self, attempt: Attempt, error: ServiceError) -> None:
        """Continues the attempt's unfinished choices where that can help, else ends the request."""
        unfinished = [choice for choice in attempt.choices if choice.finish is None]
        try:
            pause = self._retries.pause_after(attempt, error, unfinished)
        except ServiceError as final:
            self._end(final)
            return
        num_tries = self._retries.num_tries(unfinished)
        self._task.span.event("retry", {"baton.reason": error.reason, "baton.attempt": num_tries})
        self._on_retry(error.reason)
        self._relaunch_after(pause, unfinished, error)

    def _relaunch_after(
        self, seconds: float, choices: Sequence[Choice], after: ServiceError | None
    ) -> None:
        def relaunch() -> None:
            with self._bugs_end_it():
                self._launch(choices, after)

        self._timers.append(asyncio.get_running_loop().call_later(seconds, relaunch))

    def _launch(self, choices: Sequence[Choice], after: ServiceError | None) -> None:
        """Starts attempts; choices with output continue alone, each from its own tokens."""
        fresh = [choice for choice in choices if not choice.token_ids]
        groups = [fresh] if fresh else []
        groups += [[choice] for choice in choices if choice.token_ids]
        for group in groups:
            if self._is_over:
                return
            try:
                route = self._route(group[0], after)
            except ServiceError as error:
                if self._router.decode_may_return:
                    self._relaunch_after(_RETURN_SECONDS, group, after)
                    continue
                self._end(no_other_worker(after, error) if is_draining(after) else error)
                return
            self._attempt(group, route)

    def _route(self, choice: Choice, after: ServiceError | None) -> Route:
        num_left = self._task.sampling.max_tokens - len(choice.token_ids)
        num_prompt_tokens = len(self._task.token_ids)
        demand = Demand(
            num_tokens=num_prompt_tokens + len(choice.token_ids),
            max_total_tokens=num_prompt_tokens + self._task.sampling.max_tokens,
            hand_off=num_left > 1,
            avoid=frozenset(self._retries.avoid),
            # What one checkpoint began, another one of the same name must not go on with.
            checkpoint=self._checkpoint if self.num_tokens else None,
        )
        with start_span("route", parent=self._task.span) as span:
            route = self._router.choose(demand)
            workers = [worker.identity for worker in route.workers]
            if (
                isinstance(after, ResourceExhausted)
                and not choice.token_ids
                and any(worker.boot_id in self._retries.avoid for worker in workers)
            ):
                # Everyone is full, and nothing is lost yet: the client had better wait.
                raise after
            span.set(
                {
                    "baton.workers": [worker.name for worker in workers],
                    "baton.local_prefill": route.prefill is None,
                }
            )
        self._checkpoint = route.workers[0].identity.checkpoint_digest
        return route

    def _attempt(self, choices: Sequence[Choice], route: Route) -> None:
        plan = AttemptPlan(
            attempt_id=os.urandom(16),
            route=route,
            token_ids=[*self._task.token_ids, *choices[0].token_ids],
            num_prompt_tokens=len(self._task.token_ids),
            choices=[choice.index for choice in choices],
            sampling=self._task.sampling,
            eos_token_ids=self._task.eos_token_ids,
            deadline=self._task.deadline,
            parent=self._task.span,
        )
        self._retries.began(choices)
        attempt = Attempt(plan, choices, self, self._keep)
        self._attempts.add(attempt)
        attempt.start()

    def _expire(self) -> None:
        self.interrupt(DeadlineExceeded("the deadline passed", reason="DEADLINE_EXCEEDED"))

    def _end(self, error: ServiceError | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.failure = error
        for timer in self._timers:
            timer.cancel()
        self._wake()
        attempts, self._attempts = self._attempts, set()
        for attempt in attempts:
            attempt.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
