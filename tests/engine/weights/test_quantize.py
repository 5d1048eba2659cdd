"""Quantisation at load against the gguf library's."""

import gguf
import numpy as np
import pytest
import torch

from engine.weights.quantize import as_q4, as_q8, quantize_q4, quantize_q8


@pytest.fixture
def weight() -> torch.Tensor:
    weight = torch.randn(48, 96, generator=torch.Generator().manual_seed(0))
    weight[3, 32:64] = 0.0
    weight[4, :32] = 1.5
    return weight


def test_q4_rounds_as_the_library_does(weight: torch.Tensor) -> None:
    kind = gguf.GGMLQuantizationType.Q4_1
    expected = gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind)
    actual = quantize_q4(weight).dequantize(torch.float32).numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-3)


def test_q8_rounds_as_the_library_does(weight: torch.Tensor) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    expected = gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind)
    actual = quantize_q8(weight).dequantize(torch.float32).numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)


def test_q4_error_is_at_most_half_a_step(weight: torch.Tensor) -> None:
    groups = weight.view(48, 3, 32)
    half_step = (groups.amax(-1) - groups.amin(-1)) / 30
    error = (quantize_q4(weight).dequantize(torch.float32) - weight).abs().view(48, 3, 32)
    # The rest is the rounding of scale and minimum to float16.
    assert (error.amax(-1) <= half_step + 4e-3).all()


def test_what_is_quantised_already_is_kept(weight: torch.Tensor) -> None:
    q4, q8 = quantize_q4(weight), quantize_q8(weight)
    assert as_q4(q4) is q4
    assert as_q8(q8) is q8
