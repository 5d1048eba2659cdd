"""The GEMM table, and the measurement behind its rows."""

import pytest

from engine.errors import ConfigurationError
from engine.kernels.measure import measure_crossing
from engine.kernels.select import GEMM_TABLE, GemmRow, WeightKind, find_row, select_gemm


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
def test_a_measurement_gives_a_row_of_the_table(weights: WeightKind) -> None:
    crossing = measure_crossing(weights, [(64, 32)], token_counts=(1, 4))
    assert crossing.row.weights == weights
    assert crossing.row.max_tokens in (0, 1, 4)
    assert find_row((crossing.row, *GEMM_TABLE), weights, crossing.row.architecture, 10**6)
    for seconds in (crossing.int4_seconds, crossing.dequantize_seconds):
        assert set(seconds) == {1, 4}
        assert min(seconds.values()) > 0
