"""Attention with plain torch operators: no compiler, no device code. The CPU's backend."""

import torch

from engine.attention.base import AttentionBackend
from engine.attention.decode import DecodeGroup
from engine.attention.gather import BlockGather
from engine.attention.prefill import PrefillSequence
from engine.batch import ForwardBatch
from engine.kv_cache import KvCache

# A group's gathered K and V should stay in the processor's cache until they are used.
MAX_GROUP_BYTES = 8 << 20
# A sequence joins a group of longer ones where at least this share of its padded place is its own,
# or where the whole group is so small that padding costs less than another group's calls.
MIN_FILL = 0.75
SMALL_GROUP_BYTES = 1 << 20


class TorchAttention(AttentionBackend):
    """Splits a step into prefilling sequences and groups of decoding ones, each with its plan.

    ``fused`` and ``tile_size`` say how prefill attends; see PrefillSequence.
    """

    def __init__(self, kv_cache: KvCache, *, fused: bool, tile_size: int) -> None:
        self._kv_cache = kv_cache
        self._gather = BlockGather(kv_cache)
        self._fused = fused
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
            DecodeGroup(kv_cache, gather, batch, group, window) for group in self._group(window)
        ]
        for sequence, query_len in enumerate(batch.query_lens):
            if query_len > 1:
                parts.append(
                    PrefillSequence(
                        kv_cache,
                        gather,
                        batch,
                        sequence,
                        window,
                        fused=self._fused,
                        tile_size=self._tile_size,
                    )
                )
        return parts

    def _group(self, window: int | None) -> list[list[int]]:
        """Decoding sequences of similar length, in groups whose K and V fit the cache."""
        batch, block_size = self._batch, self._kv_cache.block_size
        block_bytes = self._kv_cache.block_bytes // self._kv_cache.num_layers
        num_blocks = {
            sequence: -(-min(context_len + 1, window or context_len + 1) // block_size)
            for sequence, context_len in enumerate(batch.context_lens)
            if batch.query_lens[sequence] == 1
        }
        groups: list[list[int]] = []
        longest = 0
        for sequence in sorted(num_blocks, key=lambda s: -num_blocks[s]):
            padded_bytes = (len(groups[-1]) + 1) * longest * block_bytes if groups else 0
            similar = num_blocks[sequence] >= MIN_FILL * longest
            limit = MAX_GROUP_BYTES if similar else SMALL_GROUP_BYTES
            if not groups or padded_bytes > limit:
                groups.append([])
                longest = num_blocks[sequence]
            groups[-1].append(sequence)
        return groups
