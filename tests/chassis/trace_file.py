"""Reads back what telemetry wrote to files."""

import json
from pathlib import Path
from typing import Any

from chassis import telemetry


def written(folder: Path) -> list[dict[str, Any]]:
    """The spans in the files, in the order written; ends tracing, so that all are there."""
    telemetry.shutdown()
    batches = [
        json.loads(line)
        for path in folder.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [
        span
        for batch in batches
        for resource in batch["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def facts(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in pairs}
