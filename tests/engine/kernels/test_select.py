"""The GEMM table, and the measurement behind its rows."""

import pytest

from engine.errors import ConfigurationError
from engine.kernels.gemm_row import GemmRow, WeightKind
from engine.kernels.measure import Crossing, measure_crossing
from engine.kernels.select import GEMM_TABLE, find_row, gemm_choices, select_gemm


@pytest.mark.parametrize("weights", ["dense", "q4", "q8"])
@pytest.mark.parametrize("architecture", ["AVX512", "AVX2", "DEFAULT", "SVE256"])
@pytest.mark.parametrize("num_tokens", [1, 32, 2048, 100_000])
def test_every_case_has_a_row(weights: WeightKind, architecture: str, num_tokens: int) -> None:
    assert find_row(GEMM_TABLE, weights, architecture, num_tokens).weights == weights


def test_the_switch_is_at_the_measured_count() -> None:
    assert find_row(GEMM_TABLE, "q4", "AVX512", 48).backend == "int4"
    assert find_row(GEMM_TABLE, "q4", "AVX512", 49).backend == "dequantize"


def test_the_first_row_that_fits_wins() -> None:
    table = (GemmRow("q4", "*", 3, "int4"), GemmRow("q4", "*", None, "dequantize"))
    assert [find_row(table, "q4", "any", count).backend for count in (3, 4)] == [
        "int4",
        "dequantize",
    ]


def test_a_table_without_a_row_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no row for q8 weights on AVX2"):
        find_row((GemmRow("q4", "*", None, "int4"),), "q8", "AVX2", 1)


@pytest.mark.parametrize("weights", ["q4", "q8"])
def test_this_machine_has_a_backend(weights: WeightKind) -> None:
    assert select_gemm(weights, 1) in ("int4", "dequantize")


@pytest.mark.parametrize("weights", ["q4", "q8"])
def test_a_measurement_times_both_backends(weights: WeightKind) -> None:
    told: list[None] = []
    crossing = measure_crossing(weights, [(64, 32)], (1, 4), advance=lambda: told.append(None))
    assert crossing.weights == weights
    assert crossing.int4_up_to in (0, 1, 4)
    assert len(told) == 2
    for seconds in (crossing.int4_seconds, crossing.dequantize_seconds):
        assert set(seconds) == {1, 4}
        assert min(seconds.values()) > 0


@pytest.mark.parametrize(
    ("int4", "up_to"),
    [
        ({1: 1.0, 8: 8.0, 16: 16.0, 32: 32.0}, 8),
        ({1: 1.0, 8: 2.0, 16: 4.0, 32: 8.0}, 32),
        ({1: 20.0, 8: 30.0, 16: 40.0, 32: 50.0}, 0),
        # One lucky time beyond the crossing.
        ({1: 1.0, 8: 8.0, 16: 30.0, 32: 9.0}, 8),
    ],
    ids=["between", "always", "never", "outlier"],
)
def test_the_switch_loses_least(int4: dict[int, float], up_to: int) -> None:
    crossing = Crossing("q4", int4, dict.fromkeys(int4, 10.0))
    assert crossing.int4_up_to == up_to


def test_the_choices_in_words_are_those_that_are_made() -> None:
    table = (
        GemmRow("q4", "*", 3, "int4"),
        GemmRow("q4", "*", None, "dequantize"),
        GemmRow("q4", "*", 5, "int4"),
        *GEMM_TABLE,
    )
    q4 = [choice for choice in gemm_choices(table) if choice.subject == "q4 weights"]
    assert [(choice.batch, choice.backend) for choice in q4] == [
        ("1 to 3 tokens", "int4"),
        ("from 4 tokens", "dequantize"),
    ]
