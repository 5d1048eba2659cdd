"""Temporary folders of processes that end well, that are killed, and that live."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chassis.owned_folder import owned_folder

OWNER = """
import sys, tempfile
from chassis.owned_folder import owned_folder
tempfile.tempdir = sys.argv[1]
with owned_folder("owned-") as folder:
    (folder / "content").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def other_process(root: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """A process that owns a folder, and the folder."""
    command = [sys.executable, "-c", OWNER, str(root)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_it_goes_with_its_owner(root: Path) -> None:
    with owned_folder("owned-") as folder:
        (folder / "content").touch()
        assert folder.parent == root
    assert not folder.exists()


def test_a_killed_owners_folder_is_removed_by_the_next_one_and_no_other(root: Path) -> None:
    (root / "owned-by nobody we know").mkdir()
    with other_process(root) as (_, lives), other_process(root) as (killed, orphan):
        killed.kill()
        killed.wait()
        assert orphan.exists()
        with owned_folder("other-"):
            assert orphan.exists()
        with owned_folder("owned-") as own:
            assert not orphan.exists()
            assert (lives / "content").exists()
            with owned_folder("owned-"):
                assert own.exists()
        assert (root / "owned-by nobody we know").exists()
