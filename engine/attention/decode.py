"""Attention of sequences that bring one token each, several at once."""

import torch

from engine.attention.gather import BlockGather
from engine.batch import ForwardBatch
from engine.kv_cache import KvCache


class DecodeGroup:
    """Sequences of similar length, padded to the longest: gather, then two batched products.

    The query heads that share a KV head are the rows of one small matrix, so K and V are read
    once for all of them.
    """

    def __init__(
        self,
        kv_cache: KvCache,
        gather: BlockGather,
        batch: ForwardBatch,
        sequences: list[int],
        window: int | None,
    ) -> None:
        self._gather = gather
        block_size = kv_cache.block_size
        index = torch.tensor(sequences)
        self._tokens = batch.query_starts[index]
        lens = batch.seq_lens[index]
        oldest = (lens - window).clamp(min=0) if window is not None else torch.zeros_like(lens)
        first_blocks = oldest // block_size
        num_blocks = int(((lens + block_size - 1) // block_size - first_blocks).max())
        columns = first_blocks[:, None] + torch.arange(num_blocks)
        tables = batch.block_tables[index]
        # Columns past a table's end repeat its last block; the mask hides what they hold.
        blocks = tables.gather(1, columns.clamp(max=tables.shape[1] - 1))
        keys = kv_cache.row_ids(blocks).transpose(1, 2).reshape(-1, num_blocks)
        self._row_ids = torch.stack((keys, keys + 1))
        self._mask = self._build_mask(kv_cache, columns, lens, oldest)

    def _build_mask(
        self, kv_cache: KvCache, columns: torch.Tensor, lens: torch.Tensor, oldest: torch.Tensor
    ) -> torch.Tensor:
        offsets = torch.arange(kv_cache.block_size)
        positions = (columns[:, :, None] * kv_cache.block_size + offsets).flatten(1)
        hidden = (positions >= lens[:, None]) | (positions < oldest[:, None])
        mask = torch.zeros(hidden.shape, dtype=kv_cache.tensor.dtype)
        mask.masked_fill_(hidden, -torch.inf)
        return mask.repeat_interleave(kv_cache.tensor.shape[1], dim=0)[:, None]

    def run(self, layer: int, query: torch.Tensor, output: torch.Tensor) -> None:
        _, num_heads, head_dim = query.shape
        keys, values = self._gather.gather(self._row_ids, layer)
        rows = query[self._tokens].view(len(keys), -1, head_dim)
        scores = torch.baddbmm(
            self._mask, rows, keys.transpose(1, 2), alpha=float(head_dim) ** -0.5
        )
        attended = torch.bmm(scores.softmax(dim=-1), values)
        output[self._tokens] = attended.view(-1, num_heads, head_dim)
