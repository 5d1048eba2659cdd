"""The one stream between this gateway process and a decode worker (protocol 2.2, 2.3)."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import grpc

from baton.v1 import decode_pb2, decode_pb2_grpc, generation_pb2
from chassis.error_table import INTERNAL_MESSAGE
from chassis.errors import Internal, ServiceError, Unavailable
from chassis.failure import failure_from_pb
from chassis.status import from_rpc_error
from gateway.turns import Turns

log = logging.getLogger(__name__)

_OPEN_SECONDS = 5.0
# A worker that takes no message for this long is lost.
_STALL_SECONDS = 5.0

_Call = grpc.aio.StreamStreamCall[decode_pb2.SessionRequest, decode_pb2.SessionResponse]


class DecodeSink(Protocol):
    """Who hears of one submitted attempt. Calls come from the session's reader: never block."""

    def decode_token(
        self,
        choice: int,
        index: int,
        token_id: int,
        logprobs: generation_pb2.TokenLogprobs | None,
        finish: generation_pb2.FinishInfo | None,
    ) -> None:
        """A token of a choice, in no order against the prefill leg."""

    def decode_finished(self, finished: decode_pb2.Finished) -> None:
        """The attempt is over on the worker; nothing follows."""

    def decode_failed(self, error: ServiceError) -> None:
        """The worker did not take the attempt, or was lost; nothing follows."""


