"""How torch packs 4-bit weights for its CPU GEMM on this machine.

A packed matrix (N, K) is a sequence of blocks of 32 or 64 rows; a block is (K, rows / 2) bytes. A
byte holds two rows of one column: the two halves of the block (vectorised builds) or neighbours.
torch does not document this, so what is used is compared with torch's own packing once a process.
"""

from dataclasses import dataclass
from functools import cache

import torch

from engine.errors import ConfigurationError

_PROBE_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class Int4Layout:
    """``block_rows`` rows a block; ``halves``: a byte holds rows j and j + block_rows / 2."""

    block_rows: int
    halves: bool

    def pack(self, nibbles: torch.Tensor) -> torch.Tensor:
        """(N, K) uint8 below 16, N a multiple of ``block_rows``, to (N, K / 2) uint8."""
        num_rows, num_columns = nibbles.shape
        half = self.block_rows // 2
        if self.halves:
            low, high = nibbles.view(-1, 2, half, num_columns).unbind(1)
        else:
            low, high = nibbles.view(-1, half, 2, num_columns).unbind(2)
        blocks = (high << 4).bitwise_or_(low)
        return blocks.transpose(1, 2).contiguous().view(num_rows, num_columns // 2)

    def blocks(self, packed: torch.Tensor) -> torch.Tensor:
        """A view of a packed (N, K / 2) as (N / block_rows, K, block_rows / 2) bytes."""
        num_rows, row_bytes = packed.shape
        return packed.view(num_rows // self.block_rows, row_bytes * 2, self.block_rows // 2)

    def join(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Puts what the low and high nibbles of ``blocks`` stand for in the order of rows."""
        if self.halves:
            return torch.cat((low, high), dim=-1)
        return torch.stack((low, high), dim=-1).flatten(-2)

    def gather_rows(self, packed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Nibbles of the rows (T,) of a packed (N, K / 2): (T, K) uint8."""
        block, place = rows // self.block_rows, rows % self.block_rows
        half = self.block_rows // 2
        byte = place % half if self.halves else place // 2
        is_high = place >= half if self.halves else place % 2 == 1
        pairs = self.blocks(packed)[block, :, byte]
        return torch.where(is_high.unsqueeze(1), pairs >> 4, pairs & 15)


_KNOWN_LAYOUTS = (
    Int4Layout(block_rows=64, halves=True),
    Int4Layout(block_rows=32, halves=True),
    Int4Layout(block_rows=32, halves=False),
)


@cache
def int4_layout() -> Int4Layout:
    """The layout that torch uses here. Raises ConfigurationError if it is none of the known."""
    rows = torch.arange(128).unsqueeze(1)
    probe = (rows * 7 + rows // 16 + torch.arange(_PROBE_COLUMNS) * 3) % 16
    expected = torch._convert_weight_to_int4pack_for_cpu(probe.int(), 1)
    for layout in _KNOWN_LAYOUTS:
        if torch.equal(layout.pack(probe.to(torch.uint8)).view(-1), expected.view(-1)):
            return layout
    raise ConfigurationError(
        f"torch {torch.__version__} packs 4-bit weights in an unknown way on this machine; "
        f'set quantization to "none"'
    )
