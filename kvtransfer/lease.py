"""The prefill worker's promise to keep an attempt's blocks, and what is told about them."""

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass

from chassis.errors import ServiceError
from kvtransfer.errors import DuplicateAttempt, MessageOutOfOrder, UnknownAttempt
from kvtransfer.handoff import Chunk, Completion


class LeaseEnd(enum.Enum):
    """How a lease ended; the blocks are P's again in each case."""

    RELEASED = enum.auto()
    """Decode said Done while the lease was alive: the hand-off worked."""
    PULL_BROKEN = enum.auto()
    """A Pull that had started broke (protocol 3.7)."""
    HANDOFF_TIMEOUT = enum.auto()
    """No Pull was open for the hand-off timeout."""
    REVOKED = enum.auto()
    """The worker itself ended it."""

    @property
    def alive(self) -> bool:
        """Whether what was read may become tokens."""
        return self is LeaseEnd.RELEASED


@dataclass(frozen=True, slots=True)
class Computing:
    """All blocks of the prompt are reserved; computing begins."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """The lease ended before Done."""

    error: ServiceError


LeaseEvent = Computing | Chunk | Completion | Revocation


class Lease:
    """One attempt on the prefill side: what is known about it, and what its Pull has been told.

    Thread-safe: the engine thread reports progress and may revoke while the event loop serves the
    Pull. Exactly one caller ends a lease; that one, told by True, frees the blocks.
    """

    def __init__(
        self,
        attempt_id: bytes,
        token_digest: bytes,
        *,
        num_tokens: int,
        block_size: int,
        hand_off: bool = True,
    ) -> None:
        self.attempt_id = attempt_id
        self.token_digest = token_digest
        self._num_tokens = num_tokens
        self._block_size = block_size
        self._hand_off = hand_off
        self._lock = threading.Lock()
        self._end: LeaseEnd | None = None
        self._error: ServiceError | None = None
        self._computing = False
        self._story: list[Chunk | Completion] = []
        # The open Pull: how to wake it, whether Start came, and how much it has been told.
        self._wake: Callable[[], None] | None = None
        self._cached_tokens: int | None = None
        self._told_computing = False
        self._num_told = 0

    @property
    def ended(self) -> LeaseEnd | None:
        """How it ended, or None."""
        return self._end

    # The worker's side.

    def computing(self) -> None:
        """All blocks of the prompt are reserved."""
        with self._lock:
            self._computing = True
        self._wake_pull()

    def tell(self, progress: Chunk | Completion) -> None:
        """Adds a finished chunk or the end of the prompt; ignored once the lease has ended."""
        with self._lock:
            assert self._computing, f"{progress} before computing"
            self._check_order(progress)
            self._story.append(progress)
        self._wake_pull()

    def end(self, how: LeaseEnd, error: ServiceError | None = None) -> bool:
        """Ends the lease; False if it had ended already, so that blocks are freed once."""
        with self._lock:
            if self._end is not None:
                return False
            self._end, self._error = how, error
        self._wake_pull()
        return True

    # The Pull's side.

    def open_pull(self, wake: Callable[[], None]) -> None:
        """Attaches a Pull; ``wake`` is called, on any thread, when there is something to say.

        Raises DuplicateAttempt while another Pull is open, UnknownAttempt if it has ended or is
        not to be handed off.
        """
        with self._lock:
            if self._end is not None or not self._hand_off:
                raise UnknownAttempt(f"attempt {self.attempt_id.hex()} has nothing to hand off")
            if self._wake is not None:
                raise DuplicateAttempt(f"attempt {self.attempt_id.hex()} is being pulled")
            self._wake = wake
            self._told_computing = False

    def start(self, cached_tokens: int) -> None:
        """Decode has room; chunks are told from here on. Raises MessageOutOfOrder."""
        with self._lock:
            if not self._told_computing or self._cached_tokens is not None:
                raise MessageOutOfOrder("Start comes once, after Computing")
            if cached_tokens % self._block_size or cached_tokens > self._num_tokens:
                raise MessageOutOfOrder(
                    f"cached_tokens {cached_tokens} is no multiple of {self._block_size} "
                    f"within {self._num_tokens}"
                )
            self._cached_tokens = cached_tokens
        self._wake_pull()

    def take_events(self) -> list[LeaseEvent]:
        """What the Pull has not been told yet; nothing follows a Revocation."""
        with self._lock:
            if self._end is not None:
                return [Revocation(self._error)] if self._error is not None else []
            events: list[LeaseEvent] = []
            if self._computing and not self._told_computing:
                self._told_computing = True
                events.append(Computing())
            if self._cached_tokens is not None:
                told, self._num_told = self._num_told, len(self._story)
                events += self._trimmed(self._story[told:], self._cached_tokens)
            return events

    def done(self) -> bool:
        """Decode has read everything: ends the lease, True if it was alive until now.

        Raises MessageOutOfOrder if the Pull has not been told of the whole prompt.
        """
        with self._lock:
            if self._end is None:
                told = self._story[: self._num_told]
                if not told or not isinstance(told[-1], Completion):
                    raise MessageOutOfOrder("Done comes after Complete")
        return self.end(LeaseEnd.RELEASED)

    def close_pull(self) -> bool:
        """Detaches the Pull, however it went; True if that ended the lease.

        A Pull that had not started leaves the lease as it was: another may follow.
        """
        with self._lock:
            self._wake = None
            started = self._cached_tokens is not None
        return started and self.end(LeaseEnd.PULL_BROKEN)

    def _trimmed(self, story: list[Chunk | Completion], cached_tokens: int) -> list[LeaseEvent]:
        cut = [item.without_cached(cached_tokens, self._block_size) for item in story]
        return [item for item in cut if item is not None]

    def _check_order(self, progress: Chunk | Completion) -> None:
        chunk = progress if isinstance(progress, Chunk) else progress.last_chunk
        last = self._story[-1] if self._story else Chunk(0, 0, ())
        assert isinstance(last, Chunk), f"{progress} after {last}"
        told = last.end_token
        if chunk is not None:
            blocks = -(-chunk.num_tokens // self._block_size)
            assert chunk.first_token == told, f"{chunk} does not follow token {told}"
            assert len(chunk.block_ids) == blocks, f"{chunk} needs {blocks} blocks"
            told = chunk.end_token
        if isinstance(progress, Completion):
            assert told == progress.num_tokens == self._num_tokens, (
                f"{progress} of {self._num_tokens} tokens, {told} told"
            )

    def _wake_pull(self) -> None:
        wake = self._wake
        if wake is not None:
            wake()