class Session:
    """Multiplexes attempts over one call. ``run`` serves it until it breaks and fails them all."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        worker: str,
        boot_id: bytes,
        turns: Turns,
        stall_seconds: float = _STALL_SECONDS,
    ) -> None:
        """``turns`` are shared by all sessions of the process."""
        self._channel = channel
        self._worker = worker
        self._boot_id = boot_id
        self._turns = turns
        self._stall_seconds = stall_seconds
        self._sinks: dict[int, DecodeSink] = {}
        self._handles = itertools.count(1)
        self._outgoing: deque[decode_pb2.SessionRequest] = deque()
        self._has_outgoing = asyncio.Event()
        self._paired: set[bytes] = set()
        self.is_open = self.was_open = False
        self._write_error: ServiceError | None = None

    async def run(self, on_open: Callable[[], None] = lambda: None) -> None:
        """Opens the stream and serves it until it breaks; raises a ServiceError that says why."""
        call = decode_pb2_grpc.DecodeServiceStub(self._channel).Session()
        writer: asyncio.Task[None] | None = None
        reason: ServiceError | None = None
        try:
            await self._open(call)
            self.is_open = self.was_open = True
            on_open()
            writer = asyncio.create_task(self._write(call))
            await self._read(call)
        except grpc.aio.AioRpcError as error:
            reason = from_rpc_error(error)
        except ServiceError as error:
            reason = error
        except asyncio.CancelledError:
            # Either somebody stops us, or the writer has cancelled the call, or both.
            task = asyncio.current_task()
            if self._write_error is None or (task is not None and task.cancelling()):
                raise
            reason = self._write_error
        finally:
            self.is_open = False
            if writer is not None:
                writer.cancel()
            call.cancel()
            self._fail_all(reason)
        raise self._lost(reason)

    def pair(self, prefill_address: str, prefill_boot_id: bytes) -> None:
        """Tells the worker once of a prefill worker: no first request then waits for both to pair.

        A stream that is not open forgets it: ask again once it is.
        """
        if self.is_open and prefill_boot_id not in self._paired:
            self._paired.add(prefill_boot_id)
            pair = decode_pb2.Pair(prefill_address=prefill_address, prefill_boot_id=prefill_boot_id)
            self._send(decode_pb2.SessionRequest(pair=pair))

    def submit(self, submit: decode_pb2.Submit, sink: DecodeSink) -> int:
        """Queues the attempt under a new handle, set in ``submit``, and returns the handle.

        Raises Unavailable where the stream is not open.
        """
        if not self.is_open:
            raise self._lost(None)
        submit.handle = handle = next(self._handles)
        self._sinks[handle] = sink
        self._send(decode_pb2.SessionRequest(submit=submit))
        return handle

    def cancel(self, handle: int) -> None:
        """Stops an attempt; its sink hears nothing more. Legal at any time, and twice."""
        if self._sinks.pop(handle, None) is not None and self.is_open:
            self._send(decode_pb2.SessionRequest(cancel=decode_pb2.Cancel(handle=handle)))

    def cancel_choice(self, handle: int, choice: int) -> None:
        """Stops one choice of an attempt whose others go on. Legal at any time, and twice."""
        if handle in self._sinks and self.is_open:
            cancel = decode_pb2.Cancel(handle=handle, choices=[choice])
            self._send(decode_pb2.SessionRequest(cancel=cancel))

    def _send(self, message: decode_pb2.SessionRequest) -> None:
        self._outgoing.append(message)
        self._has_outgoing.set()

    async def _open(self, call: _Call) -> None:
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                hello = decode_pb2.Hello(boot_id=self._boot_id)
                await call.write(decode_pb2.SessionRequest(hello=hello))
                answer = await call.read()
        except TimeoutError:
            raise Unavailable(
                f"{self._worker} did not answer Hello within {_OPEN_SECONDS:g} s",
                reason="SESSION_NOT_OPENED",
            ) from None
        welcome = answer.welcome if isinstance(answer, decode_pb2.SessionResponse) else None
        if welcome is None or welcome.boot_id != self._boot_id:
            raise Unavailable(f"{self._worker} was restarted", reason="BOOT_ID_STALE")

    async def _write(self, call: _Call) -> None:
        """One write in flight. One that fails or stalls cancels the call: that ends the reader."""
        try:
            while True:
                while self._outgoing:
                    async with asyncio.timeout(self._stall_seconds):
                        await call.write(self._outgoing.popleft())
                self._has_outgoing.clear()
                await self._has_outgoing.wait()
        except TimeoutError:
            text = f"it took no message for {self._stall_seconds:g} s"
            self._write_error = Unavailable(text, reason="SESSION_STALLED")
            call.cancel()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The call is over; the reader hears why.
            return
        except Exception:
            # Without a writer the session would take attempts and send none.
            log.exception("session with %s", self._worker)
            self._write_error = Internal(INTERNAL_MESSAGE, reason="INTERNAL")
            call.cancel()

    async def _read(self, call: _Call) -> None:
        while isinstance(response := await call.read(), decode_pb2.SessionResponse):
            match response.WhichOneof("message"):
                case "step":
                    await self._deliver(response.step)
                case "finished":
                    sink = self._sinks.pop(response.finished.handle, None)
                    if sink is not None:
                        self._finish(sink, response.finished)
                case "rejected":
                    sink = self._sinks.pop(response.rejected.handle, None)
                    if sink is not None:
                        self._fail(sink, failure_from_pb(response.rejected.failure))

    async def _deliver(self, step: decode_pb2.StepOutputs) -> None:
        """Hands each row to its attempt; rows of attempts that were cancelled are dropped.

        One a turn: each makes a write, and what it wakes, like whoever else waits for the loop, has
        its turn between.
        """
        sinks = self._sinks
        logprobs = {row.row: row.logprobs for row in step.logprobs}
        finishes = {row.row: row.finish for row in step.finishes}
        rows = zip(step.handles, step.choices, step.indices, step.token_ids, strict=True)
        for row, (handle, choice, index, token_id) in enumerate(rows):
            if row:
                await self._turns.take()
            sink = sinks.get(handle)
            if sink is None:
                continue
            try:
                sink.decode_token(choice, index, token_id, logprobs.get(row), finishes.get(row))
            except Exception:
                # One request's bug is not the other requests' end.
                log.exception("session with %s", self._worker)
                self.cancel(handle)
                self._fail(sink, Internal(INTERNAL_MESSAGE, reason="INTERNAL"))

    def _finish(self, sink: DecodeSink, finished: decode_pb2.Finished) -> None:
        try:
            sink.decode_finished(finished)
        except Exception:
            log.exception("session with %s", self._worker)
            self._fail(sink, Internal(INTERNAL_MESSAGE, reason="INTERNAL"))

    def _fail(self, sink: DecodeSink, error: ServiceError) -> None:
        try:
            sink.decode_failed(error)
        except Exception:
            # Nobody is left to tell, and the others' session must go on.
            log.exception("session with %s", self._worker)

    def _fail_all(self, reason: ServiceError | None) -> None:
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            self._fail(sink, self._lost(reason))

    def _lost(self, reason: ServiceError | None) -> Unavailable:
        detail = f": {reason}" if reason is not None else ""
        return Unavailable(
            f"the session with decode worker {self._worker} is broken{detail}",
            reason="DECODE_WORKER_LOST",
        )
