"""Which GEMM runs where: one table, measured by measure.py.

A row applies to up to ``max_tokens`` tokens; the first that fits wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from engine.errors import ConfigurationError

WeightKind = Literal["dense", "q4", "q8"]
GemmBackend = Literal["onednn_packed", "torch", "int4", "dequantize"]


@dataclass(frozen=True, slots=True)
class GemmRow:
    """``architecture`` is what torch calls the CPU's capability, or "*" for any."""

    weights: WeightKind
    architecture: str
    max_tokens: int | None
    backend: GemmBackend


GEMM_TABLE: tuple[GemmRow, ...] = (
    GemmRow("dense", "*", None, "onednn_packed"),
    # Zen 4, one core, SmolLM2's shapes; the lower capabilities through ATEN_CPU_CAPABILITY.
    GemmRow("q4", "AVX512", 48, "int4"),
    GemmRow("q8", "AVX512", 16, "int4"),
    GemmRow("q4", "AVX2", 40, "int4"),
    GemmRow("q8", "AVX2", 8, "int4"),
    GemmRow("q4", "DEFAULT", 1, "int4"),
    GemmRow("q4", "*", None, "dequantize"),
    GemmRow("q8", "*", None, "dequantize"),
)


@cache
def select_gemm(weights: WeightKind, num_tokens: int) -> GemmBackend:
    """The backend for ``num_tokens`` rows of activations on this machine."""
    return find_row(
        GEMM_TABLE, weights, torch.backends.cpu.get_cpu_capability(), num_tokens
    ).backend


def find_row(
    table: Sequence[GemmRow], weights: WeightKind, architecture: str, num_tokens: int
) -> GemmRow:
    """The first row that fits. Raises ConfigurationError if there is none."""
    for row in table:
        if (
            row.weights == weights
            and row.architecture in (architecture, "*")
            and (row.max_tokens is None or num_tokens <= row.max_tokens)
        ):
            return row
    raise ConfigurationError(f"the GEMM table has no row for {weights} weights on {architecture}")
