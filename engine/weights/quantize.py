"""Quantises plain weights at load, in ggml's formats."""

import torch

from engine.weights.stored_tensor import (
    GROUP_SIZE,
    Q4Tensor,
    Q8Tensor,
    StoredTensor,
    dequantize,
)


def as_q4(stored: StoredTensor) -> Q4Tensor:
    return (
        stored if isinstance(stored, Q4Tensor) else quantize_q4(dequantize(stored, torch.float32))
    )


def as_q8(stored: StoredTensor) -> Q8Tensor:
    return (
        stored if isinstance(stored, Q8Tensor) else quantize_q8(dequantize(stored, torch.float32))
    )


def quantize_q4(weight: torch.Tensor) -> Q4Tensor:
    """(N, K), K a multiple of 32, to 16 even steps from each group's least to its greatest value.

    The error is at most half a step: (greatest - least) / 30.
    """
    groups = weight.float().view(weight.shape[0], -1, GROUP_SIZE)
    minimums = groups.amin(-1)
    scales = (groups.amax(-1) - minimums) / 15
    steps = (groups - minimums.unsqueeze(-1)) * _reciprocal(scales).unsqueeze(-1)
    nibbles = steps.round_().clamp_(0, 15).to(torch.uint8)
    low, high = nibbles.chunk(2, dim=-1)
    return Q4Tensor(low | (high << 4), scales.half(), minimums.half())


def quantize_q8(weight: torch.Tensor) -> Q8Tensor:
    """(N, K), K a multiple of 32, to steps of 1/127 of each group's greatest magnitude."""
    groups = weight.float().view(weight.shape[0], -1, GROUP_SIZE)
    scales = groups.abs().amax(-1) / 127
    steps = groups * _reciprocal(scales).unsqueeze(-1)
    return Q8Tensor(steps.round_().clamp_(-127, 127).to(torch.int8), scales.half())


def _reciprocal(scales: torch.Tensor) -> torch.Tensor:
    """1 / scale, and 0 for groups that are constant."""
    return torch.where(scales == 0, 0.0, 1 / scales)
