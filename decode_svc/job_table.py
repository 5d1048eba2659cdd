"""The attempts that live on a decode worker."""

from decode_svc.attempt import Attempt
from decode_svc.job import DecodeJob


class JobTable:
    """Jobs by attempt and by handle, and how many of them have no room yet. Event loop only."""

    def __init__(self) -> None:
        self._by_attempt: dict[bytes, DecodeJob] = {}
        self._by_handle: dict[tuple[int, int], DecodeJob] = {}
        self._waiting: set[DecodeJob] = set()

    def __len__(self) -> int:
        return len(self._by_attempt)

    def __contains__(self, attempt_id: bytes) -> bool:
        return attempt_id in self._by_attempt

    @property
    def num_waiting(self) -> int:
        """Jobs without room, whether they wait for prefill or for blocks."""
        return len(self._waiting)

    def add(self, job: DecodeJob) -> None:
        attempt = job.attempt
        self._by_attempt[attempt.attempt_id] = job
        self._by_handle[attempt.session, attempt.handle] = job
        self._waiting.add(job)

    def note_room(self, job: DecodeJob) -> None:
        """Blocks are reserved for it: it waits no longer."""
        self._waiting.discard(job)

    def remove(self, job: DecodeJob) -> None:
        attempt = job.attempt
        del self._by_attempt[attempt.attempt_id]
        del self._by_handle[attempt.session, attempt.handle]
        self._waiting.discard(job)

    def find(self, attempt: Attempt) -> DecodeJob | None:
        """The job of an attempt that is not over, or None."""
        return self._by_attempt.get(attempt.attempt_id)

    def find_handle(self, session: int, handle: int) -> DecodeJob | None:
        return self._by_handle.get((session, handle))

    def all(self) -> list[DecodeJob]:
        return list(self._by_attempt.values())

    def of_session(self, session: int) -> list[DecodeJob]:
        return [job for job in self._by_attempt.values() if job.attempt.session == session]
