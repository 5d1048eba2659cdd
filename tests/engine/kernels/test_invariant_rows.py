"""Numbers of rows at which a product treats every row alike."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from engine.errors import ConfigurationError
from engine.kernels.invariant_rows import ROW_COUNTS, invariant_row_counts, multiply_in_counts
from engine.layers.linear import DenseLinear, InvariantLinear, Linear, PackedLinear

COUNTS = (1, 2, 4, 8)


def giving(values: dict[int, list[float]]) -> Callable[[int], torch.Tensor]:
    """A product whose rows, by their number, come out as these."""
    return lambda count: torch.tensor(values[count])[:, None]


def test_all_counts_serve_where_all_rows_are_alike() -> None:
    product = giving({count: [0.5] * count for count in COUNTS})
    assert invariant_row_counts(product, COUNTS) == COUNTS


def test_a_count_whose_rows_differ_from_the_others_is_left_out() -> None:
    product = giving({1: [0.4], 2: [0.4] * 2, 4: [0.5] * 4, 8: [0.5] * 8})
    assert invariant_row_counts(product, COUNTS) == (4, 8)


def test_a_count_with_one_row_unlike_the_others_is_left_out() -> None:
    product = giving({1: [0.5], 2: [0.5] * 2, 4: [0.5] * 3 + [0.4], 8: [0.4] + [0.5] * 7})
    assert invariant_row_counts(product, COUNTS) == (1, 2)


def test_where_no_two_rows_are_alike_each_is_multiplied_by_itself() -> None:
    product = giving({count: [0.1 * place for place in range(count)] for count in COUNTS})
    assert invariant_row_counts(product, COUNTS) == (1,)


def test_rows_that_are_not_numbers_are_alike_too() -> None:
    product = giving({count: [math.nan] * count for count in COUNTS})
    assert invariant_row_counts(product, COUNTS) == COUNTS


def test_where_no_count_will_do_the_engine_does_not_start() -> None:
    product = giving({4: [0.1, 0.2, 0.3, 0.4], 8: [0.1] * 7 + [0.2]})
    with pytest.raises(ConfigurationError, match="bfloat16"):
        invariant_row_counts(product, (4, 8))


@pytest.mark.parametrize("num_rows", [1, 3, 8, 9, 30])
def test_a_product_sees_no_other_number_of_rows(num_rows: int) -> None:
    seen = []

    def product(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape[0])
        return x * 2

    x = torch.randn(num_rows, 5)
    assert torch.equal(multiply_in_counts(product, x, (2, 8)), x * 2)
    assert set(seen) <= {2, 8}


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [DenseLinear, PackedLinear])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("shape", [(96, 80), (960, 576), (576, 1536)], ids=str)
def test_a_row_is_the_same_bits_in_any_place_among_any_others(
    kind: type[DenseLinear] | type[PackedLinear],
    biased: bool,
    shape: tuple[int, int],
    threads: None,
) -> None:
    linear = kind(torch.randn(shape), torch.randn(shape[0]) if biased else None)
    row = torch.randn(1, shape[1])
    counts = invariant_row_counts(lambda count: linear(row.repeat(count, 1)), ROW_COUNTS)
    assert counts[-1] == ROW_COUNTS[-1]
    invariant: Linear = InvariantLinear(linear, counts)
    x = torch.randn(513, shape[1])
    together = invariant(x)
    for length in (1, 2, 3, 5, 9, 17, 70, 255, 300):
        start = 513 - length if length % 2 else 0
        assert torch.equal(invariant(x[start : start + length]), together[start : start + length])
