"""The SwiGLU feed-forward layer."""

import torch
from torch.nn import functional

from engine.layers.linear import Linear


class SwiGluMlp:
    """``down(silu(gate(x)) * up(x))``, with gate and up in one GEMM."""

    __slots__ = ("_down", "_gate_up")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(_silu(gate).mul_(up))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (*self._gate_up.tensors(), *self._down.tensors())


def _silu(x: torch.Tensor) -> torch.Tensor:
    """torch rounds the last few elements of a float32 array in another way than the others."""
    if x.dtype == torch.float32:
        return x / (-x).exp_().add_(1.0)
    return functional.silu(x)
