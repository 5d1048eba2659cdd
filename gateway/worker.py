"""A worker as the gateway knows it: who it is, how busy it is, how to reach it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from baton.v1 import kv_transfer_pb2, worker_pb2
from gateway.circuit import Circuit, RetryBudget
from gateway.session import Session

# After so long without a step a worker's rate says nothing any more.
RATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What a worker said about itself in Watch's first message; fixed for its boot id's life."""

    boot_id: bytes
    role: worker_pb2.WorkerRole.ValueType
    name: str
    address: str
    model: str
    checkpoint_digest: bytes
    layout_digest: bytes
    layout: kv_transfer_pb2.KvLayout
    max_context_tokens: int
    block_size: int

    @classmethod
    def from_pb(cls, info: worker_pb2.WorkerInfo, address: str) -> "WorkerIdentity":
        """``address`` is where the gateway reached it, which is what other workers can dial too."""
        return cls(
            boot_id=info.boot_id,
            role=info.role,
            name=info.name or address,
            address=address,
            model=info.model,
            checkpoint_digest=info.checkpoint_digest,
            layout_digest=info.layout_digest,
            layout=info.layout,
            max_context_tokens=info.max_context_tokens,
            block_size=info.block_size,
        )


class Worker:
    """One incarnation of a worker; a restarted process is another one.

    Load is what the worker last reported plus what this gateway sent since then. ``circuit`` is
    this incarnation's, ``retry_budget`` belongs to its address.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        channel: grpc.aio.Channel,
        retry_budget: RetryBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.channel = channel
        self.retry_budget = retry_budget
        self.circuit = Circuit(clock)
        self.load = worker_pb2.WorkerLoad()
        self.serving = False
        self.session: Session | None = None
        self.lost = asyncio.Event()
        self._clock = clock
        self._moved_at = self._stepped_at = clock()
        self._unreported_requests = 0
        self._unreported_tokens = 0

    @property
    def ready(self) -> bool:
        """Whether it can be given an attempt now."""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Why it can be given none now, for people."""
        if self.lost.is_set():
            return "lost"
        if not self.load.accepting:
            return "takes no new work: it warms up, drains, or waits for a read to end"
        if not self.serving:
            return "its health is not SERVING"
        is_decode = self.identity.role == worker_pb2.WORKER_ROLE_DECODE
        if is_decode and (self.session is None or not self.session.is_open):
            return "its session is not open"
        if not self.circuit.allows:
            return f"it keeps failing, and is tried again in {self.circuit.seconds_to_probe:.1f} s"
        return None

    @property
    def is_stuck(self) -> bool:
        """Whether requests are running, and no step has ended for longer than one may take."""
        limit = self.load.step_limit
        return limit > 0 and self._clock() - self._moved_at > limit

    def report(self, load: worker_pb2.WorkerLoad) -> None:
        """Takes a Watch message in place of what this gateway counted itself since the last one.

        An attempt that was under way when the worker spoke is in neither, until the next message.
        """
        now = self._clock()
        if load.steps != self.load.steps:
            self._moved_at = self._stepped_at = now
        elif not (load.running and self.load.running):
            self._moved_at = now
        self.load = load
        self._unreported_requests = 0
        self._unreported_tokens = 0

    def sent(self, num_tokens: int) -> float:
        """Counts an attempt of ``num_tokens`` prompt tokens against it at once.

        Returns when it was sent, for the circuit.
        """
        self._unreported_requests += 1
        self._unreported_tokens += num_tokens
        self.retry_budget.earn()
        return self.circuit.sent()

    @property
    def rate(self) -> float:
        """The rate it reports, 0 where that is unknown, or old.

        A worker that was slow once, while it was stopped or its machine busy, gets nothing to do
        where others are faster: it would never be seen to be fast again.
        """
        is_fresh = self._clock() - self._stepped_at < RATE_SECONDS
        return self.load.rate if is_fresh else 0.0

    @property
    def requests(self) -> int:
        """Requests it holds in any state."""
        load = self.load
        return load.waiting + load.handing_off + load.running + self._unreported_requests

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens it has yet to compute (prefill)."""
        return self.load.pending_tokens + self._unreported_tokens

    @property
    def pool_tokens(self) -> int:
        """Tokens whose KV its pool holds."""
        return self.load.blocks.total * self.identity.block_size

    @property
    def available_tokens(self) -> int:
        """Tokens whose KV would fit now without waiting for anyone."""
        blocks = self.load.blocks
        taken = self._unreported_tokens
        return (blocks.free + blocks.cached) * self.identity.block_size - taken
