"""A request's trace as one tree."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

AttributeValue: TypeAlias = str | bool | int | float | list["AttributeValue"]

TIME_TO_FIRST_TOKEN = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
MODEL = "gen_ai.request.model"
STATUS_CODE = "rpc.response.status_code"
FIRST_TOKEN_EVENT = "first token"
# The error of a span that does not say why it failed.
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A moment of a span; time in ns since the epoch."""

    name: str
    time_ns: int
    attributes: dict[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A stage of a request, ended; times in ns since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    service: str
    start_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue]
    events: tuple[TraceEvent, ...] = ()
    error: str | None = None

    @property
    def seconds(self) -> float:
        """Its duration."""
        return (self.end_ns - self.start_ns) / 1e9

    def number(self, key: str) -> float | None:
        """A numeric attribute, None where it is absent."""
        value = self.attributes.get(key)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A span in its place: how deep below the root, and whether it is the last of its siblings."""

    span: TraceSpan
    depth: int
    last: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """All spans of a request; at least one. The root is the earliest span without a parent here."""

    trace_id: str
    spans: tuple[TraceSpan, ...]
    _children: dict[str, list[TraceSpan]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.spans, f"trace {self.trace_id} has no spans"
        children: dict[str, list[TraceSpan]] = {}
        known = {span.span_id for span in self.spans}
        for span in sorted(self.spans, key=lambda span: (span.start_ns, span.end_ns)):
            parent = span.parent_id if span.parent_id in known else ""
            children.setdefault(parent, []).append(span)
        object.__setattr__(self, "_children", children)

    @property
    def root(self) -> TraceSpan:
        """Where the request entered Baton."""
        return self.children("")[0]

    def children(self, span_id: str) -> Sequence[TraceSpan]:
        """Spans directly below one, by start; those below "" have no parent here."""
        return self._children.get(span_id, [])

    def find(self, name: str) -> TraceSpan | None:
        """The earliest span of that name."""
        return next((row.span for row in self.rows() if row.span.name == name), None)

    def rows(self) -> Iterator[TraceRow]:
        """The tree, parents before children, siblings by start."""
        return self._rows("", 0, ())

    def _rows(self, span_id: str, depth: int, last: tuple[bool, ...]) -> Iterator[TraceRow]:
        children = self.children(span_id)
        for index, span in enumerate(children):
            place = (*last, index == len(children) - 1)
            yield TraceRow(span, depth, place)
            yield from self._rows(span.span_id, depth + 1, place)

    @property
    def start_ns(self) -> int:
        """When its first span started."""
        return min(span.start_ns for span in self.spans)

    @property
    def end_ns(self) -> int:
        """When its last span ended."""
        return max(span.end_ns for span in self.spans)

    @property
    def is_connected(self) -> bool:
        """Whether every parent is here, but for what a remote caller of Baton records."""
        return len(self.children("")) == 1

    @property
    def is_complete(self) -> bool:
        """Whether it is connected, and has something of each worker's side of every leg.

        Workers export on their own: for a moment a trace is there only in part.
        """
        legs = [span for span in self.spans if span.name in ("prefill leg", "decode leg")]
        answered = all(self.children(leg.span_id) for leg in legs if leg.error is None)
        return answered and self.is_connected

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token, as the gateway saw it."""
        stated = self.root.number(TIME_TO_FIRST_TOKEN)
        if stated is not None:
            return stated
        moments = [
            event.time_ns
            for span in self.spans
            for event in span.events
            if event.name == FIRST_TOKEN_EVENT
        ]
        return (min(moments) - self.root.start_ns) / 1e9 if moments else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, per second between the first and the end of the answer."""
        tokens, first = self.root.number(OUTPUT_TOKENS), self.time_to_first_token
        if tokens is None or first is None or tokens < 2:
            return None
        seconds = self.root.seconds - first
        return (tokens - 1) / seconds if seconds > 0 else None
