"""Checksums of blocks: what was read is what was computed (protocol 4.3)."""

import struct
import zlib
from collections.abc import Sequence
from itertools import chain

import torch


def head_checksums(pool: torch.Tensor, block_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """CRC-32 of each KV head of each block of ``pool`` (block, head, ..), which is contiguous.

    One on a device is copied for it.
    """
    blocks = pool.view(*pool.shape[:2], -1).view(torch.uint8)
    return tuple(
        tuple(zlib.crc32(head.data) for head in blocks[block].cpu().numpy()) for block in block_ids
    )


def block_checksums(of_ranks: Sequence[Sequence[Sequence[int]]]) -> tuple[int, ...]:
    """One number of each block, from those of its heads on each rank, in order of the heads.

    The same however many ranks the heads are divided among.
    """
    return tuple(_joined(tuple(chain(*parts))) for parts in zip(*of_ranks, strict=True))


def no_checksums(block_ids: Sequence[int]) -> tuple[int, ...]:
    """For a worker that sends none."""
    return ()


def _joined(heads: Sequence[int]) -> int:
    return zlib.crc32(struct.pack(f"<{len(heads)}I", *heads))
