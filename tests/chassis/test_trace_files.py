"""The local trace store: bounded over all processes, never a torn line."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from chassis.telemetry import trace_files
from chassis.telemetry.trace_files import TraceFileWriter


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.jsonl"))


def test_the_oldest_segments_give_way(tmp_path: Path) -> None:
    writer = TraceFileWriter(tmp_path, "gateway", total_limit=4000)
    for index in range(100):
        writer.append(f"{index:099d}\n".encode())
        assert total(tmp_path) <= 4000
    lines = sorted(
        int(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()
    )
    assert lines == list(range(lines[0], 100)) and len(lines) >= 30
    writer.close()


def test_a_writer_whose_segment_was_removed_starts_another(tmp_path: Path) -> None:
    writer = TraceFileWriter(tmp_path, "gateway")
    writer.append(b"1\n")
    for path in tmp_path.glob("*.jsonl"):
        path.unlink()
    writer.append(b"2\n")
    writer.close()
    assert [path.read_bytes() for path in tmp_path.glob("*.jsonl")] == [b"2\n"]


def test_other_processes_wait_while_room_is_made_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_room, refused = trace_files.make_room, []

    def make_room_and_try_the_lock(directory: Path, limit: int) -> None:
        make_room(directory, limit)
        with (directory / ".lock").open() as lock, pytest.raises(BlockingIOError):
            refused.append(limit)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(trace_files, "make_room", make_room_and_try_the_lock)
    writer = TraceFileWriter(tmp_path, "gateway", total_limit=4000)
    writer.append(b"1\n")
    writer.close()
    assert refused == [3998]


def test_by_default_64_mib_stay(tmp_path: Path) -> None:
    writer = TraceFileWriter(tmp_path, "gateway")
    line = b"x" * ((1 << 20) - 1) + b"\n"
    for _ in range(70):
        writer.append(line)
    writer.close()
    assert 60 << 20 <= total(tmp_path) <= 64 << 20


def test_short_lived_processes_do_not_fill_the_folder_with_files(tmp_path: Path) -> None:
    for index in range(600):
        (tmp_path / f"gateway-{index}.jsonl").touch()
    writer = TraceFileWriter(tmp_path, "gateway")
    writer.append(b"1\n")
    writer.close()
    assert len(list(tmp_path.glob("*.jsonl"))) == trace_files.FILE_LIMIT + 1


FULL_DISK = """
import resource, sys
from pathlib import Path
from chassis.telemetry.trace_files import TraceFileWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
writer = TraceFileWriter(Path(sys.argv[1]), "decode")
for letter in b"abc":
    try:
        writer.append(bytes([letter]) * 99 + b"\\n")
    except OSError as error:
        print(letter, error.strerror)
"""


def test_a_line_cut_off_by_a_full_disk_costs_no_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout == f"{ord('b')} No space left on device\n"
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(lines) == ["a" * 99, "b" * 50, "c" * 99]


WRITER = """
import sys
from pathlib import Path
from chassis.telemetry.trace_files import TraceFileWriter
writer = TraceFileWriter(Path(sys.argv[1]), "decode", total_limit=20_000)
for index in range(200):
    writer.append(sys.argv[2].encode() * 499 + b"\\n")
"""


def test_processes_share_the_limit_and_no_line_is_torn(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    processes = [subprocess.Popen([*command, letter]) for letter in "abc"]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert total(tmp_path) <= 20_000
    assert len(lines) >= 20 and all(line == line[0] * 499 for line in lines)
