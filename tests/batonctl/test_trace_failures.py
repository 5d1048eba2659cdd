"""Requests that failed, and what their clients made them say."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from batonctl.trace import Trace, load_trace
from batonctl.trace_html import page
from batonctl.trace_waterfall import fitted
from chassis import telemetry
from chassis.errors import InvalidArgument
from chassis.telemetry import SpanKind, start_span
from tests.batonctl.recorded_trace import drawn

SCRIPT = "<script src=https://evil.example/x.js>alert('x')</script>"
REASON = "sampling.max_tokens: 1 prompt token and 999999 more exceed the context of 1440"


def failed_request(reason: str = REASON, model: str = "smollm2-135m") -> Trace:
    """A request that the gateway refused, as it would leave it."""
    telemetry.setup("gateway")
    with start_span(
        "GenerateStream", kind=SpanKind.SERVER, attributes={"gen_ai.request.model": model}
    ) as root:
        root.set({"rpc.response.status_code": "INVALID_ARGUMENT", "script": SCRIPT})
        with pytest.raises(InvalidArgument), start_span("tokenize", parent=root):
            raise InvalidArgument(reason, reason="TOO_LONG")
    telemetry.shutdown()
    return load_trace(root.trace_id)


def test_the_status_and_the_whole_reason_are_shown(trace_folder: Path) -> None:
    text = drawn(failed_request(), width=60)
    assert re.search(r"^status INVALID_ARGUMENT  total ", text, re.MULTILINE)
    above, below = text.split("\nstage")
    assert f"tokenize: {REASON}" in " ".join(above.split())
    assert "━ failed" in below and "exceed" not in below


def test_a_code_in_place_of_a_reason_is_not_repeated(trace_folder: Path) -> None:
    telemetry.setup("gateway")
    root = start_span("Generate", kind=SpanKind.SERVER)
    root.set({"rpc.response.status_code": "UNAVAILABLE"})
    root.fail("UNAVAILABLE", "UNAVAILABLE")
    root.end()
    telemetry.shutdown()
    head = drawn(load_trace(root.trace_id)).split("\nstage")[0]
    assert head.count("UNAVAILABLE") == 1


def test_a_request_that_went_well_shows_no_status(trace_folder: Path) -> None:
    telemetry.setup("gateway")
    with start_span("Generate", kind=SpanKind.SERVER) as root:
        root.set({"rpc.response.status_code": "OK"})
    telemetry.shutdown()
    trace = load_trace(root.trace_id)
    assert "status" not in drawn(trace) and "failed" not in drawn(trace)
    assert "<dt>status" not in page(trace)


def test_a_client_cannot_steer_the_terminal(trace_folder: Path) -> None:
    trace = failed_request(reason="no\x1b[2J\r\nstage", model="m\x1b]0;x\x07\u202e\nl")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", drawn(trace))
    assert "model m ]0;x l" in drawn(trace) and "tokenize: no [2J stage" in drawn(trace)


class Elements(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [f"{key}={value}" for key, value in attrs if key != "title"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_what_a_client_sent_as_text_only(trace_folder: Path) -> None:
    seen = Elements()
    seen.feed(page(failed_request(reason=f'"{SCRIPT}', model=SCRIPT)))
    assert seen.names.isdisjoint({"script", "link", "img", "iframe", "object", "base"})
    assert not [given for given in seen.attributes if "http" in given and "http-equiv" not in given]
    assert not [given for given in seen.attributes if given.startswith(("src=", "href=", "on"))]
    assert seen.text.count(SCRIPT) >= 3
    assert "INVALID_ARGUMENT" in seen.text


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (25, "8 steps, gap p50 25.1 ms"),
        (24, "8 steps, gap p50 25.1 ms"),
        (23, "8 steps, …"),
        (9, "8 steps …"),
        (4, "8 …"),
        (2, "…"),
        (0, ""),
        (-3, ""),
    ],
)
def test_notes_are_cut_between_facts_then_between_words(columns: int, expected: str) -> None:
    assert fitted(["8 steps", "gap p50 25.1 ms"], columns) == expected


def test_wide_characters_count_twice() -> None:
    assert fitted(["日本語 です"], 9) == "日本語 …"


def test_nothing_to_say_fits_anywhere() -> None:
    assert fitted([], 10) == ""
