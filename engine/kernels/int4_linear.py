"""GEMM by a 4-bit weight that stays 4-bit.

A weight is ``(nibble - 8) * scale + zero``, with one bfloat16 scale and zero for each 32 of a row.
Activations are bfloat16: torch has no fast int4 GEMM for float32.
"""

from dataclasses import dataclass

import torch

from engine.kernels.int4_layout import int4_layout
from engine.weights.stored_tensor import GROUP_SIZE, Q4Tensor

_ROWS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A matrix (N, K), its rows padded to whole blocks of the packed layout.

    ``packed``: (padded N, K / 2) uint8, see Int4Layout. ``scale_zero``: (K / 32, padded N, 2)
    bfloat16.
    """

    packed: torch.Tensor
    scale_zero: torch.Tensor
    num_rows: int

    @classmethod
    def from_stored(cls, stored: Q4Tensor) -> "Int4Weight":
        """Exact but for the rounding of scale and zero to bfloat16."""
        scales, minimums = stored.scales.float(), stored.minimums.float()
        return cls.pack(stored.nibbles().flatten(1), scales, minimums + 8 * scales)

    @classmethod
    def pack(cls, nibbles: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> "Int4Weight":
        """``nibbles`` (N, K) uint8; ``scales`` and ``zeros`` (N, K / 32)."""
        num_rows = nibbles.shape[0]
        padding = (0, 0, 0, -num_rows % int4_layout().block_rows)
        scale_zero = torch.stack((scales, zeros), dim=-1).to(torch.bfloat16).transpose(0, 1)
        return cls(
            packed=int4_layout().pack(torch.nn.functional.pad(nibbles, padding)),
            scale_zero=torch.nn.functional.pad(scale_zero, padding).contiguous(),
            num_rows=num_rows,
        )


def int4_linear(x: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    """``x`` (T, K) bfloat16 to (T, N) bfloat16: fast for few tokens, see select.py."""
    packed, scale_zero = weight.packed, weight.scale_zero
    output: torch.Tensor = torch._weight_int4pack_mm_for_cpu(x, packed, GROUP_SIZE, scale_zero)
    return output.narrow(1, 0, weight.num_rows)


def int4_linear_dequantizing(x: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    """The same through bfloat16 copies of slices of the weight: fast for many tokens."""
    parts = [multiply(x, _dequantize(weight, rows)) for rows in row_slices(weight)]
    return torch.cat(parts, dim=1).narrow(1, 0, weight.num_rows)


def multiply(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``x`` (T, K) by ``matrix`` (K, N), both bfloat16 like the result."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return x @ matrix
    # torch then has plain loops for bfloat16: 10 to 100 times as slow as float32 (AVX2, Zen).
    return (x.float() @ matrix.float()).to(torch.bfloat16)


def int4_linear_torch(x: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    """The twin of both, in float32 throughout, straight from the definition of Int4Weight."""
    layout = int4_layout()
    rows = torch.arange(weight.num_rows)
    nibbles = layout.gather_rows(weight.packed, rows).float().view(weight.num_rows, -1, GROUP_SIZE)
    scale, zero = weight.scale_zero[:, rows].float().permute(2, 1, 0).unsqueeze(-1)
    matrix = ((nibbles - 8) * scale + zero).flatten(1)
    output: torch.Tensor = x.float() @ matrix.t()
    return output.to(x.dtype)


def row_slices(weight: Int4Weight) -> list[slice]:
    """Slices of the padded rows, small enough for their bfloat16 copies to stay in the cache."""
    num_rows = weight.packed.shape[0]
    starts = range(0, num_rows, _ROWS_AT_ONCE)
    return [slice(start, min(start + _ROWS_AT_ONCE, num_rows)) for start in starts]


def _dequantize(weight: Int4Weight, rows: slice) -> torch.Tensor:
    """(K, number of rows) bfloat16."""
    layout = int4_layout()
    # Two bytes at a time: torch shifts 16-bit words with vector instructions, but not bytes.
    words = layout.blocks(weight.packed[rows]).view(torch.int16)
    low, high = words & 0x0F0F, (words >> 4) & 0x0F0F
    matrix = columns_of_blocks(layout.join(low.view(torch.int8), high.view(torch.int8)).sub_(8))
    groups = matrix.view(-1, GROUP_SIZE, matrix.shape[1])
    scale, zero = weight.scale_zero[:, rows].permute(2, 0, 1).contiguous().unsqueeze(2)
    torch.addcmul(zero, groups, scale, out=groups)
    return matrix


def columns_of_blocks(values: torch.Tensor) -> torch.Tensor:
    """(blocks, K, rows of a block) int8 to (K, N) bfloat16."""
    num_blocks, num_columns, block_rows = values.shape
    matrix = torch.empty(num_columns, num_blocks, block_rows, dtype=torch.bfloat16)
    matrix.transpose(0, 1).copy_(values)
    return matrix.view(num_columns, -1)
