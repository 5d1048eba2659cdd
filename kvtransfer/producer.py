"""The prefill side of hand-offs: serves Handshake and Pull, fed by the prefill worker."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc.aio

from baton.v1 import kv_transfer_pb2, kv_transfer_pb2_grpc
from chassis.errors import ServiceError
from kvtransfer.attempt_registry import AttemptRegistry
from kvtransfer.errors import (
    DuplicateAttempt,
    MessageOutOfOrder,
    StaleBootId,
    TokensDiffer,
    UnknownAttempt,
)
from kvtransfer.handoff import Chunk, Completion, token_digest
from kvtransfer.handshake import answer_handshake, check_block_bytes
from kvtransfer.layout import KvLayout
from kvtransfer.lease import Lease, LeaseEnd
from kvtransfer.pull_session import PullSession
from kvtransfer.transfer_thread import TransferThread


class LeaseListener(Protocol):
    """What the prefill worker wants to know. Called on the event loop; must not block."""

    def started(self, attempt_id: bytes) -> None:
        """Decode holds room for the attempt: its prompt goes first from now on (protocol 3.3)."""

    def lease_ended(self, attempt_id: bytes, how: LeaseEnd) -> None:
        """Not by the worker: free the blocks, and end Prefill; OK where ``how.alive``."""


@dataclass(frozen=True, slots=True)
class HandoffTimeouts:
    """Seconds. ``linger``: how long reads under way may finish after a Pull or a Handshake."""

    handoff: float = 10.0
    linger: float = 2.0


class Producer(kv_transfer_pb2_grpc.KvTransferServiceServicer):
    """Register it on the server; create it on the event loop that serves.

    The worker calls, per attempt: ``register`` (event loop, when Prefill arrives), then from any
    thread ``computing``, ``chunk_ready`` (any number of times, in order), ``complete``. The lease
    ends once: either ``revoke`` returns True and the worker frees the blocks, or
    ``listener.lease_ended`` is called and the worker frees them then. Reports about an attempt
    whose lease has ended are ignored.
    """

    def __init__(
        self,
        *,
        boot_id: bytes,
        layout: KvLayout,
        transfers: TransferThread,
        listener: LeaseListener,
        timeouts: HandoffTimeouts = HandoffTimeouts(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_block_bytes(layout, transfers)
        self._boot_id = boot_id
        self._layout = layout
        self._transfers = transfers
        self._listener = listener
        self._timeouts = timeouts
        self._attempts = AttemptRegistry(clock=clock)
        self._loop = asyncio.get_running_loop()
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._arrivals: dict[bytes, asyncio.Event] = {}

    # For the worker.

    def register(
        self, attempt_id: bytes, token_ids: Sequence[int], *, hand_off: bool = True
    ) -> None:
        """Makes an attempt known; event loop only. Raises DuplicateAttempt (protocol 1.2).

        With ``hand_off`` False nobody may pull it and no timeout runs; ``revoke`` ends it.
        """
        lease = Lease(
            attempt_id,
            token_digest(token_ids),
            num_tokens=len(token_ids),
            block_size=self._layout.block_size,
            hand_off=hand_off,
        )
        self._attempts.add(lease)
        if hand_off:
            self._arm(lease)
        if arrival := self._arrivals.get(attempt_id):
            arrival.set()

    def computing(self, attempt_id: bytes) -> None:
        """All blocks of the prompt are reserved; computing begins."""
        if lease := self._attempts.find(attempt_id):
            lease.computing()

    def chunk_ready(self, attempt_id: bytes, chunk: Chunk) -> None:
        """Whole blocks that no later step will write (protocol 4.2)."""
        if lease := self._attempts.find(attempt_id):
            lease.tell(chunk)

    def complete(self, attempt_id: bytes, completion: Completion) -> None:
        """The prompt is done; ``last_chunk`` has whatever ``chunk_ready`` did not announce."""
        if lease := self._attempts.find(attempt_id):
            lease.tell(completion)

    def revoke(self, attempt_id: bytes, error: ServiceError) -> bool:
        """Ends the attempt for the worker's own reasons: Prefill broke, deadline, room needed.

        True if its lease was alive until now: the caller frees the blocks. From then on no Done
        is answered with alive. Idempotent.
        """
        lease = self._attempts.find(attempt_id)
        if lease is None or not lease.end(LeaseEnd.REVOKED, error):
            return False
        self._attempts.bury(attempt_id)
        return True

    # For decode workers.

    async def Handshake(
        self, request: kv_transfer_pb2.HandshakeRequest, context: Any
    ) -> kv_transfer_pb2.HandshakeResponse:
        """Tells a decode worker how to read from here, or why it must not."""
        # The first byte after a handshake, and reads that lost their Pull, need both sides to poll.
        self._transfers.linger(self._timeouts.linger)
        return answer_handshake(request, self._layout, self._transfers, boot_id=self._boot_id)

    async def Pull(  # type: ignore[override]  # a handler may write instead of yielding
        self, request_iterator: Any, context: Any
    ) -> None:
        """Hands one attempt's blocks over."""
        opened = await self._read_open(context)
        lease = await self._find_lease(opened.attempt_id)
        if lease.token_digest != opened.token_digest:
            raise TokensDiffer(f"attempt {lease.attempt_id.hex()} has other tokens on prefill")
        announced = False

        def on_announced() -> None:
            nonlocal announced
            # Not before there is something to read: polls take turns with the engine's Python.
            if announced:
                self._transfers.touch()
            else:
                self._transfers.hold()
                announced = True

        session = PullSession(
            lease,
            context,
            on_started=lambda: self._listener.started(lease.attempt_id),
            on_announced=on_announced,
            on_released=lambda: self._on_ended(lease, LeaseEnd.RELEASED),
        )
        session.attach()
        self._disarm(lease)
        try:
            await session.run()
        finally:
            if announced:
                done = lease.ended is LeaseEnd.RELEASED
                self._transfers.release(0.0 if done else self._timeouts.linger)
            self._on_closed(lease)

    async def _read_open(self, context: Any) -> kv_transfer_pb2.Open:
        request = await context.read()
        if request is grpc.aio.EOF or request.WhichOneof("message") != "open":
            raise MessageOutOfOrder("a Pull begins with Open")
        opened: kv_transfer_pb2.Open = request.open
        if opened.boot_id != self._boot_id:
            raise StaleBootId(
                f"this is worker {self._boot_id.hex()}, the pull is for {opened.boot_id.hex()}"
            )
        return opened

    async def _find_lease(self, attempt_id: bytes) -> Lease:
        """The attempt's lease, once its Prefill is there. Raises UnknownAttempt."""
        lease = self._attempts.find(attempt_id)
        if lease is None and not self._attempts.is_buried(attempt_id):
            lease = await self._arrival(attempt_id)
        if lease is None:
            raise UnknownAttempt(f"attempt {attempt_id.hex()} is not here, or has ended")
        return lease

    async def _arrival(self, attempt_id: bytes) -> Lease | None:
        if attempt_id in self._arrivals:
            raise DuplicateAttempt(f"attempt {attempt_id.hex()} is being pulled")
        arrival = self._arrivals[attempt_id] = asyncio.Event()
        try:
            async with asyncio.timeout(self._timeouts.handoff):
                await arrival.wait()
        except TimeoutError:
            if self._attempts.find(attempt_id) is None:
                self._attempts.bury(attempt_id)
        finally:
            del self._arrivals[attempt_id]
        return self._attempts.find(attempt_id)

    def _on_closed(self, lease: Lease) -> None:
        """A Pull is over, however it went."""
        if lease.close_pull():
            self._on_ended(lease, LeaseEnd.PULL_BROKEN)
        elif lease.ended is None:
            self._arm(lease)

    def _on_ended(self, lease: Lease, how: LeaseEnd) -> None:
        self._attempts.bury(lease.attempt_id)
        self._listener.lease_ended(lease.attempt_id, how)

    def _arm(self, lease: Lease) -> None:
        self._timers[lease.attempt_id] = self._loop.call_later(
            self._timeouts.handoff, self._expire, lease
        )

    def _disarm(self, lease: Lease) -> None:
        if timer := self._timers.pop(lease.attempt_id, None):
            timer.cancel()

    def _expire(self, lease: Lease) -> None:
        self._timers.pop(lease.attempt_id, None)
        if lease.end(LeaseEnd.HANDOFF_TIMEOUT):
            self._on_ended(lease, LeaseEnd.HANDOFF_TIMEOUT)
