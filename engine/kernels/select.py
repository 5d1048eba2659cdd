"""Which GEMM runs where: one table, measured by measure.py.

The first row that fits wins; rows that were measured on this machine stand before the others.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import torch

from engine.choice import Choice
from engine.errors import ConfigurationError
from engine.kernels.gemm_row import GemmBackend, GemmRow, WeightKind
from engine.kernels.packed_linear import packing_works
from engine.kernels.tuned_table import KINDS, read_tuned

_ZEN4 = "one core of Zen 4, SmolLM2's shapes"
_LOWER = f"{_ZEN4}, held to these instructions"

GEMM_TABLE: tuple[GemmRow, ...] = (
    GemmRow("dense", "*", None, "onednn_packed", "packed once, not on every call"),
    GemmRow("q4", "AVX512", 48, "int4", _ZEN4),
    GemmRow("q8", "AVX512", 16, "int4", _ZEN4),
    GemmRow("q4", "AVX2", 40, "int4", _LOWER),
    GemmRow("q8", "AVX2", 8, "int4", _LOWER),
    GemmRow("q4", "DEFAULT", 1, "int4", _LOWER),
    GemmRow("q4", "*", None, "dequantize", "many tokens share the cost"),
    GemmRow("q8", "*", None, "dequantize", "many tokens share the cost"),
)


@cache
def gemm_table() -> tuple[GemmRow, ...]:
    """The table of this machine, read once a process."""
    tuned = read_tuned()
    return GEMM_TABLE if tuned is None else (*tuned.rows(), *GEMM_TABLE)


@cache
def select_gemm(weights: WeightKind, num_tokens: int) -> GemmBackend:
    """The backend for ``num_tokens`` rows of activations on this machine."""
    return find_row(
        gemm_table(), weights, torch.backends.cpu.get_cpu_capability(), num_tokens
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


def gemm_choices(table: Sequence[GemmRow]) -> Iterator[Choice]:
    """What ``table`` says for this machine."""
    architecture = torch.backends.cpu.get_cpu_capability()
    for dtype in (torch.float32, torch.bfloat16):
        dense = find_row(table, "dense", architecture, 1)
        is_packed = packing_works(dtype)
        yield _choice(
            dense,
            dtype=str(dtype).removeprefix("torch."),
            batch="any",
            backend=dense.backend if is_packed else "torch",
            note=dense.note if is_packed else "oneDNN does not pack this dtype here",
        )
    for kind in KINDS:
        first = 1
        while True:
            row = find_row(table, kind, architecture, first)
            last = row.max_tokens
            batch = f"from {first} tokens" if last is None else f"{first} to {last} tokens"
            yield _choice(row, dtype="bfloat16", batch=batch, backend=row.backend, note=row.note)
            if last is None:
                break
            first = last + 1


def _choice(row: GemmRow, *, dtype: str, batch: str, backend: str, note: str) -> Choice:
    subject = f"{row.weights} weights"
    return Choice("gemm", "any", row.architecture, subject, dtype, batch, backend, note)
