"""What a trace says in words: durations, rates, and one short note for each stage."""

from collections.abc import Iterator, Mapping, Sequence

from batonctl.trace_model import CACHED_TOKENS, INPUT_TOKENS, MODEL, OUTPUT_TOKENS, Trace, TraceSpan


def headline(trace: Trace) -> list[tuple[str, str]]:
    """The request in a few labelled facts, as far as they are known."""
    root = trace.root
    facts: list[tuple[str, str]] = [("total", duration(root.seconds))]
    if (first := trace.time_to_first_token) is not None:
        facts.append(("first token", duration(first)))
    if (rate := trace.tokens_per_second) is not None:
        facts.append(("speed", f"{rate:.1f} tokens/s"))
    if (tokens := root.number(OUTPUT_TOKENS)) is not None:
        facts.append(("output", f"{tokens:.0f} tokens"))
    if (tokens := root.number(INPUT_TOKENS)) is not None:
        cached = root.number(CACHED_TOKENS) or root.number("baton.cached_tokens") or 0
        facts.append(("prompt", f"{tokens:.0f} tokens" + (f", {cached:.0f} cached" * bool(cached))))
    if model := root.attributes.get(MODEL):
        facts.append(("model", str(model)))
    return facts


def note(span: TraceSpan) -> str:
    """The facts that matter about a stage, "" if there are none."""
    parts = [span.error] if span.error else []
    parts += _chunks(span)
    cached = span.number("baton.cached_tokens")
    if cached:
        parts.append(f"{cached:.0f} tokens cached")
    parts += _decoding(span)
    if waited := span.number("baton.queue_position"):
        parts.append(f"position {waited:.0f}")
    status = span.attributes.get("rpc.response.status_code")
    if not span.error and status not in (None, "OK"):
        parts.append(str(status))
    return ", ".join(parts)


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
    yield f"{len(chunks)} chunk" + "s" * (len(chunks) != 1)
    totals = {
        key: sum(float(value) for c in chunks if isinstance(value := c.get(key), int | float))
        for key in ("baton.tokens", "baton.blocks", "baton.bytes")
    }
    if totals["baton.tokens"]:
        yield f"{totals['baton.tokens']:.0f} tokens"
    if totals["baton.blocks"]:
        yield f"{totals['baton.blocks']:.0f} blocks"
    if totals["baton.bytes"]:
        transport = chunks[0].get("baton.transport")
        yield size(totals["baton.bytes"]) + (f" over {transport}" if transport else "")
    if (rate := _mean_rate(chunks)) is not None:
        yield f"{size(rate)}/s"


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
        yield f"{steps:.0f} steps"
    gaps = [(name, span.number(f"baton.itl.{name}")) for name in ("p50", "p99")]
    known = [f"{name} {duration(gap)}" for name, gap in gaps if gap is not None]
    if known:
        yield "token gap " + " ".join(known)
    if preemptions := span.number("baton.preemptions"):
        yield f"{preemptions:.0f} preempted"


def _digits(number: float) -> str:
    if number < 10:
        return f"{number:.2f}"
    return f"{number:.1f}" if number < 100 else f"{number:.0f}"
