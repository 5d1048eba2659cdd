"""The local trace store: JSON-lines files, one per process, bounded over all processes."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TOTAL_LIMIT = 64 * 1024 * 1024
SEGMENT_LIMIT = 4 * 1024 * 1024
FILE_LIMIT = 500
SUFFIX = ".jsonl"


def trace_directory() -> Path:
    """BATON_TRACE_DIR, by default ``~/.cache/baton/traces``."""
    given = os.environ.get("BATON_TRACE_DIR")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "baton" / "traces"


class TraceFileWriter:
    """Appends lines to this process's current segment; the oldest segments of all give way.

    Every append holds a lock file, so the directory's total never exceeds the limit, however
    many processes write. Not thread-safe.
    """

    def __init__(self, directory: Path, service: str, total_limit: int = TOTAL_LIMIT) -> None:
        self._directory = directory
        self._stem = f"{service}-{os.getpid()}"
        self._total_limit = total_limit
        self._segment_limit = min(SEGMENT_LIMIT, total_limit // 4)
        self._file: BinaryIO | None = None

    def append(self, data: bytes) -> None:
        """Writes whole lines. Raises OSError; what is larger than the limit is dropped."""
        if len(data) > self._total_limit:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        with _locked(self._directory):
            make_room(self._directory, self._total_limit - len(data))
            written = self._segment().write(data)
            if written < len(data):
                # What follows must not continue the line that was cut off.
                self.close()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))

    def close(self) -> None:
        """Closes the segment; a later append opens a new one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _segment(self) -> BinaryIO:
        current = self._file
        if current is not None and (
            current.tell() >= self._segment_limit or not os.path.exists(current.name)
        ):
            self.close()
        if self._file is None:
            path = self._directory / f"{self._stem}-{time.time_ns()}{SUFFIX}"
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        return self._file


def make_room(directory: Path, limit: int) -> None:
    """Removes the oldest segments until at most ``limit`` bytes and FILE_LIMIT files are left."""
    found = sorted((stat.st_mtime_ns, stat.st_size, path) for path, stat in _segments(directory))
    total = sum(size for _, size, _ in found)
    surplus = len(found) - FILE_LIMIT
    for index, (_, size, path) in enumerate(found):
        if total <= limit and index >= surplus:
            break
        path.unlink(missing_ok=True)
        total -= size


def _segments(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                yield Path(entry.path), entry.stat()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with open(directory / ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
