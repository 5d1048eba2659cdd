"""A temporary folder that does not outlive its owner for long, not even one that was killed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = "owner.lock"


@contextmanager
def owned_folder(prefix: str) -> Iterator[Path]:
    """A folder of this process's own while entered; removed at the end.

    Nobody can remove the folder of a process that was killed but the next one that makes a folder
    with this ``prefix``: it removes those whose owner is gone. The kernel says so: it lets go of a
    lock when its process ends.
    """
    _remove_orphans(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, _claimed(Path(name)):
        yield Path(name)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Locked before others can find the lock, so that nobody takes a new folder for an orphan."""
    new = folder / f"{_LOCK}.new"
    with new.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(new, folder / _LOCK)
        yield


def _remove_orphans(prefix: str) -> None:
    for found in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        # It may be somebody else's, or be removed by its owner, or by another one, just now.
        with suppress(OSError), found.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found.parent)
