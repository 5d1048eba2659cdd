"""Matrix multiplication by a weight, with an optional bias."""

from abc import ABC, abstractmethod

import torch
from torch.nn import functional


class Linear(ABC):
    """``x`` (T, K) to (T, N)."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies by the weight and adds the bias, if there is one."""

    @abstractmethod
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What stays resident."""


class DenseLinear(Linear):
    """A weight (N, K) in the dtype of the activations."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self._weight,) if self._bias is None else (self._weight, self._bias)
