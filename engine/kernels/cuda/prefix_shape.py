"""How attention to shared prefixes is laid out on a GPU."""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PrefixShape:
    """``rows`` are query heads of a program, over a ``tile`` of tokens at a time; ``programs`` of
    them run at the same time on a multiprocessor. ``specialized``: by the kernel for Hopper, whose
    warps have work of their own."""

    rows: int
    tile: int
    num_warps: int
    num_stages: int
    programs: int
    specialized: bool = False


# Whole tiles of every shape fit between the ends of prefixes.
TILE_UNIT = 128
# What shared memory holds: 227 KiB on data centre GPUs from Hopper on, 163 on Ampere, 99 on others.
# 256 sequences of 32768 shared and 256 own tokens on an H200, a layer: 289 us by the kernel for
# Hopper, with three stages the same, with tiles of 64 tokens 315; by the other one 455, with two
# stages 480, with tiles of 64 tokens 534, with 64 rows and two programs a multiprocessor 555.
_HOPPER = PrefixShape(128, 128, 4, 2, 1, specialized=True)
_LARGE = {(9, 0): PrefixShape(128, 128, 8, 3, 1), (10, 0): PrefixShape(128, 128, 8, 2, 1)}
_SMALL = PrefixShape(64, 64, 4, 2, 1)
_WIDE = PrefixShape(64, 32, 4, 1, 1)
_LONG_ROW_BYTES = 512


def prefix_shape(capability: tuple[int, int], pool: torch.Tensor) -> PrefixShape:
    """Measured on Hopper alone. ``pool``: one layer, (block, kv head, 2, token, head_dim)."""
    block_size, head_dim = pool.shape[3:]
    if (
        capability == (9, 0)
        and pool.dtype == torch.bfloat16
        and head_dim in (64, 128)
        and block_size == 16
    ):
        return _HOPPER
    row = pool[0, 0, 0, 0]
    if row.shape[-1] * row.element_size() >= _LONG_ROW_BYTES:
        return _WIDE
    return _LARGE.get(capability, _SMALL)


def prefix_unit(block_size: int) -> int:
    """Tokens at whose multiples prefixes end: whole tiles and whole blocks."""
    return math.lcm(TILE_UNIT, block_size)
