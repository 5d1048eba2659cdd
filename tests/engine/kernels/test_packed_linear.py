"""oneDNN's packed GEMM against functional.linear."""

import pytest
import torch

from engine.kernels.packed_linear import (
    pack_weight,
    packed_linear,
    packed_linear_torch,
    packing_works,
)

# Of the error's norm over that of the output.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 32, 257])
@pytest.mark.parametrize("shape", [(16, 16), (96, 80), (960, 576)], ids=str)
def test_equals_its_twin(
    shape: tuple[int, int], num_tokens: int, biased: bool, dtype: torch.dtype
) -> None:
    if not packing_works(dtype):
        pytest.skip(f"oneDNN does not pack {dtype} here")
    weight = torch.randn(shape).to(dtype)
    bias = torch.randn(shape[0]).to(dtype) if biased else None
    x = torch.randn(num_tokens, shape[1]).to(dtype)
    actual = packed_linear(x, pack_weight(weight), bias)
    expected = packed_linear_torch(x, weight, bias)
    assert actual.dtype == dtype
    error = (actual.float() - expected.float()).norm() / expected.float().norm()
    assert error < TOLERANCE[dtype]
