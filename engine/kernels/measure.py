"""Measures where the GEMM backends of quantised weights cross.

``python -m engine.kernels.measure`` prints this machine's part of ``GEMM_TABLE``. Weights of
several layers are cycled through, so that they come from memory as in a real step.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.kernels.int4_linear import Int4Weight, int4_linear, int4_linear_dequantizing
from engine.kernels.int8_linear import Int8Weight, int8_linear, int8_linear_dequantizing
from engine.kernels.select import GemmRow, WeightKind
from engine.weights.quantize import quantize_q4, quantize_q8

TOKEN_COUNTS = (1, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128, 256)
# SmolLM2-135M: a layer's four GEMMs, and the head.
LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD_SHAPES = ((49152, 576),)
_COPIES = 4
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Crossing:
    """Seconds of both backends by number of tokens, and the row of the table that follows."""

    row: GemmRow
    int4_seconds: dict[int, float]
    dequantize_seconds: dict[int, float]


def measure_crossing(
    weights: WeightKind,
    shapes: Sequence[tuple[int, int]],
    token_counts: Sequence[int] = TOKEN_COUNTS,
) -> Crossing:
    """Times both backends on random weights; the row names the last count that int4 wins."""
    int4: dict[int, float] = {}
    dequantize: dict[int, float] = {}
    cases = [_case(weights, shape) for shape in shapes]
    for count in token_counts:
        int4[count] = sum(_seconds(case.int4, case.num_columns, count) for case in cases)
        dequantize[count] = sum(
            _seconds(case.dequantize, case.num_columns, count) for case in cases
        )
    wins = [count for count in token_counts if int4[count] <= dequantize[count]]
    architecture = torch.backends.cpu.get_cpu_capability()
    row = GemmRow(weights, architecture, max(wins, default=0), "int4")
    return Crossing(row, int4, dequantize)


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


def main() -> None:
    torch.set_num_threads(1)
    with torch.inference_mode():
        crossings = [
            measure_crossing("q4", LAYER_SHAPES),
            measure_crossing("q8", HEAD_SHAPES),
        ]
    for crossing in crossings:
        print(crossing.row)
        for count, seconds in crossing.int4_seconds.items():
            other = crossing.dequantize_seconds[count]
            print(
                f"  {count:4} tokens: int4 {seconds * 1e3:8.3f} ms, dequantize {other * 1e3:8.3f}"
            )


if __name__ == "__main__":
    main()
