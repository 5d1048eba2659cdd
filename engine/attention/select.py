"""Which attention runs where: one table, measured."""

from dataclasses import dataclass

import torch

from engine.attention.base import AttentionBackend
from engine.attention.torch_backend import TorchAttention
from engine.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    """How one dtype's prefill attends; see PrefillSequence. ``note`` says what it was chosen over.

    Times are SmolLM2's 30 layers on two Zen 4 cores (AVX512-BF16), one thread.
    """

    dtype: torch.dtype
    fused: bool
    tile_size: int
    note: str


# Decode has no row: two batched products over groups won in both dtypes at every batch size (bf16,
# 32 sequences of 512: 82 ms a step, of which 26 attend; the fused kernel attends in 89).
PREFILL_TABLE = (
    PrefillChoice(
        torch.bfloat16,
        fused=False,
        tile_size=128,
        note="512 tokens: 114 ms; tiles of 64 124, of 256 141; fused, best tile, 177",
    ),
    PrefillChoice(
        torch.float32,
        fused=True,
        tile_size=64,
        note="512 tokens: 153 ms; tiles of 128 165, of 512 254; products, best tile, 169",
    ),
)


def create_attention(kv_cache: KvCache) -> AttentionBackend:
    """The fastest backend for this pool's dtype on this machine."""
    choice = next(row for row in PREFILL_TABLE if row.dtype == kv_cache.tensor.dtype)
    return TorchAttention(kv_cache, fused=choice.fused, tile_size=choice.tile_size)
