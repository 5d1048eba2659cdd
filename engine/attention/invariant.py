"""Attention that gives a token the same bits whatever else is in the step: for float32.

Keys are taken in tiles that begin at fixed positions and have one size. torch's fused kernel
attends to each tile by itself, and the tiles of a token are merged in order of position. So neither
other sequences nor the border of a chunk changes the order of any addition, and prefill and decode
are one computation. Of a tile, what a token does not see adds zeros.
"""

import torch
from torch.nn import functional

from engine.attention.base import AttentionBackend
from engine.attention.gather import BlockGather
from engine.attention.grouping import group_decoding
from engine.batch import ForwardBatch
from engine.kernels.invariant_rows import at_least, invariant_row_counts
from engine.kv_cache import KvCache

TILE_SIZE = 128
# A row is a query head of a token. A prompt is cut into pieces of the largest number.
ROW_COUNTS = (4, 8, 16, 32, 64, 128, 256)
# Finite, so that results are, also where a token sees nothing of a tile: its weight is 0 then.
HIDDEN = -1e30

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class InvariantAttention(AttentionBackend):
    """Splits a step into groups of decoding sequences and pieces of prompts."""

    def __init__(self, kv_cache: KvCache) -> None:
        self._kv_cache = kv_cache
        self._gather = BlockGather(kv_cache)
        # Whole blocks.
        self._tile_size = -(-TILE_SIZE // kv_cache.block_size) * kv_cache.block_size
        self._row_counts = _find_row_counts(self._tile_size, kv_cache.tensor.shape[-1])

    def plan(self, batch: ForwardBatch) -> None:
        self._batch = batch
        self._parts: dict[int | None, list[_Part]] = {}

    def run(self, layer: int, query: torch.Tensor, window: int | None = None) -> torch.Tensor:
        if window not in self._parts:
            self._parts[window] = self._split(window, query.shape[1])
        output = torch.empty_like(query)
        for part in self._parts[window]:
            part.run(layer, query, output)
        return output

    def _split(self, window: int | None, num_heads: int) -> list["_Part"]:
        batch, kv_cache = self._batch, self._kv_cache
        group_size = num_heads // kv_cache.tensor.shape[1]
        pieces = [
            (sequences, batch.query_starts[sequences][:, None])
            for sequences in group_decoding(batch, kv_cache, window, self._tile_size)
        ]
        length = self._row_counts[-1] // group_size
        for sequence, query_len in enumerate(batch.query_lens):
            if query_len > 1:
                tokens = torch.arange(query_len)[None] + batch.query_starts[sequence]
                for start in range(0, query_len, length):
                    pieces.append(([sequence], tokens[:, start : start + length]))
        return [
            _Part(
                kv_cache,
                self._gather,
                batch,
                sequences,
                tokens,
                window,
                tile_size=self._tile_size,
                group_size=group_size,
                num_rows=at_least(self._row_counts, tokens.shape[1] * group_size),
            )
            for sequences, tokens in pieces
        ]


class _Part:
    """S sequences with Q tokens each, all with the T tiles of the longest.

    The query heads that share a KV head are rows of one matrix, those of a token side by side.
    """

    def __init__(
        self,
        kv_cache: KvCache,
        gather: BlockGather,
        batch: ForwardBatch,
        sequences: list[int],
        tokens: torch.Tensor,
        window: int | None,
        *,
        tile_size: int,
        group_size: int,
        num_rows: int,
    ) -> None:
        """``tokens`` (S, Q) are places in the batch; their rows are padded to ``num_rows``."""
        self._gather = gather
        self._tokens = tokens
        self._tile_size = tile_size
        self._group_size = group_size
        self._num_rows = num_rows
        positions = batch.positions[tokens]
        oldest = positions - window + 1 if window is not None else torch.zeros_like(positions)
        first_tiles = oldest[:, 0].clamp(min=0) // tile_size
        self._num_tiles = int((positions[:, -1] // tile_size - first_tiles).max()) + 1
        keys = first_tiles[:, None] * tile_size + torch.arange(self._num_tiles * tile_size)
        hidden = (keys[:, None] > positions[..., None]) | (keys[:, None] < oldest[..., None])
        # (S * T, 1, rows, tile size)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, HIDDEN)
        mask = mask.repeat_interleave(group_size, dim=1)
        mask = functional.pad(mask, (0, 0, 0, num_rows - mask.shape[1]))
        mask = mask.view(len(sequences), num_rows, -1, tile_size).transpose(1, 2)
        self._mask = mask.flatten(0, 1).unsqueeze(1).contiguous()
        tables = batch.block_tables[sequences]
        columns = keys[:, :: kv_cache.block_size] // kv_cache.block_size
        # Columns past a table's end repeat its last block; the mask hides what they hold.
        blocks = tables.gather(1, columns.clamp(max=tables.shape[1] - 1))
        rows = kv_cache.row_ids(blocks.view(-1, tile_size // kv_cache.block_size)).transpose(1, 2)
        self._row_ids = torch.stack((rows, rows + 1)).flatten(1, 2)

    def run(self, layer: int, query: torch.Tensor, output: torch.Tensor) -> None:
        keys, values = self._gather.gather(self._row_ids, layer)
        rows = self._rows(query)
        shape = (rows.shape[0], rows.shape[1], self._tile_size, -1)
        attended, logs = _attend(rows, keys.view(shape), values.view(shape), attn_mask=self._mask)
        num_seqs, num_tokens = self._tokens.shape
        by_tile = (num_seqs, self._num_tiles, *attended.shape[1:])
        merged = _merge(attended.reshape(by_tile), logs.reshape(*by_tile[:-1], 1))
        merged = merged[:, :, : num_tokens * self._group_size]
        by_token = merged.reshape(num_seqs, -1, num_tokens, self._group_size, query.shape[2])
        output[self._tokens] = by_token.transpose(1, 2).flatten(2, 3)

    def _rows(self, query: torch.Tensor) -> torch.Tensor:
        """Padded, for each tile the same: (S * T, KV heads, rows, dim)."""
        num_seqs, num_tokens = self._tokens.shape
        rows = query[self._tokens].view(num_seqs, num_tokens, -1, self._group_size, query.shape[2])
        rows = rows.transpose(1, 2).flatten(2, 3)
        rows = functional.pad(rows, (0, 0, 0, self._num_rows - rows.shape[2]))
        return rows.unsqueeze(1).expand(-1, self._num_tiles, -1, -1, -1).flatten(0, 1)


def _merge(attended: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
    """Results by tile, (S, T, KV heads, rows, dim) and the logarithms of their weights (.., 1), to
    (S, KV heads, rows, dim)."""
    weights = (logs - logs.amax(1, keepdim=True)).exp_()
    return _add_in_order(attended * weights).div_(_add_in_order(weights))


def _add_in_order(tiles: torch.Tensor) -> torch.Tensor:
    """The sum of (S, T, ..) over tiles, first to last."""
    total = tiles[:, 0].clone()
    for tile in range(1, tiles.shape[1]):
        total += tiles[:, tile]
    return total


def _find_row_counts(tile_size: int, head_dim: int) -> tuple[int, ...]:
    """Numbers of rows that torch's kernel treats alike, alone and among others."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(head_dim, generator=generator)
    keys, values = torch.randn(2, tile_size, head_dim, generator=generator)

    def attend(num_rows: int) -> torch.Tensor:
        results = []
        for number in (1, 2, 3, 8):
            shape = (number, 1, -1, -1)
            attended, logs = _attend(
                row.expand(number, 1, num_rows, -1).contiguous(),
                keys.expand(shape).contiguous(),
                values.expand(shape).contiguous(),
                attn_mask=torch.zeros(1, 1, num_rows, tile_size),
            )
            results.append(torch.cat((attended, logs.unsqueeze(-1)), dim=-1).flatten(0, 2))
        return torch.cat(results)

    return invariant_row_counts(attend, ROW_COUNTS)
