"""Attention with plain torch operators: no compiler, no device code. The CPU's backend."""

import torch

from engine.attention.base import AttentionBackend
from engine.attention.decode import DecodeGroup
from engine.attention.gather import BlockGather
from engine.attention.grouping import group_decoding
from engine.attention.prefill import PrefillSequence
from engine.batch import ForwardBatch
from engine.kv_cache import KvCache


class TorchAttention(AttentionBackend):
    """Splits a step into prefilling sequences and groups of decoding ones, each with its plan."""

    def __init__(self, kv_cache: KvCache, *, tile_size: int) -> None:
        """``tile_size``: tokens of a prefilling sequence that attend together."""
        self._kv_cache = kv_cache
        self._gather = BlockGather(kv_cache)
        self._tile_size = tile_size

    def plan(self, batch: ForwardBatch) -> None:
        self._batch = batch
        self._parts: dict[int | None, list[DecodeGroup | PrefillSequence]] = {}

    def run(self, layer: int, query: torch.Tensor, window: int | None = None) -> torch.Tensor:
        if window not in self._parts:
            self._parts[window] = self._split(window)
        output = torch.empty_like(query)
        for part in self._parts[window]:
            part.run(layer, query, output)
        return output

    def _split(self, window: int | None) -> list[DecodeGroup | PrefillSequence]:
        kv_cache, gather, batch = self._kv_cache, self._gather, self._batch
        parts: list[DecodeGroup | PrefillSequence] = [
            DecodeGroup(kv_cache, gather, batch, group, window)
            for group in group_decoding(batch, kv_cache, window, kv_cache.block_size)
        ]
        for sequence, query_len in enumerate(batch.query_lens):
            if query_len > 1:
                parts.append(
                    PrefillSequence(kv_cache, gather, batch, sequence, window, self._tile_size)
                )
        return parts
