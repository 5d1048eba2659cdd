"""What the decode worker's traces tell of hand-offs."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from batonctl.trace_model import TraceSpan
from batonctl.trace_reader import read_spans
from bench.split.answers import Answer

# Spans are written some seconds after their end.
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class HandOffs:
    """The hand-offs of some answers, by trace id."""

    pulls: dict[str, TraceSpan]
    decodes: dict[str, TraceSpan]

    @classmethod
    async def of(cls, traces: Path, answers: Iterable[Answer]) -> Self:
        """Waits for their spans: of each answer that had more than its first token."""
        wanted = {answer.trace_id for answer in answers if len(answer.times) > 1}
        async with asyncio.timeout(PATIENCE):
            while True:
                pulls = _spans(traces, "kv.pull", wanted)
                decodes = _spans(traces, "decode.generate", wanted)
                if pulls.keys() == decodes.keys() == wanted:
                    return cls(pulls, decodes)
                await asyncio.sleep(0.5)

    @property
    def exposed_seconds(self) -> list[float]:
        """How long blocks were still read after prefill had computed everything."""
        return [span.number("baton.exposed") or 0.0 for span in self.pulls.values()]

    @property
    def steps_to_join(self) -> list[float]:
        """From the last byte to the first step that has the request, in its median steps."""
        return [
            (span.number("baton.join_wait") or 0.0) / step
            for span in self.decodes.values()
            if (step := span.number("baton.itl.p50"))
        ]

    @property
    def num_bytes(self) -> float:
        """Of one of them, in the mean."""
        return sum(size for size, _ in self._chunks()) / len(self.pulls)

    @property
    def bytes_per_second(self) -> float:
        """While reading."""
        seconds = sum(size / rate for size, rate in self._chunks() if rate)
        return sum(size for size, _ in self._chunks()) / seconds if seconds else 0.0

    @property
    def transport(self) -> str:
        """Of the first chunk."""
        events = (event for span in self.pulls.values() for event in span.events)
        return next((str(event.attributes["baton.transport"]) for event in events), "none")

    def _chunks(self) -> list[tuple[float, float]]:
        """Bytes, and bytes a second."""
        return [
            (
                float(str(event.attributes["baton.bytes"])),
                float(str(event.attributes["baton.rate"])),
            )
            for span in self.pulls.values()
            for event in span.events
            if event.name == "chunk"
        ]


def _spans(traces: Path, name: str, wanted: Collection[str]) -> dict[str, TraceSpan]:
    return {
        span.trace_id: span
        for span in read_spans(traces, name)
        if span.name == name and span.trace_id in wanted
    }
