"""When requests arrive in a benchmark, and how long they and their answers are."""

import csv
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

# Quantiles (every 5 %) of Azure's conversation trace of 2023 (AzurePublicDataset, CC-BY 4.0).
PROMPT_QUANTILES = (
    *(2, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020),
    *(1045, 1071, 1097, 1130, 1189, 1315, 1877, 2735, 4083, 14050),
)
OUTPUT_QUANTILES = (
    *(7, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129),
    *(151, 177, 217, 384, 395, 400, 411, 424, 451, 1000),
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request ``at`` so many seconds from the begin, with the tokens of its prompt and answer."""

    at: float
    prompt_tokens: int
    output_tokens: int


def draw_arrivals(rate: float, seconds: float, scale: float, seed: int) -> list[Arrival]:
    """Poisson arrivals at ``rate`` a second with lengths of the Azure trace, times ``scale``."""
    generator = random.Random(seed)
    arrivals: list[Arrival] = []
    at = generator.expovariate(rate)
    while at < seconds:
        lengths = (
            _scaled(_quantile(table, generator.random()), scale)
            for table in (PROMPT_QUANTILES, OUTPUT_QUANTILES)
        )
        arrivals.append(Arrival(at, *lengths))
        at += generator.expovariate(rate)
    return arrivals


def read_arrivals(path: Path, rate: float, seconds: float, scale: float) -> list[Arrival]:
    """The first requests of a public trace, its clock stretched to ``rate`` a second.

    Takes Azure's csv (TIMESTAMP, ContextTokens, GeneratedTokens) and Mooncake's jsonl (timestamp
    in ms, input_length, output_length). Raises ValueError for another file.
    """
    with path.open(newline="") as lines:
        rows = list(_azure(lines) if path.suffix == ".csv" else _mooncake(lines))
    if len(rows) < 2 or rows[-1].at <= rows[0].at:
        raise ValueError(f"{path} holds no trace of requests over time")
    stretch = len(rows) / (rows[-1].at - rows[0].at) / rate
    arrivals = [
        Arrival(
            (row.at - rows[0].at) * stretch,
            _scaled(row.prompt_tokens, scale),
            _scaled(row.output_tokens, scale),
        )
        for row in rows
    ]
    return [arrival for arrival in arrivals if arrival.at < seconds]


def _azure(lines: Iterator[str]) -> Iterator[Arrival]:
    for row in csv.DictReader(lines):
        # Seven digits after the point, of which Python takes six.
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        yield Arrival(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _mooncake(lines: Iterator[str]) -> Iterator[Arrival]:
    for line in lines:
        row = json.loads(line)
        yield Arrival(row["timestamp"] / 1e3, row["input_length"], row["output_length"])


def _quantile(table: Sequence[int], share: float) -> float:
    """Between two entries lengths grow by the same factor, not by the same number."""
    place = share * (len(table) - 1)
    low = int(place)
    return math.exp(
        math.log(table[low]) * (low + 1 - place) + math.log(table[low + 1]) * (place - low)
    )


def _scaled(length: float, scale: float) -> int:
    return max(1, round(length * scale))
