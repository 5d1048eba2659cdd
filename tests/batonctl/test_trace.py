"""`baton trace`: one tree out of the files of several processes."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from batonctl.errors import InputError
from batonctl.trace import load_trace, run_trace, write_html
from batonctl.trace_html import page
from batonctl.trace_model import Trace, TraceEvent, TraceSpan
from batonctl.trace_notes import duration, notes, size
from tests.batonctl.recorded_trace import BEGIN, drawn, record


def test_three_processes_make_one_tree(trace_folder: Path) -> None:
    trace_id = record()
    assert len(list(trace_folder.glob("*.jsonl"))) == 3
    trace = load_trace(trace_id)
    tree = [(row.depth, row.span.name, row.span.service) for row in trace.rows()]
    assert tree == [
        (0, "GenerateStream", "baton-gateway"),
        (1, "tokenize", "baton-gateway"),
        (1, "admission.wait", "baton-gateway"),
        (1, "route", "baton-gateway"),
        (1, "prefill leg", "baton-gateway"),
        (2, "Prefill", "baton-prefill"),
        (3, "prefill.queue", "baton-prefill"),
        (3, "prefill.compute", "baton-prefill"),
        (1, "decode leg", "baton-gateway"),
        (2, "decode.queue", "baton-decode"),
        (2, "kv.pull", "baton-decode"),
        (2, "decode.generate", "baton-decode"),
    ]
    assert trace.is_complete
    assert trace.root.seconds == 0.82
    assert trace.time_to_first_token == 0.17
    assert trace.tokens_per_second == pytest.approx(63 / 0.65)


def test_the_latest_request_is_the_default(trace_folder: Path) -> None:
    record(BEGIN + 10_000_000_000)
    latest = record(BEGIN + 20_000_000_000)
    record(BEGIN)
    assert load_trace().trace_id == latest


def test_the_start_of_an_id_is_enough_where_it_is_clear(trace_folder: Path) -> None:
    trace_id = record()
    assert load_trace(trace_id[:8].upper()).trace_id == trace_id
    path = next(trace_folder.glob("gateway-*.jsonl"))
    other = trace_id[:8] + "0" * 24
    (trace_folder / "more.jsonl").write_text(path.read_text().replace(trace_id, other))
    with pytest.raises(InputError, match="2 requests start with"):
        load_trace(trace_id[:8])


def test_without_traces_it_says_where_it_looked(trace_folder: Path) -> None:
    with pytest.raises(InputError, match="no trace yet") as caught:
        load_trace()
    assert str(trace_folder) in caught.value.hint
    with pytest.raises(InputError, match="no trace of request abc"):
        load_trace("abc")


def test_a_damaged_file_costs_only_its_damaged_lines(trace_folder: Path) -> None:
    trace_id = record()
    path = next(trace_folder.glob("gateway-*.jsonl"))
    path.write_text(
        f'{{"resourceSpans": [{trace_id}\n[1]\n' + path.read_text() + '{"cut": "' + trace_id
    )
    (trace_folder / "broken.jsonl").write_bytes(b"\xff\xfe" + trace_id.encode())
    assert len(load_trace(trace_id).spans) == 12


def test_a_part_that_is_late_is_waited_for(trace_folder: Path) -> None:
    trace_id = record()
    late = next(trace_folder.glob("decode-*.jsonl"))
    text = late.read_text()
    late.unlink()
    assert not load_trace(trace_id).is_complete
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())", late],
        stdin=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        writer.stdin.write(text)
        writer.stdin.close()
        assert load_trace(trace_id, wait=60).is_complete


def test_what_is_missing_in_the_end_is_left_out(trace_folder: Path) -> None:
    trace_id = record()
    next(trace_folder.glob("gateway-*.jsonl")).unlink()
    trace = load_trace(trace_id)
    assert trace.root.name == "Prefill" and len(trace.children("")) == 4
    assert "Stages are missing" in drawn(trace) and "Stages are missing" in page(trace)


def test_the_waterfall_shows_stages_facts_and_figures(trace_folder: Path) -> None:
    text = drawn(load_trace(record()), width=160)
    assert "total 820 ms  first token 170 ms  speed 96.9 tokens/s  output 64 tokens" in text
    assert re.search(r"└╴prefill\.compute +━+┿━+┿ +164 ms +512 tokens in 2 chunks", text)
    assert re.search(
        r"kv\.pull .* 23\.6 MB over nixl, 3\.29 GB/s, 6\.50 ms exposed, 32 blocks in 2 chunks", text
    )
    assert re.search(
        r"└╴decode\.generate .* 63 steps, joined after 400 µs, gap p50 9\.90 ms, gap p99 14\.1 ms",
        text,
    )


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(trace_folder: Path, width: int) -> None:
    trace = load_trace(record())
    lines = drawn(trace, width).splitlines()
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if "decode.gen" in line]) == 1


def test_a_terminal_without_unicode_gets_the_same_in_ascii(trace_folder: Path) -> None:
    trace = load_trace(record())
    text = drawn(trace, encoding="ascii")
    assert re.search(r"`-prefill\.compute +###\|##\|# +164 ms", text) and "200 us" in text


def test_bars_lie_where_the_time_was(trace_folder: Path) -> None:
    text = drawn(load_trace(record()), width=140)
    lines = {line.split()[0].strip("├└╴│"): line for line in text.splitlines() if "━" in line}

    def bar(name: str) -> tuple[int, int]:
        cells = next(line for key, line in lines.items() if name in line)
        marks = [index for index, cell in enumerate(cells) if cell in "━┿"]
        return marks[0], marks[-1]

    root, pull, decode = bar("GenerateStream"), bar("kv.pull"), bar("decode.generate")
    assert root[0] <= pull[0] < pull[1] <= decode[0] < decode[1] <= root[1]
    assert (decode[1] - decode[0]) / (root[1] - root[0]) == pytest.approx(631.5 / 820, abs=0.05)


class Page(HTMLParser):
    """What a page would load, and whether its tags match."""

    VOID = frozenset({"meta", "link", "img", "br", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{key}={value}" for key, value in attrs if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(trace_folder: Path, tmp_path: Path) -> None:
    trace = load_trace(record())
    write_html(trace, tmp_path / "t.html")
    text = (tmp_path / "t.html").read_text()
    parsed = Page()
    parsed.feed(text)
    assert parsed.open == [] and parsed.loads == [] and "script" not in parsed.tags
    assert "url(" not in text and "@import" not in text and "http:" not in text
    assert parsed.tags.count("details") == len(trace.spans)
    assert "prefers-color-scheme: dark" in text
    assert [path.name for path in tmp_path.iterdir() if "html" in path.name] == ["t.html"]


def test_nothing_that_a_span_says_becomes_markup() -> None:
    evil = "<script>alert(1)</script>\"'"
    span = TraceSpan(
        *("0" * 32, "1" * 16, "", evil, 2, evil, 0, 10),
        attributes={evil: evil, "list": [evil]},
        events=(TraceEvent(evil, 5, {evil: evil}),),
        error=evil,
    )
    parsed = Page()
    parsed.feed(page(Trace("0" * 32, (span,))))
    assert parsed.open == [] and "script" not in parsed.tags


def test_the_command_prints_or_writes(
    trace_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace_id = record()
    run_trace(None, None)
    assert trace_id in capsys.readouterr().out
    run_trace(trace_id, trace_folder / "t.html")
    assert capsys.readouterr().out.strip() == str(trace_folder / "t.html")


SPAN = TraceSpan("0" * 32, "1" * 16, "", "s", 1, "baton-decode", 0, 1_000, attributes={})


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (SPAN, ""),
        (replace(SPAN, error="engine died"), "engine died"),
        (replace(SPAN, attributes={"rpc.response.status_code": "CANCELLED"}), "CANCELLED"),
        (replace(SPAN, attributes={"baton.preemptions": 2}), "2 preempted"),
        (replace(SPAN, attributes={"baton.cached_tokens": 32}), "32 tokens cached"),
        (
            replace(SPAN, events=(TraceEvent("chunk", 1, {"baton.bytes": 1e6, "baton.rate": 0}),)),
            "1.00 MB, 1 chunk",
        ),
    ],
    ids=["nothing", "error", "cancelled", "preempted", "cached", "unmeasured rate"],
)
def test_a_note_says_what_matters(span: TraceSpan, expected: str) -> None:
    assert ", ".join(notes(span)) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 µs"), (0.0005, "500 µs"), (0.0123, "12.3 ms"), (0.9994, "999 ms"), (12.345, "12.3 s")],
)
def test_durations_have_three_digits(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (23_592_960, "23.6 MB"), (3.2e9, "3.20 GB")],
)
def test_sizes_have_three_digits(num_bytes: float, expected: str) -> None:
    assert size(num_bytes) == expected


def test_files_are_what_collectors_read(trace_folder: Path) -> None:
    record()
    for path in trace_folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            assert list(json.loads(line)) == ["resourceSpans"]
