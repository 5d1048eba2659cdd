"""Requests of a benchmark arrive as its trace says, or as Azure's did."""

import statistics
from pathlib import Path

import pytest

from bench.traffic import OUTPUT_QUANTILES, PROMPT_QUANTILES, Arrival, draw_arrivals, read_arrivals

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
2023-11-16 18:15:54.6805900,1000,1
"""
MOONCAKE = """{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [1]}
{"timestamp": 4000, "input_length": 396, "output_length": 109, "hash_ids": [1, 2]}
{"timestamp": 8000, "input_length": 1000, "output_length": 1, "hash_ids": []}
"""


def test_drawn_requests_have_the_rate_and_the_lengths_of_the_trace() -> None:
    arrivals = draw_arrivals(rate=20, seconds=500, scale=1.0, seed=3)

    assert len(arrivals) == pytest.approx(10_000, rel=0.05)
    times = [arrival.at for arrival in arrivals]
    assert times == sorted(times) and times[-1] < 500
    for table, lengths in (
        (PROMPT_QUANTILES, [arrival.prompt_tokens for arrival in arrivals]),
        (OUTPUT_QUANTILES, [arrival.output_tokens for arrival in arrivals]),
    ):
        # Below the first there are hardly any, of any length.
        found = statistics.quantiles(lengths, n=20)[1:]
        assert found == pytest.approx(table[2:-1], rel=0.12)
        assert table[0] <= min(lengths) and max(lengths) <= table[-1]


def test_a_seed_draws_the_same_requests_again() -> None:
    first, again, other = (draw_arrivals(5, 20, 0.5, seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(("name", "text"), [("azure.csv", AZURE), ("mooncake.jsonl", MOONCAKE)])
def test_a_trace_is_stretched_to_the_rate(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)

    # Three requests in eight seconds, wanted in four.
    arrivals = read_arrivals(path, rate=0.75, seconds=3, scale=0.5)

    assert arrivals == [Arrival(0.0, 187, 22), Arrival(2.0, 198, 54)]


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(ValueError, match="holds no trace"):
        read_arrivals(path, rate=1, seconds=1, scale=1)
