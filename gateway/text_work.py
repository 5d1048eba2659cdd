"""Work on texts: short pieces at once, long ones on threads, in turn and within bounds."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from chassis.errors import ResourceExhausted
from gateway.admission import Admission, AdmissionLimits

T = TypeVar("T")

# Less takes no longer than the way to a thread and back.
MAX_SIZE_AT_ONCE = 2048
# Encoding runs without the interpreter lock, all else competes with the event loop for it.
NUM_THREADS = 2
# Of the texts that are read or wait for it. Python may keep four bytes of each character.
MAX_TOTAL_SIZE = 64 * 1024 * 1024


class TextWork:
    """Keeps long texts off the event loop, and their number, size and time bounded.

    First come, first served. A piece whose caller has left still ends on its thread, and keeps
    its turn until then. Event loop only.
    """

    def __init__(
        self,
        max_waiting: int,
        max_wait_seconds: float,
        *,
        num_threads: int = NUM_THREADS,
        max_total_size: int = MAX_TOTAL_SIZE,
    ) -> None:
        self._turns = Admission(AdmissionLimits(num_threads, max_waiting, max_wait_seconds))
        self._max_total_size = max_total_size
        self._total_size = 0

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises; ``size`` is about the characters that it reads.

        Raises ResourceExhausted, QUEUE_FULL or QUEUE_TIMEOUT, with the time to come back after.
        """
        if size <= MAX_SIZE_AT_ONCE:
            return work()
        if self._total_size and self._total_size + size > self._max_total_size:
            raise ResourceExhausted(
                f"texts of {self._total_size} bytes are waiting to be read already",
                reason="QUEUE_FULL",
                retry_after=self._turns.retry_after(),
            )
        self._total_size += size
        try:
            await self._turns.enter()
        except BaseException:
            self._total_size -= size
            raise
        job = asyncio.ensure_future(asyncio.to_thread(work))
        job.add_done_callback(lambda done: self._end(size, done))
        return await asyncio.shield(job)

    def _end(self, size: int, job: "asyncio.Future[T]") -> None:
        self._total_size -= size
        self._turns.leave()
        if not job.cancelled():
            # Taken note of here: its caller may have left.
            job.exception()
