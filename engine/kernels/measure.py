"""Measures where the GEMM backends of quantised weights cross.

Weights of several layers are cycled through, so that they come from memory as in a real step.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.kernels.gemm_row import WeightKind
from engine.kernels.int4_linear import Int4Weight, int4_linear, int4_linear_dequantizing
from engine.kernels.int8_linear import Int8Weight, int8_linear, int8_linear_dequantizing
from engine.weights.quantize import quantize_q4, quantize_q8

TOKEN_COUNTS = (1, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128, 256)
# SmolLM2-135M: a layer's four GEMMs, and the head.
SHAPES: Mapping[WeightKind, Sequence[tuple[int, int]]] = {
    "q4": ((960, 576), (576, 576), (3072, 576), (576, 1536)),
    "q8": ((49152, 576),),
}
# What a caller of ``measure_crossing`` for each kind is told of.
NUM_MEASUREMENTS = len(TOKEN_COUNTS) * len(SHAPES)
_COPIES = 4
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Crossing:
    """Seconds of both backends by number of tokens, and up to which number int4 should run."""

    weights: WeightKind
    int4_seconds: dict[int, float]
    dequantize_seconds: dict[int, float]

    @property
    def int4_up_to(self) -> int:
        """The number that loses the least over all that were measured, 0 for none.

        One lucky time far off the crossing does not move it there: all the others in between lose.
        """
        counts = sorted(self.int4_seconds)

        def loss(last: int) -> float:
            return sum(
                max(self._ratio(count) if count <= last else 1 / self._ratio(count), 1.0)
                for count in counts
            )

        return min((0, *counts), key=loss)

    def _ratio(self, count: int) -> float:
        return self.int4_seconds[count] / self.dequantize_seconds[count]


def measure_crossing(
    weights: WeightKind,
    shapes: Sequence[tuple[int, int]],
    token_counts: Sequence[int] = TOKEN_COUNTS,
    *,
    advance: Callable[[], None] = lambda: None,
) -> Crossing:
    """Times both backends on random weights; ``advance`` is called after each number of tokens."""
    int4: dict[int, float] = {}
    dequantize: dict[int, float] = {}
    with torch.inference_mode():
        cases = [_case(weights, shape) for shape in shapes]
        for count in token_counts:
            int4[count] = sum(_seconds(case.int4, case.num_columns, count) for case in cases)
            dequantize[count] = sum(
                _seconds(case.dequantize, case.num_columns, count) for case in cases
            )
            advance()
    return Crossing(weights, int4, dequantize)


_Gemm = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Case:
    """One shape: both backends, bound to each copy of the weight."""

    num_columns: int
    int4: Sequence[_Gemm]
    dequantize: Sequence[_Gemm]


def _case(weights: WeightKind, shape: tuple[int, int]) -> _Case:
    plain = [torch.randn(shape) for _ in range(_COPIES)]
    if weights == "q4":
        q4 = [Int4Weight.from_stored(quantize_q4(weight)) for weight in plain]
        few = [partial(int4_linear, weight=weight) for weight in q4]
        many = [partial(int4_linear_dequantizing, weight=weight) for weight in q4]
        return _Case(shape[1], few, many)
    q8 = [Int8Weight.from_stored(quantize_q8(weight)) for weight in plain]
    few8 = [partial(int8_linear, weight=weight) for weight in q8]
    many8 = [partial(int8_linear_dequantizing, weight=weight) for weight in q8]
    return _Case(shape[1], few8, many8)


def _seconds(gemms: Sequence[_Gemm], num_columns: int, num_tokens: int) -> float:
    """Median of one call."""
    x = torch.randn(num_tokens, num_columns).bfloat16()
    times = []
    for gemm in [*gemms] * _REPEATS:
        start = time.perf_counter()
        gemm(x)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
