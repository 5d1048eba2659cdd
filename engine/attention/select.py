"""Which attention runs where, measured."""

import torch

from engine.attention.base import AttentionBackend
from engine.attention.invariant import InvariantAttention
from engine.attention.torch_backend import TorchAttention
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
