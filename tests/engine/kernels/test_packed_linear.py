"""oneDNN's packed GEMM against functional.linear."""

import pytest
import torch

from engine.kernels.packed_linear import (
    pack_weight,
    packed_linear,
    packed_linear_torch,
    packing_works,
    padded_length,
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


def test_few_lengths_have_a_kernel_of_their_own() -> None:
    """Each costs memory for good; up to an eighth more tokens is the price."""
    lengths = range(1, 2049)
    assert len({padded_length(length) for length in lengths}) == 16 + 7 * 8
    assert all(length <= padded_length(length) <= length * 9 / 8 for length in lengths)


def test_memory_does_not_grow_with_the_number_of_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = set()
    original = torch.ops.mkldnn._linear_pointwise

    def noted(x: torch.Tensor, *rest: object) -> torch.Tensor:
        shapes.add(x.shape)
        result: torch.Tensor = original(x, *rest)
        return result

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", noted)
    packed = pack_weight(torch.randn(48, 32))
    for num_tokens in range(1, 257):
        output = packed_linear(torch.randn(num_tokens, 32), packed, None)
        assert output.shape == (num_tokens, 48)
    assert len(shapes) == 48
