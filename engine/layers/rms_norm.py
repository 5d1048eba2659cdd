"""Root-mean-square normalisation."""

import torch
from torch.nn import functional


class RmsNorm:
    """Normalises over the last dimension and multiplies by ``weight``."""

    __slots__ = ("_epsilon", "_weight")

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self._weight.shape, self._weight, self._epsilon)

    def add(self, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Adds ``delta`` to ``x`` in place and normalises the sum."""
        x += delta
        return self(x)

    @property
    def weight(self) -> torch.Tensor:
        return self._weight

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self._weight,)
