"""Where our GEMM of few tokens beats cuBLAS: one table, measured in whole decode steps.

A row applies to weights of its shape and up to ``max_tokens`` tokens, the first that fits wins;
without one cuBLAS runs.
"""

from dataclasses import dataclass
from functools import cache

import torch

from engine.kernels.cuda.launch import current_gpu
from engine.kernels.cuda.small_gemm import SmallGemmShape


@dataclass(frozen=True, slots=True)
class SmallGemmRow:
    """``capability`` is the GPU's, ``outputs`` and ``columns`` are the weight's whole shape,
    ``silu`` says that it is a gate stacked on an up projection."""

    capability: tuple[int, int]
    outputs: int
    columns: int
    silu: bool
    max_tokens: int
    shape: SmallGemmShape


_H200 = (9, 0)
# Llama 3.1 8B on an H200. With one token 4.09 ms a step, with cuBLAS alone 4.62; with 8 tokens 4.78
# and 4.91, with 32 5.66 and 5.80. Split among programs along K, the other GEMMs of 8 and 32 tokens
# won alone and lost in the step, to 5.04 and 5.99.
SMALL_GEMM_TABLE: tuple[SmallGemmRow, ...] = (
    SmallGemmRow(_H200, 28672, 4096, True, 1, SmallGemmShape(2, 2048, 4, 1)),
    SmallGemmRow(_H200, 28672, 4096, True, 16, SmallGemmShape(32, 256, 4, 3)),
    SmallGemmRow(_H200, 28672, 4096, True, 32, SmallGemmShape(64, 128, 4, 4)),
    SmallGemmRow(_H200, 4096, 14336, False, 1, SmallGemmShape(4, 2048, 4, 1)),
    SmallGemmRow(_H200, 6144, 4096, False, 1, SmallGemmShape(4, 2048, 4, 1)),
    SmallGemmRow(_H200, 4096, 4096, False, 1, SmallGemmShape(4, 2048, 4, 1)),
    SmallGemmRow(_H200, 128256, 4096, False, 1, SmallGemmShape(4, 2048, 4, 1)),
    SmallGemmRow(_H200, 128256, 4096, False, 32, SmallGemmShape(64, 128, 4, 4)),
    # The same of one of two ranks.
    SmallGemmRow(_H200, 14336, 4096, True, 1, SmallGemmShape(2, 2048, 4, 1)),
    SmallGemmRow(_H200, 4096, 7168, False, 1, SmallGemmShape(4, 1024, 4, 1)),
    SmallGemmRow(_H200, 3072, 4096, False, 1, SmallGemmShape(4, 2048, 4, 1)),
    SmallGemmRow(_H200, 4096, 2048, False, 1, SmallGemmShape(4, 1024, 4, 1)),
    SmallGemmRow(_H200, 64128, 4096, False, 1, SmallGemmShape(4, 2048, 4, 1)),
    SmallGemmRow(_H200, 14336, 4096, True, 16, SmallGemmShape(32, 256, 4, 3)),
    SmallGemmRow(_H200, 14336, 4096, True, 32, SmallGemmShape(64, 128, 4, 4)),
)
_MOST_TOKENS = max(row.max_tokens for row in SMALL_GEMM_TABLE)


def find_shape(x: torch.Tensor, weight: torch.Tensor, *, silu: bool) -> SmallGemmShape | None:
    """How ``small_gemm`` should run, or None where cuBLAS is faster."""
    gpu = current_gpu()
    if x.shape[0] > _MOST_TOKENS or x.dtype != torch.bfloat16 or gpu is None:
        return None
    return _find(gpu.capability, tuple(weight.shape), silu, x.shape[0])


@cache
def _find(
    capability: tuple[int, int], shape: tuple[int, ...], silu: bool, num_tokens: int
) -> SmallGemmShape | None:
    for row in SMALL_GEMM_TABLE:
        if (
            row.capability == capability
            and (row.outputs, row.columns) == shape
            and row.silu == silu
            and num_tokens <= row.max_tokens
        ):
            return row.shape
    return None
