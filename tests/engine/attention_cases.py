"""Batches over a paged pool for attention tests."""

import random

import torch

from engine.batch import ForwardBatch
from engine.config import ModelConfig
from engine.kv_cache import KvCache

CPU = torch.device("cpu")


def make_model(*, num_heads: int = 6, num_kv_heads: int = 2, head_dim: int = 16) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=64,
        hidden_size=num_heads * head_dim,
        intermediate_size=32,
        num_layers=3,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_position_embeddings=4096,
    )


def make_pool(
    model: ModelConfig,
    *,
    num_blocks: int,
    dtype: torch.dtype,
    block_size: int = 4,
    device: torch.device = CPU,
) -> KvCache:
    """A pool full of random numbers, the sink included: what must not be read is not zero."""
    pool = KvCache(model, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=device)
    pool.tensor.normal_(generator=torch.Generator(device).manual_seed(1))
    return pool


def make_batch(
    lens: list[tuple[int, int]], block_ids: list[int], block_size: int = 4
) -> ForwardBatch:
    """``lens`` are (new tokens, context) per sequence; blocks are dealt in order of need."""
    remaining = list(block_ids)
    tables = []
    for query_len, context_len in lens:
        num_blocks = -(-(query_len + context_len) // block_size)
        tables.append([remaining.pop() for _ in range(num_blocks)])
    width = max(map(len, tables))
    positions = [list(range(context, context + new)) for new, context in lens]
    slots = [
        table[position // block_size]
        for table, places in zip(tables, positions, strict=True)
        for position in places
    ]
    flat = torch.tensor([position for places in positions for position in places])
    query_lens = tuple(new for new, _ in lens)
    starts = torch.tensor((0, *query_lens)).cumsum(0)
    return ForwardBatch(
        token_ids=torch.zeros_like(flat),
        positions=flat,
        slot_blocks=torch.tensor(slots),
        slot_offsets=flat % block_size,
        query_starts=starts,
        seq_lens=torch.tensor([new + context for new, context in lens]),
        block_tables=torch.tensor([table + [0] * (width - len(table)) for table in tables]),
        logit_indices=starts[1:] - 1,
        query_lens=query_lens,
        context_lens=tuple(context for _, context in lens),
    )


def scattered_blocks(num_blocks: int, seed: int = 0) -> list[int]:
    """Shuffled ids with a hole after each: no two blocks of a sequence are neighbours."""
    block_ids = list(range(1, num_blocks + 1, 2))
    random.Random(seed).shuffle(block_ids)
    return block_ids
