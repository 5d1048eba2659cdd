"""The prefill side of hand-offs: serves Handshake and Pull, fed by the prefill worker."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from baton.v1 import kv_transfer_pb2, kv_transfer_pb2_grpc
from chassis.errors import ServiceError
from kvtransfer.attempt_registry import AttemptRegistry
from kvtransfer.errors import StaleBootId, UnknownAttempt
from kvtransfer.handoff import Chunk, Completion, token_digest
from kvtransfer.layout import KvLayout, check_same_layout
from kvtransfer.lease import Lease, LeaseEnd
from kvtransfer.pull_session import PullSession
from kvtransfer.ranks import check_block_bytes, rank_to_pb
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

    def computing(self, attempt_id: bytes) -> None:
        """All blocks of the prompt are reserved; computing begins."""

    def chunk_ready(self, attempt_id: bytes, chunk: Chunk) -> None:
        """Whole blocks that no later step will write (protocol 4.2)."""

    def complete(self, attempt_id: bytes, completion: Completion) -> None:
        """The prompt is done; ``last_chunk`` has whatever ``chunk_ready`` did not announce."""

    def revoke(self, attempt_id: bytes, error: ServiceError) -> bool:
        """Ends the attempt for the worker's own reasons: Prefill broke, deadline, room needed.

        True if its lease was alive until now: the caller frees the blocks. From then on no Done
        is answered with alive. Idempotent.
        """
        raise NotImplementedError

    def is_started(self, attempt_id: bytes) -> bool:
        """Whether decode holds room for the attempt; a finished one that is not may be revoked."""
        raise NotImplementedError
