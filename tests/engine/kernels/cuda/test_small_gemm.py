"""GEMM of few tokens."""

import pytest
import torch

from engine.kernels.cuda.small_gemm import SmallGemmShape, small_gemm, small_gemm_torch

# Largest error relative to the largest value: products are summed in another order.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# The interpreter multiplies bfloat16 matrices as if they were integers.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("silu", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("num_tokens", [1, 3], ids=lambda number: f"{number} tokens")
@pytest.mark.parametrize(
    "shape",
    [SmallGemmShape(16, 64, 4, 2), SmallGemmShape(32, 128, 4, 3)],
    ids=["pieces", "whole rows"],
)
def test_small_gemm_equals_its_twin(
    shape: SmallGemmShape, num_tokens: int, silu: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """80 outputs: no multiple of a program's rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_tokens, 128, generator=generator).to(device, dtype)
    weight = torch.randn(160 if silu else 80, 128, generator=generator).to(device, dtype) / 11
    expected = small_gemm_torch(x, weight, shape, silu=silu)
    actual = small_gemm(x, weight, shape, silu=silu)
    assert actual.shape == expected.shape == (num_tokens, 80)
    tolerance = TOLERANCE[dtype] * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)
