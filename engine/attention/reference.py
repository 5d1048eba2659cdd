"""The plainest attention over the paged pool: one sequence at a time, in float32.

Every faster backend is tested against it.
"""

import torch

from engine.attention.base import AttentionBackend
from engine.batch import ForwardBatch
from engine.kv_cache import KvCache


class ReferenceAttention(AttentionBackend):
    """Gathers each sequence's blocks and writes the softmax out."""

    def __init__(self, kv_cache: KvCache) -> None:
        self._kv_cache = kv_cache

    def plan(self, batch: ForwardBatch) -> None:
        self._batch = batch

    def run(self, layer: int, query: torch.Tensor, window: int | None = None) -> torch.Tensor:
        output = torch.empty_like(query)
        start = 0
        for sequence, query_len in enumerate(self._batch.query_lens):
            rows = slice(start, start + query_len)
            output[rows] = self._attend(layer, sequence, query[rows].float(), window)
            start += query_len
        return output

    def _attend(
        self, layer: int, sequence: int, query: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        query_len, num_heads, head_dim = query.shape
        context_len = self._batch.context_lens[sequence]
        kv_len = context_len + query_len
        num_blocks = -(-kv_len // self._kv_cache.block_size)
        blocks = self._batch.block_tables[sequence, :num_blocks]
        # (blocks, kv head, 2, token, dim) -> (2, kv head, kv_len, dim)
        kv = self._kv_cache.tensor[:, :, layer][blocks].float().permute(2, 1, 0, 3, 4)
        kv = kv.flatten(2, 3)[:, :, :kv_len]
        k, v = kv.repeat_interleave(num_heads // kv.shape[1], dim=1)
        scores = torch.einsum("qhd,hkd->hqk", query, k) * head_dim**-0.5
        position = torch.arange(context_len, kv_len)[:, None]
        key = torch.arange(kv_len)[None, :]
        seen = key <= position
        if window is not None:
            seen &= key > position - window
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        return torch.einsum("hqk,hkd->qhd", weights, v)
