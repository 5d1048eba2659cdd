"""What a trace says in words: durations, rates, outcomes, and short notes for each stage."""

from collections.abc import Iterator, Mapping, Sequence

from batonctl.trace_model import (
    CACHED_TOKENS,
    FAILED,
    INPUT_TOKENS,
    MODEL,
    OUTPUT_TOKENS,
    STATUS_CODE,
    Trace,
    TraceSpan,
)

STATUS = "status"
GAPS = "Stages are missing: what a process that was killed, or is still busy, has not written."


def headline(trace: Trace) -> list[tuple[str, str]]:
    """The request in a few labelled facts, as far as they are known."""
    root = trace.root
    facts: list[tuple[str, str]] = []
    if (status := outcome(trace)) is not None:
        facts.append((STATUS, status))
    facts.append(("total", duration(root.seconds)))
    if (first := trace.time_to_first_token) is not None:
        facts.append(("first token", duration(first)))
    if (rate := trace.tokens_per_second) is not None:
        facts.append(("speed", f"{rate:.1f} tokens/s"))
    if (tokens := root.number(OUTPUT_TOKENS)) is not None:
        facts.append(("output", counted(tokens, "token")))
    if (tokens := root.number(INPUT_TOKENS)) is not None:
        cached = root.number(CACHED_TOKENS) or root.number("baton.cached_tokens") or 0
        known = f", {cached:.0f} cached" if cached else ""
        facts.append(("prompt", counted(tokens, "token") + known))
    if model := root.attributes.get(MODEL):
        facts.append(("model", str(model)))
    return facts


def outcome(trace: Trace) -> str | None:
    """The status code of a request that failed, None for one that did not."""
    status = trace.root.attributes.get(STATUS_CODE)
    if status not in (None, "OK"):
        return str(status)
    return FAILED if trace.root.error else None


def failures(trace: Trace) -> list[str]:
    """What went wrong, in full: each stage's own words, without those that only repeat a code."""
    told: dict[str, str] = {}
    for row in trace.rows():
        error = row.span.error
        if error is not None and error not in (FAILED, row.span.attributes.get(STATUS_CODE)):
            told.setdefault(error, row.span.name)
    return [f"{name}: {error}" for error, name in told.items()]


def notes(span: TraceSpan) -> list[str]:
    """The facts that matter about a stage, what matters most first."""
    parts = [span.error] if span.error else []
    parts += _chunks(span)
    if cached := span.number("baton.cached_tokens"):
        parts.append(f"{counted(cached, 'token')} cached")
    parts += _decoding(span)
    status = span.attributes.get(STATUS_CODE)
    if not span.error and status not in (None, "OK"):
        parts.append(str(status))
    return parts


def counted(number: float, noun: str) -> str:
    """A whole number of things."""
    return f"{number:.0f} {noun}" + "s" * (round(number) != 1)


def duration(seconds: float) -> str:
    """Three significant digits in the unit that fits."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds)} s"


def size(num_bytes: float) -> str:
    """Bytes in the decimal unit that fits."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{_digits(num_bytes)} {unit}" if unit != "B" else f"{num_bytes:.0f} B"
        num_bytes /= 1000
    return f"{_digits(num_bytes)} GB"


def _chunks(span: TraceSpan) -> Iterator[str]:
    chunks = [event.attributes for event in span.events if event.name == "chunk"]
    if not chunks:
        return
    totals = {
        key: sum(float(value) for c in chunks if isinstance(value := c.get(key), int | float))
        for key in ("baton.tokens", "baton.blocks", "baton.bytes")
    }
    if totals["baton.bytes"]:
        transport = chunks[0].get("baton.transport")
        yield size(totals["baton.bytes"]) + (f" over {transport}" if transport else "")
    if (rate := _mean_rate(chunks)) is not None:
        yield f"{size(rate)}/s"
    if (exposed := span.number("baton.exposed")) is not None:
        yield f"{duration(exposed)} exposed"
    pieces = counted(len(chunks), "chunk")
    for unit in ("token", "block"):
        if number := totals[f"baton.{unit}s"]:
            pieces = f"{counted(number, unit)} in {pieces}"
    yield pieces


def _mean_rate(chunks: Sequence[Mapping[str, object]]) -> float | None:
    """Bytes per second of transfer: the chunks' rates, weighted by the time each took."""
    num_bytes = seconds = 0.0
    for chunk in chunks:
        moved, rate = chunk.get("baton.bytes"), chunk.get("baton.rate")
        if isinstance(moved, int | float) and isinstance(rate, int | float) and rate > 0:
            num_bytes += moved
            seconds += moved / rate
    return num_bytes / seconds if seconds else None


def _decoding(span: TraceSpan) -> Iterator[str]:
    if (steps := span.number("baton.steps")) is not None:
        yield counted(steps, "step")
    if (wait := span.number("baton.join_wait")) is not None:
        yield f"joined after {duration(wait)}"
    for name in ("p50", "p99"):
        if (gap := span.number(f"baton.itl.{name}")) is not None:
            yield f"gap {name} {duration(gap)}"
    if preemptions := span.number("baton.preemptions"):
        yield f"{preemptions:.0f} preempted"


def _digits(number: float) -> str:
    if number < 10:
        return f"{number:.2f}"
    return f"{number:.1f}" if number < 100 else f"{number:.0f}"
