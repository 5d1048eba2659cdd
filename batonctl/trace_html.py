"""A trace as one HTML file that needs nothing else: no scripts, no network, dark and light."""

import os
from collections.abc import Iterator
from html import escape
from pathlib import Path

from batonctl.trace_model import AttributeValue, Trace, TraceRow, TraceSpan
from batonctl.trace_notes import GAPS, STATUS, duration, failures, headline, notes

SERVICES = {"baton-gateway": "gateway", "baton-prefill": "prefill", "baton-decode": "decode"}
STYLE_FILE = Path(__file__).with_name("trace_page.css")


def write_html(trace: Trace, path: Path) -> None:
    """Writes the page; an older file of that name is replaced in one step. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(page(trace), encoding="utf-8")
    partial.replace(path)


def page(trace: Trace) -> str:
    """The page as text."""
    return "\n".join(_page(trace)) + "\n"


def _page(trace: Trace) -> Iterator[str]:
    title = f"{escape(trace.root.name)} · Baton trace"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # Nothing that a span says can load or run anything, whatever it contains.
    yield '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
    yield " style-src 'unsafe-inline'\">"
    yield f"<title>{title}</title><style>{STYLE_FILE.read_text(encoding='utf-8')}</style></head>"
    yield f'<body><h1>{escape(trace.root.name)}</h1><code class="id">{trace.trace_id}</code>'
    yield '<dl class="facts">'
    for label, value in headline(trace):
        kind = ' class="failed"' if label == STATUS else ""
        yield f"<div{kind}><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"
    yield from (f'<p class="failed">{escape(failure)}</p>' for failure in failures(trace))
    if not trace.is_connected:
        yield f"<p>{GAPS}</p>"
    yield '<div class="trace"><div class="axis"><span>stage</span>'
    total = duration((trace.end_ns - trace.start_ns) / 1e9)
    yield f'<span class="scale"><span>0</span><span>{total}</span></span>'
    yield '<span class="time">time</span><span class="note">notes</span></div>'
    for row in trace.rows():
        yield from _stage(row, trace)
    yield "</div>"
    yield from _legend(trace)
    yield "</body></html>"


def _legend(trace: Trace) -> Iterator[str]:
    yield '<div class="legend">'
    for service in dict.fromkeys(row.span.service for row in trace.rows()):
        kind = SERVICES.get(service, "other")
        yield f'<span class="{kind}"><i></i>{escape(service)}</span>'
    if any(span.error for span in trace.spans):
        yield '<span class="failed"><i></i>failed</span>'
    if any(span.events for span in trace.spans):
        yield '<span class="event"><i></i>event</span>'
    yield "<span>Open a stage for its attributes and events.</span></div>"


def _stage(row: TraceRow, trace: Trace) -> Iterator[str]:
    span = row.span
    kind = "failed" if span.error else SERVICES.get(span.service, "other")
    yield f'<details class="{kind}" style="--depth:{row.depth}"><summary>'
    yield f'<span class="name">{escape(span.name)}</span><span class="lane">'
    width = _percent(span.end_ns - span.start_ns, trace)
    left = _percent(span.start_ns - trace.start_ns, trace)
    yield f'<span class="bar" style="--from:{left};--span:{width}"></span>'
    for event in span.events:
        at = _percent(event.time_ns - trace.start_ns, trace)
        yield f'<span class="mark" style="--from:{at}" title="{escape(event.name)}"></span>'
    yield f'</span><span class="time">{duration(span.seconds)}</span>'
    said = escape(", ".join(notes(span)))
    yield f'<span class="note" title="{said}">{said}</span></summary>'
    yield from _detail(span, trace)
    yield "</details>"


def _detail(span: TraceSpan, trace: Trace) -> Iterator[str]:
    yield '<div class="detail">'
    if said := notes(span):
        yield f"<p>{escape(', '.join(said))}</p>"
    yield "<table>"
    start = duration((span.start_ns - trace.start_ns) / 1e9)
    yield _cells("service", span.service) + _cells("starts after", start)
    for key, value in span.attributes.items():
        yield _cells(key, _shown(value))
    for event in span.events:
        moment = duration((event.time_ns - span.start_ns) / 1e9)
        facts = " ".join(f"{key}={_shown(value)}" for key, value in event.attributes.items())
        yield _cells(f"{event.name} at {moment}", facts)
    yield "</table></div>"


def _cells(key: str, value: str) -> str:
    return f"<tr><td>{escape(key)}</td><td>{escape(value)}</td></tr>"


def _shown(value: AttributeValue) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return ", ".join(_shown(item) for item in value) if isinstance(value, list) else str(value)


def _percent(time_ns: int, trace: Trace) -> str:
    total = max(trace.end_ns - trace.start_ns, 1)
    return f"{min(max(time_ns / total, 0.0), 1.0) * 100:.3f}%"
