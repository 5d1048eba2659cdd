"""Work on texts: short pieces at once, long ones on threads, in turn and within bounds."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gateway.admission import Admission, AdmissionLimits

T = TypeVar("T")

# Less takes no longer than the way to a thread and back.
MAX_SIZE_AT_ONCE = 2048
# Encoding runs without the interpreter lock, all else competes with the event loop for it.
NUM_THREADS = 2


class TextWork:
    """Keeps long texts off the event loop, and their number and time bounded.

    First come, first served. A piece whose caller has left still ends on its thread, and keeps
    its turn until then. ``on_change`` hears how many wait. Event loop only.
    """

    def __init__(
        self,
        max_waiting: int,
        max_wait_seconds: float,
        *,
        num_threads: int = NUM_THREADS,
        on_change: Callable[[int], None] = lambda waiting: None,
    ) -> None:
        limits = AdmissionLimits(num_threads, max_waiting, max_wait_seconds)
        self._turns = Admission(limits, lambda waiting, *_: on_change(waiting))

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises; ``size`` is about the characters that it reads.

        Raises ResourceExhausted, QUEUE_FULL or QUEUE_TIMEOUT, with the time to come back after.
        """
        if size <= MAX_SIZE_AT_ONCE:
            return work()
        await self._turns.enter()
        job = asyncio.ensure_future(asyncio.to_thread(work))
        job.add_done_callback(self._end)
        return await asyncio.shield(job)

    def _end(self, job: "asyncio.Future[T]") -> None:
        self._turns.leave()
        if not job.cancelled():
            # Taken note of here: its caller may have left.
            job.exception()
