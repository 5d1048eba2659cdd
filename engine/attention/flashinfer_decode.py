"""FlashInfer's own ways to decode over the pool, to measure ours against: nothing serves with them.

All sequences have ``shared`` tokens in common, and as many for themselves.
"""

from collections.abc import Callable

import torch
from flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    merge_state,
)

from engine.kv_cache import KvCache

_WORKSPACE_BYTES = 256 << 20

Run = Callable[[int], torch.Tensor]


def flat_decode(
    kv_cache: KvCache, query: torch.Tensor, tables: torch.Tensor, *, tensor_cores: bool
) -> Run:
    """Every sequence by itself. ``query``: (S, heads, head_dim), ``tables``: (S, blocks) int32, all
    full. What it returns attends in a layer."""
    wrapper = _decode_wrapper(kv_cache, query, tables, tensor_cores=tensor_cores)

    def run(layer: int) -> torch.Tensor:
        output: torch.Tensor = wrapper.run(query, _pages(kv_cache, layer))
        return output

    return run


def cascade_decode(
    kv_cache: KvCache,
    query: torch.Tensor,
    tables: torch.Tensor,
    *,
    num_shared: int,
    num_pieces: int,
    backend: str,
) -> Run:
    """The first ``num_shared`` blocks once for all by the prefill kernel of ``backend``, in
    ``num_pieces`` pieces, the rest by the decode kernel, merged."""
    number, device = query.shape[0], query.device
    own = _decode_wrapper(kv_cache, query, tables[:, num_shared:], tensor_cores=True)
    prefix = BatchPrefillWithPagedKVCacheWrapper(
        torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device), "HND", backend=backend
    )
    share = num_shared // num_pieces
    assert share * num_pieces == num_shared, (num_shared, num_pieces)
    prefix.plan(
        torch.arange(num_pieces + 1, dtype=torch.int32) * number,
        torch.arange(num_pieces + 1, dtype=torch.int32) * share,
        tables[0, :num_shared].contiguous(),
        torch.full((num_pieces,), kv_cache.block_size, dtype=torch.int32),
        query.shape[1],
        kv_cache.tensor.shape[1],
        query.shape[2],
        kv_cache.block_size,
        causal=False,
        q_data_type=query.dtype,
        kv_data_type=query.dtype,
    )

    def run(layer: int) -> torch.Tensor:
        pages = _pages(kv_cache, layer)
        repeated = query.repeat(num_pieces, 1, 1)
        values, logs = prefix.run(repeated, pages, return_lse=True)
        merged = own.run(query, pages, return_lse=True)
        for piece in range(num_pieces):
            rows = slice(piece * number, (piece + 1) * number)
            merged = merge_state(*merged, values[rows], logs[rows])
        output: torch.Tensor = merged[0]
        return output

    return run


def _decode_wrapper(
    kv_cache: KvCache, query: torch.Tensor, tables: torch.Tensor, *, tensor_cores: bool
) -> BatchDecodeWithPagedKVCacheWrapper:
    number, num_blocks = tables.shape
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=query.device),
        "HND",
        use_tensor_cores=tensor_cores,
    )
    wrapper.plan(
        torch.arange(number + 1, dtype=torch.int32) * num_blocks,
        tables.flatten(),
        torch.full((number,), kv_cache.block_size, dtype=torch.int32),
        query.shape[1],
        kv_cache.tensor.shape[1],
        query.shape[2],
        kv_cache.block_size,
        q_data_type=query.dtype,
        kv_data_type=query.dtype,
    )
    return wrapper


def _pages(kv_cache: KvCache, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    pool = kv_cache.tensor[:, :, layer]
    return pool[:, :, 0], pool[:, :, 1]
