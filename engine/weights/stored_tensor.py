"""Weights as a checkpoint stores them: plain tensors, or ggml's blocks of 32 along a row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GROUP_SIZE = 32


@dataclass(frozen=True, slots=True)
class Q4Tensor:
    """A matrix (N, K) in 4 bits: ``weight = nibble * scale + minimum`` for each 32 of a row.

    ``packed``: (N, K / 32, 16) uint8; byte j of a group holds element j in its low nibble and
    element j + 16 in its high one. ``scales`` and ``minimums``: (N, K / 32) float16.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * GROUP_SIZE

    def nibbles(self) -> torch.Tensor:
        """(N, K / 32, 32) uint8 values from 0 to 15, in element order."""
        return torch.cat((self.packed & 15, self.packed >> 4), dim=-1)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        weight = self.nibbles().float()
        weight.mul_(self.scales.float().unsqueeze(-1)).add_(self.minimums.float().unsqueeze(-1))
        return weight.view(self.shape).to(dtype)

    @classmethod
    def concatenate(cls, parts: Sequence["Q4Tensor"]) -> "Q4Tensor":
        """Stacks matrices along N."""
        return cls(
            torch.cat([part.packed for part in parts]),
            torch.cat([part.scales for part in parts]),
            torch.cat([part.minimums for part in parts]),
        )

    def select_rows(self, rows: torch.Tensor) -> "Q4Tensor":
        return Q4Tensor(self.packed[rows], self.scales[rows], self.minimums[rows])


@dataclass(frozen=True, slots=True)
class Q8Tensor:
    """A matrix (N, K) in 8 bits: ``weight = value * scale`` for each 32 of a row.

    ``values``: (N, K / 32, 32) int8. ``scales``: (N, K / 32) float16.
    """

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1] * GROUP_SIZE

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        weight = self.values.float().mul_(self.scales.float().unsqueeze(-1))
        return weight.view(self.shape).to(dtype)

    @classmethod
    def concatenate(cls, parts: Sequence["Q8Tensor"]) -> "Q8Tensor":
        """Stacks matrices along N."""
        return cls(
            torch.cat([part.values for part in parts]), torch.cat([part.scales for part in parts])
        )

    def select_rows(self, rows: torch.Tensor) -> "Q8Tensor":
        return Q8Tensor(self.values[rows], self.scales[rows])


StoredTensor = torch.Tensor | Q4Tensor | Q8Tensor


def dequantize(stored: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of ``stored`` in ``dtype``; a plain tensor of that dtype is returned as it is."""
    return stored.to(dtype) if isinstance(stored, torch.Tensor) else stored.dequantize(dtype)


def select_rows(stored: StoredTensor, rows: torch.Tensor) -> StoredTensor:
    return stored[rows] if isinstance(stored, torch.Tensor) else stored.select_rows(rows)
