"""Attention of one sequence that brings several tokens, after any number of earlier ones."""

from dataclasses import dataclass

import torch

from engine.attention.gather import BlockGather
from engine.batch import ForwardBatch
from engine.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class _Tile:
    """Tokens ``[start, end)`` of the batch, and the gathered keys ``[first_key, last_key)``.

    ``mask`` (tokens, keys) is 0 where a token sees a key and minus infinity elsewhere.
    """

    start: int
    end: int
    first_key: int
    last_key: int
    mask: torch.Tensor


class PrefillSequence:
    """The sequence's blocks are gathered once a layer; its tokens attend tile by tile.

    A tile sees only the keys up to its own last token, so that most of what causality hides is not
    computed, and its scores stay in the processor's cache.
    """

    def __init__(
        self,
        kv_cache: KvCache,
        gather: BlockGather,
        batch: ForwardBatch,
        sequence: int,
        window: int | None,
        tile_size: int,
    ) -> None:
        self._gather = gather
        block_size = kv_cache.block_size
        first_token = int(batch.query_starts[sequence])
        query_len, context_len = batch.query_lens[sequence], batch.context_lens[sequence]
        first_block = _oldest_key(context_len, window) // block_size
        num_blocks = -(-(context_len + query_len) // block_size)
        keys = kv_cache.row_ids(batch.block_tables[sequence, first_block:num_blocks]).T
        self._row_ids = torch.stack((keys, keys + 1))
        self._tiles = []
        for start in range(0, query_len, tile_size):
            end = min(start + tile_size, query_len)
            oldest = _oldest_key(context_len + start, window)
            tile = _Tile(
                start=first_token + start,
                end=first_token + end,
                first_key=oldest - first_block * block_size,
                last_key=context_len + end - first_block * block_size,
                mask=_mask(
                    torch.arange(context_len + start, context_len + end),
                    torch.arange(oldest, context_len + end),
                    window,
                    kv_cache.tensor.dtype,
                ),
            )
            self._tiles.append(tile)

    def run(self, layer: int, query: torch.Tensor, output: torch.Tensor) -> None:
        keys, values = self._gather.gather(self._row_ids, layer)
        for tile in self._tiles:
            seen = slice(tile.first_key, tile.last_key)
            output[tile.start : tile.end] = _attend(
                query[tile.start : tile.end], keys[:, seen], values[:, seen], tile.mask
            )


def _oldest_key(position: int, window: int | None) -> int:
    """The oldest position that the token at ``position`` sees."""
    return max(0, position - window + 1) if window is not None else 0


def _mask(
    queries: torch.Tensor, keys: torch.Tensor, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    hidden = keys[None, :] > queries[:, None]
    if window is not None:
        hidden |= keys[None, :] <= queries[:, None] - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The query heads of a KV head become rows of one matrix: (kv heads, group * tokens, dim)."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[0]
    rows = query.transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
    masks = mask.repeat(num_heads // num_kv_heads, 1)[None]
    scores = torch.baddbmm(masks, rows, keys.transpose(1, 2), alpha=float(head_dim) ** -0.5)
    attended = torch.bmm(scores.softmax(dim=-1), values)
    return attended.view(num_heads, num_tokens, head_dim).transpose(0, 1)
