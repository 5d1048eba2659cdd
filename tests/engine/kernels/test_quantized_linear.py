"""GEMMs by 4-bit and 8-bit weights against their torch twins.

The twins compute in float32 and round once. TOLERANCE is for the error's norm over that of the
output: int4 GEMMs round the output to bfloat16 (2**-9 at most, a third of that on average), the
dequantizing ones the weight too.
"""

from collections.abc import Callable

import pytest
import torch

from engine.kernels.int4_linear import (
    Int4Weight,
    int4_linear,
    int4_linear_dequantizing,
    int4_linear_torch,
)
from engine.kernels.int8_linear import (
    Int8Weight,
    int8_linear,
    int8_linear_dequantizing,
    int8_linear_torch,
    int8_rows,
)
from engine.weights.quantize import quantize_q4, quantize_q8
from engine.weights.stored_tensor import Q4Tensor, Q8Tensor

TOLERANCE = 4e-3
# Rows of bfloat16 scales and zeros against the stored float16 ones: 2**-9 each.
WEIGHT_TOLERANCE = 2**-8
# One token; odd counts around the GEMM's blocks of 4; both sides of the switch point; many.
TOKEN_COUNTS = [1, 3, 4, 5, 16, 17, 48, 49, 257]
# (N, K): less than a block of rows, padding, one group, SmolLM2, several slices of rows.
SHAPES = [(16, 32), (80, 64), (64, 32), (576, 1536), (4224, 96)]

Gemm = Callable[[torch.Tensor, object], torch.Tensor]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_tokens", TOKEN_COUNTS)
@pytest.mark.parametrize("gemm", [int4_linear, int4_linear_dequantizing])
def test_int4_gemm_equals_its_twin(gemm: Gemm, num_tokens: int, shape: tuple[int, int]) -> None:
    weight = Int4Weight.from_stored(quantize_q4(random(*shape) + 0.3))
    x = random(num_tokens, shape[1]).bfloat16()
    actual = gemm(x, weight)
    assert actual.shape == (num_tokens, shape[0])
    assert actual.dtype == torch.bfloat16
    assert error(actual, int4_linear_torch(x, weight)) < TOLERANCE


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_tokens", TOKEN_COUNTS)
@pytest.mark.parametrize("gemm", [int8_linear, int8_linear_dequantizing])
def test_int8_gemm_equals_its_twin(gemm: Gemm, num_tokens: int, shape: tuple[int, int]) -> None:
    weight = Int8Weight.from_stored(quantize_q8(random(*shape)))
    x = random(num_tokens, shape[1]).bfloat16()
    actual = gemm(x, weight)
    assert actual.shape == (num_tokens, shape[0])
    assert error(actual, int8_linear_torch(x, weight)) < TOLERANCE


def test_int4_weight_is_the_stored_one() -> None:
    stored = quantize_q4(random(80, 96) + 0.3)
    columns = torch.eye(96).bfloat16()
    actual = int4_linear_torch(columns, Int4Weight.from_stored(stored)).t()
    expected = stored.dequantize(torch.float32)
    # Scale and zero are rounded apart, so the bound is on the size of the group's values.
    assert (actual - expected).abs().max() < 3 * WEIGHT_TOLERANCE * expected.abs().max()


def test_int4_weight_is_exact_where_scales_are_bfloat16() -> None:
    packed = torch.randint(256, (64, 2, 16), dtype=torch.uint8)
    stored = Q4Tensor(packed, torch.full((64, 2), 0.5).half(), torch.full((64, 2), -3.0).half())
    actual = int4_linear(torch.eye(64).bfloat16(), Int4Weight.from_stored(stored))
    assert torch.equal(actual.t().float(), stored.dequantize(torch.float32))


def test_int8_weight_is_exact_where_scales_are_bfloat16() -> None:
    """Every value from -128 to 127: the two halves lose nothing."""
    values = torch.arange(-128, 128).to(torch.int8).view(4, 2, 32)
    stored = Q8Tensor(values, torch.full((4, 2), 0.25).half())
    weight = Int8Weight.from_stored(stored)
    expected = stored.dequantize(torch.float32)
    for gemm in (int8_linear, int8_linear_dequantizing, int8_linear_torch):
        assert torch.equal(gemm(torch.eye(64).bfloat16(), weight).t().float(), expected)
    assert torch.equal(int8_rows(weight, torch.arange(4)).float(), expected)


def test_int8_rows_are_those_of_the_matrix() -> None:
    stored = quantize_q8(random(200, 64))
    weight = Int8Weight.from_stored(stored)
    rows = torch.tensor([0, 199, 31, 32, 63, 64, 127, 5, 5])
    expected = stored.dequantize(torch.float32)[rows]
    actual = int8_rows(weight, rows)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, rtol=2 * WEIGHT_TOLERANCE, atol=0)


def test_an_int4_weight_takes_five_bits_a_value() -> None:
    weight = Int4Weight.from_stored(quantize_q4(random(576, 1536)))
    assert weight.packed.nbytes + weight.scale_zero.nbytes == 576 * 1536 * 5 // 8


def test_an_int8_weight_takes_ten_bits_a_value() -> None:
    halves = Int8Weight.from_stored(quantize_q8(random(576, 1536))).halves
    assert halves.packed.nbytes + halves.scale_zero.nbytes == 576 * 1536 * 10 // 8
