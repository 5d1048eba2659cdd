"""Decode's refusal to reuse blocks that a read may still write."""

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fence:
    """Destination blocks that stay out of use until ``lifted`` is done (protocol 4.1).

    ``lifted`` resolves to None on the transfer thread, at once where there are no blocks. It
    never fails and is never cancelled: if a read never ends, it never resolves. Do not cancel it.
    """

    block_ids: tuple[int, ...]
    lifted: "Future[None]"

    @classmethod
    def none(cls) -> "Fence":
        """A fence around nothing."""
        lifted: Future[None] = Future()
        lifted.set_result(None)
        return cls((), lifted)

    @classmethod
    def around(cls, block_ids: Iterable[int], ended: Iterable["Future[None]"]) -> "Fence":
        """A fence around ``block_ids`` that lifts when every future of ``ended`` is done."""
        waiting = _Countdown(list(ended))
        return cls(tuple(block_ids), waiting.lifted)


class _Countdown:
    """Resolves ``lifted`` when all the given futures are done."""

    def __init__(self, futures: "list[Future[None]]") -> None:
        self.lifted: Future[None] = Future()
        self.lifted.set_running_or_notify_cancel()
        self._lock = threading.Lock()
        # One more than there are futures: nothing lifts before all callbacks are in place.
        self._left = len(futures) + 1
        for future in futures:
            future.add_done_callback(self._one_done)
        self._one_done(None)

    def _one_done(self, _: "Future[None] | None") -> None:
        # Runs on the transfer thread, or right here for a future that is done already.
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self.lifted.set_result(None)
