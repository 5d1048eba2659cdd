"""GEMM by, and lookup in, an 8-bit weight with one scale for each 32 of a row.

torch's 8-bit CPU GEMM takes one scale a row, which on SmolLM2's tied embedding costs 2.4 times the
error of bfloat16. So the matrix is split into its high and low nibbles, side by side, and runs as
a 4-bit one of twice the width: as fast as the 8-bit GEMM, exact but for scales in bfloat16.
"""

from dataclasses import dataclass

import torch

from engine.kernels.int4_layout import int4_layout
from engine.kernels.int4_linear import (
    Int4Weight,
    columns_of_blocks,
    int4_linear,
    multiply,
    row_slices,
)
from engine.weights.stored_tensor import GROUP_SIZE, Q8Tensor


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A matrix (N, K) as the 4-bit matrix (N, 2 K) ``halves``.

    Columns below K are ``16 * (high nibble) - 128``, the others the low nibble, both times the
    scale, so that their sum is ``value * scale``.
    """

    halves: Int4Weight

    @classmethod
    def from_stored(cls, stored: Q8Tensor) -> "Int8Weight":
        """Exact but for the rounding of scales to bfloat16."""
        values = stored.values.flatten(1).view(torch.uint8) ^ 128
        scales = stored.scales.to(torch.bfloat16).float()
        return cls(
            Int4Weight.pack(
                torch.cat((values >> 4, values & 15), dim=1),
                torch.cat((16 * scales, scales), dim=1),
                torch.cat((torch.zeros_like(scales), 8 * scales), dim=1),
            )
        )


def int8_linear(x: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    """``x`` (T, K) bfloat16 to (T, N) bfloat16: fast for few tokens, see select.py."""
    return int4_linear(torch.cat((x, x), dim=1), weight.halves)


def int8_linear_dequantizing(x: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    """The same through bfloat16 copies of slices of the weight: fast for many tokens."""
    parts = [multiply(x, _dequantize(weight, rows)) for rows in row_slices(weight.halves)]
    return torch.cat(parts, dim=1).narrow(1, 0, weight.halves.num_rows)


def int8_rows(weight: Int8Weight, rows: torch.Tensor) -> torch.Tensor:
    """Rows (T,) of the matrix, (T, K) bfloat16."""
    high, low = int4_layout().gather_rows(weight.halves.packed, rows).chunk(2, dim=1)
    values = (((high << 4) | low) ^ 128).view(torch.int8).view(len(rows), -1, GROUP_SIZE)
    scales = _scales(weight)[:, rows].t().unsqueeze(-1)
    return (values * scales).flatten(1)


def int8_linear_torch(x: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    """The twin of both GEMMs, in float32 from the definition of Int8Weight."""
    halves = weight.halves
    nibbles = int4_layout().gather_rows(halves.packed, torch.arange(halves.num_rows)).float()
    high, low = nibbles.view(halves.num_rows, 2, -1, GROUP_SIZE).unbind(1)
    scales = _scales(weight)[:, : halves.num_rows].float().t().unsqueeze(-1)
    matrix = ((16 * high + low - 128) * scales).flatten(1)
    return (x.float() @ matrix.t()).to(x.dtype)


def _dequantize(weight: Int8Weight, rows: slice) -> torch.Tensor:
    """(K, number of rows) bfloat16."""
    layout = int4_layout()
    # Two bytes at a time, as in int4_linear. The constants are 0xF0F0 and 0x8080 as int16.
    words = layout.blocks(weight.halves.packed[rows]).view(torch.int16)
    high, low = words.chunk(2, dim=1)
    first = ((high & 0x0F0F) << 4) | (low & 0x0F0F)
    second = (high & -0x0F10) | ((low >> 4) & 0x0F0F)
    first, second = ((half ^ -0x7F80).view(torch.int8) for half in (first, second))
    matrix = columns_of_blocks(layout.join(first, second))
    groups = matrix.view(-1, GROUP_SIZE, matrix.shape[1])
    groups.mul_(_scales(weight)[:, rows].contiguous().unsqueeze(1))
    return matrix


def _scales(weight: Int8Weight) -> torch.Tensor:
    """(K / 32, padded N) bfloat16."""
    scale_zero = weight.halves.scale_zero
    return scale_zero[scale_zero.shape[0] // 2 :, :, 0]
