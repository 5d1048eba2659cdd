"""One read of whole blocks on its way, cut into pieces."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from kvtransfer.errors import ReadCancelled, TransferError
from kvtransfer.transport.block_runs import BlockRuns


class BlockRead:
    """A read in progress: wait for ``done``, fence by ``ended``.

    ``done`` resolves to the seconds it took once every byte has arrived and ``check`` finds no
    fault with them, at ``done_at`` of time.monotonic, or fails with a TransferError as soon as that
    is out of reach. ``ended`` resolves when nothing of the read can write to its local blocks any
    more, which after a failure may be later, or never. Both resolve on the transfer thread and
    cannot be cancelled; ``cancel`` is how to give up.
    """

    def __init__(
        self,
        peer: str,
        local_ids: Sequence[int],
        pieces: Sequence[BlockRuns],
        check: Callable[[], TransferError | None],
        give_up: "Callable[[BlockRead], None]",
    ) -> None:
        self.peer = peer
        self.local_ids = tuple(local_ids)
        self.done: Future[float] = running_future()
        self.done_at = 0.0
        self.ended: Future[None] = running_future()
        self.failed_at: float | None = None
        # Known when it begins.
        self.transport = ""
        self._unposted = deque(pieces)
        self._num_in_flight = 0
        self._check = check
        self._give_up = give_up
        self._started_at = time.monotonic()

    def cancel(self) -> None:
        """Drops what has not been posted. Any thread; no effect once ``done`` is done."""
        self._give_up(self)

    # The rest belongs to the transfer thread.

    @property
    def has_unposted(self) -> bool:
        return bool(self._unposted)

    def next_piece(self) -> BlockRuns:
        """Takes the next piece; the caller posts it."""
        self._num_in_flight += 1
        return self._unposted.popleft()

    def piece_ended(self) -> None:
        """One posted piece will not write any more."""
        self._num_in_flight -= 1
        self.settle()

    def settle(self) -> None:
        """Resolves what can be resolved now."""
        if self._unposted or self._num_in_flight or self.ended.done():
            return
        if not self.done.done():
            if (error := self._check()) is None:
                self.done_at = time.monotonic()
                self.done.set_result(self.done_at - self._started_at)
            else:
                self.done.set_exception(error)
        self.ended.set_result(None)

    def fail(self, error: TransferError, now: float) -> None:
        """Posts nothing more; ``ended`` waits for the pieces in flight. Idempotent."""
        self._unposted.clear()
        if not self.done.done():
            self.failed_at = now
            self.done.set_exception(error)
        self.settle()

    def abandon(self, error: TransferError, now: float) -> None:
        """Fails the read after the transport was closed: nothing is in flight any more."""
        self._num_in_flight = 0
        self.fail(error, now)


def cancelled(read: BlockRead) -> ReadCancelled:
    """The error of a read that its owner gave up."""
    return ReadCancelled(f"read of {len(read.local_ids)} blocks from {read.peer} was given up")


def running_future() -> "Future":  # type: ignore[type-arg]
    """A future that its waiters cannot cancel."""
    future: Future[object] = Future()
    future.set_running_or_notify_cancel()
    return future
