"""`baton trace` as a person runs it, on files that telemetry wrote."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from batonctl.trace import load_trace
from chassis import telemetry
from chassis.telemetry import start_span, trace_files
from tests.batonctl.command import baton
from tests.batonctl.recorded_trace import BEGIN, record


def trace(
    folder: Path, *arguments: str, columns: int | str = 120
) -> subprocess.CompletedProcess[str]:
    environment = {"BATON_TRACE_DIR": str(folder), "COLUMNS": str(columns)}
    return baton("trace", *arguments, env=environment)


def refused(run: subprocess.CompletedProcess[str]) -> str:
    """The line that says why; the command shows nothing else but a hint."""
    assert run.stdout == "" and "Traceback" not in run.stderr
    first, *hint = run.stderr.splitlines()
    assert len(hint) <= 1 and all(line.startswith("  ") for line in hint)
    return first


def test_the_last_request_and_one_by_its_id(trace_folder: Path) -> None:
    older = record(BEGIN)
    newer = record(BEGIN + 10**9)
    last, by_id = trace(trace_folder, "--last"), trace(trace_folder, older[:12])
    assert (last.returncode, by_id.returncode, last.stderr) == (0, 0, "")
    assert last.stdout == trace(trace_folder).stdout
    assert [run.stdout.splitlines()[0] for run in (last, by_id)] == [
        f"GenerateStream  {newer}",
        f"GenerateStream  {older}",
    ]
    assert "first token 170 ms  speed 96.9 tokens/s" in last.stdout
    chart = last.stdout.split("\nstage")[1]
    stages = re.findall(r"^[│├└╴ ]*(\S.*?)  +[━┿]", chart, re.MULTILINE)[:-1]
    expected = [row.span.name for row in load_trace(newer).rows()]
    assert stages == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "baton: there is no trace yet"),
        (["--last"], "baton: there is no trace yet"),
        (["abc"], "baton: no trace of request abc"),
        ([""], "baton: the request id is empty"),
        (["abc", "--last"], "baton: give a request id or --last, not both"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(
    trace_folder: Path, arguments: list[str], message: str
) -> None:
    run = trace(trace_folder, *arguments)
    assert (run.returncode, refused(run)) == (2, message)


def test_an_unclear_start_of_an_id_names_some_requests(trace_folder: Path) -> None:
    trace_id = record()
    text = next(trace_folder.glob("gateway-*.jsonl")).read_text()
    others = [f"{trace_id[:8]}{index:024x}" for index in range(5)]
    for other in others:
        (trace_folder / f"{other}.jsonl").write_text(text.replace(trace_id, other))
    run = trace(trace_folder, trace_id[:8])
    assert run.returncode == 2
    message = f"baton: 6 requests start with {trace_id[:8]}: "
    assert refused(run) == message + ", ".join([*sorted([*others, trace_id])[:3], "..."])


def test_files_of_which_nothing_is_whole_are_no_traces(trace_folder: Path) -> None:
    trace_id = record()
    (trace_folder / "folder.jsonl").mkdir()
    for path in trace_folder.glob("*-*.jsonl"):
        path.write_bytes(path.read_bytes()[:-20])
    run = trace(trace_folder, trace_id)
    assert (run.returncode, refused(run)) == (2, f"baton: no trace of request {trace_id}")


def test_a_half_written_line_hides_no_whole_one(trace_folder: Path) -> None:
    whole = record()
    for path in trace_folder.glob("*.jsonl"):
        path.write_bytes(path.read_bytes() + path.read_bytes()[:-20])
    run = trace(trace_folder)
    assert run.returncode == 0 and run.stderr == ""
    assert whole in run.stdout and run.stdout.count("decode.generate") == 1


def test_a_trace_is_read_across_the_segments_of_its_writers(
    trace_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_files, "SEGMENT_LIMIT", 1)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    telemetry.setup("gateway")
    with start_span("Generate") as root:
        for index in range(4):
            start_span(f"stage {index}", parent=root).end()
    telemetry.shutdown()
    assert len(list(trace_folder.glob(f"gateway-{os.getpid()}-*.jsonl"))) == 5
    run = trace(trace_folder, root.trace_id)
    assert re.findall(r"stage \d", run.stdout) == [f"stage {index}" for index in range(4)]


def test_a_page_goes_to_the_file_or_the_reason_why_not(trace_folder: Path, tmp_path: Path) -> None:
    trace_id = record()
    run = trace(trace_folder, "--html", str(tmp_path / "page.html"))
    assert (run.returncode, run.stdout) == (0, f"{tmp_path / 'page.html'}\n")
    assert trace_id in (tmp_path / "page.html").read_text()
    for target in (tmp_path, tmp_path / "absent" / "page.html"):
        run = trace(trace_folder, "--html", str(target))
        assert run.returncode == 1 and refused(run).startswith(f"baton: cannot write {target}: ")


def test_a_file_gets_whole_notes_where_nobody_says_how_wide_it_is(trace_folder: Path) -> None:
    record()
    wide = trace(trace_folder, columns=160).stdout
    assert "…" not in wide
    assert trace(trace_folder, columns="").stdout == wide


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_notes_lose_whole_words_and_say_so(trace_folder: Path, columns: int) -> None:
    record()
    narrow, wide = (trace(trace_folder, columns=width).stdout for width in (columns, 160))

    def notes(text: str) -> list[str]:
        # A time, two spaces, then the note up to the end of the line.
        return [*re.findall(r"\d (?:ms|µs|s)  (\S.*)$", text.split("stage", 1)[1], re.MULTILINE)]

    assert len(notes(wide)) == 3 and not any(note.endswith("…") for note in notes(wide))
    assert any(note.endswith("…") for note in notes(narrow))
    for short, full in zip(notes(narrow), notes(wide), strict=True):
        kept = short.removesuffix("…").rstrip(" ,")
        assert f"{full},".startswith((f"{kept},", f"{kept} ")) if kept else short == "…"
    assert max(map(len, narrow.splitlines())) <= columns
