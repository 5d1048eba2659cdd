"""How decode attention is laid out on the GPU, by the size of the step: one table, measured."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """``pieces`` a multiprocessor that sequences are cut into, tokens of a ``tile``, warps of a
    program and stages of its loop; how many pieces are ``merged`` at once, for which every program
    keeps registers. A row of the table applies to at most ``max_pairs`` pairs of a
    sequence and a KV head."""

    max_pairs: int
    pieces: int
    tile: int
    num_warps: int
    num_stages: int
    merged: int
    note: str


# Llama 3.1 8B on an H200: ms of a whole decode step, best of what was tried.
DECODE_TABLE = (
    DecodeShape(8, 1, 64, 4, 4, 8, "1 x 1024: 4.04; as the next row 4.10"),
    DecodeShape(128, 1, 128, 4, 5, 8, "8 x 1024: 4.78"),
    DecodeShape(512, 1, 64, 4, 8, 4, "32 x 1024: 5.66, 32 x 4096: 8.65"),
    DecodeShape(1 << 30, 1, 128, 4, 3, 2, "128 x 1024: 9.42, 256: 15.3, 128 x 4096: 21.5"),
)
# Rows of K this long, in bytes, fill shared memory with smaller tiles.
_LONG_ROW_BYTES = 512


def decode_shape(num_sequences: int, num_kv_heads: int, row: torch.Tensor) -> DecodeShape:
    """The first row that fits; ``row`` is one K vector, of any head."""
    pairs = num_sequences * num_kv_heads
    shape = next(each for each in DECODE_TABLE if pairs <= each.max_pairs)
    if row.shape[-1] * row.element_size() >= _LONG_ROW_BYTES:
        return replace(shape, tile=32, num_warps=4, num_stages=3)
    return shape
