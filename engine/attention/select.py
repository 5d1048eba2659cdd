"""Which attention runs where, measured."""

from collections.abc import Iterator

import torch

from engine.attention.base import AttentionBackend
from engine.attention.invariant import InvariantAttention
from engine.attention.torch_backend import TorchAttention
from engine.choice import Choice
from engine.kv_cache import KvCache

# SmolLM2's 30 layers in bf16 on two Zen 4 cores (AVX512-BF16), one thread. Prefill of 512 tokens:
# 114 ms; tiles of 64 124, of 256 141; torch's fused kernel, best tile, 177. Decode of 32 sequences
# of 512: 26 ms of a step of 82; the fused kernel 89.
BFLOAT16_TILE_SIZE = 128


def create_attention(kv_cache: KvCache) -> AttentionBackend:
    """Exact in float32 (docs/adr/0008-float32-is-exact.md), as fast as possible in bfloat16."""
    if kv_cache.tensor.dtype == torch.float32:
        return InvariantAttention(kv_cache)
    return TorchAttention(kv_cache, tile_size=BFLOAT16_TILE_SIZE)


def attention_choices() -> Iterator[Choice]:
    """What ``create_attention`` goes by."""
    for dtype, backend, note in (
        ("float32", InvariantAttention, "a token's numbers are the same bits in every step"),
        ("bfloat16", TorchAttention, f"two Zen 4 cores: tiles of {BFLOAT16_TILE_SIZE} are best"),
    ):
        yield Choice("attention", "any", "*", "any head size", dtype, "any", backend.__name__, note)
