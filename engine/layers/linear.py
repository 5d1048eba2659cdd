"""Matrix multiplication by a weight, with an optional bias."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch.nn import functional

from engine.kernels.int4_linear import Int4Weight, int4_linear, int4_linear_dequantizing
from engine.kernels.int8_linear import Int8Weight, int8_linear, int8_linear_dequantizing
from engine.kernels.invariant_rows import multiply_in_counts
from engine.kernels.packed_linear import pack_weight, packed_linear
from engine.kernels.select import select_gemm


class Linear(ABC):
    """``x`` (T, K) to (T, N) in the dtype of ``x``."""

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
        return _present(self._weight, self._bias)


class PackedLinear(Linear):
    """The same, on a copy of the weight in oneDNN's own order."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = pack_weight(weight)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return packed_linear(x, self._weight, self._bias)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return _present(self._weight, self._bias)


class InvariantLinear(Linear):
    """Another layer, computed so that a row comes out the same whatever rows come with it."""

    __slots__ = ("_linear", "_row_counts")

    def __init__(self, linear: Linear, row_counts: Sequence[int]) -> None:
        """``row_counts`` are those at which ``linear`` is invariant, ascending."""
        self._linear = linear
        self._row_counts = row_counts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return multiply_in_counts(self._linear, x, self._row_counts)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self._linear.tensors()


class Q4Linear(Linear):
    """A 4-bit weight. The GEMM runs in bfloat16, whatever the dtype of the activations."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Int4Weight, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        few = select_gemm("q4", x.shape[0]) == "int4"
        kernel = int4_linear if few else int4_linear_dequantizing
        output = kernel(x.to(torch.bfloat16), self._weight).to(x.dtype)
        return output if self._bias is None else output.add_(self._bias)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return _present(self._weight.packed, self._weight.scale_zero, self._bias)


class Q8Linear(Linear):
    """An 8-bit weight; otherwise as Q4Linear."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Int8Weight, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        few = select_gemm("q8", x.shape[0]) == "int4"
        kernel = int8_linear if few else int8_linear_dequantizing
        output = kernel(x.to(torch.bfloat16), self._weight).to(x.dtype)
        return output if self._bias is None else output.add_(self._bias)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        halves = self._weight.halves
        return _present(halves.packed, halves.scale_zero, self._bias)


def _present(*tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor is not None)
