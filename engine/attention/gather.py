"""Copies scattered blocks of the pool into one dense workspace."""

import torch

from engine.kv_cache import KvCache


class BlockGather:
    """Dense K and V of chosen rows, in one buffer that every gather of a step shares.

    The buffer is reused because fresh pages cost as much as the copy itself.
    """

    def __init__(self, kv_cache: KvCache) -> None:
        self._rows = kv_cache.rows
        self._head_dim = kv_cache.tensor.shape[-1]
        self._buffer = self._rows.new_empty(0)

    def gather(self, row_ids: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V (N, blocks * block_size, head_dim) of ``row_ids`` (2, N, blocks) in ``layer``.

        ``row_ids`` are those of layer 0, K's then V's. The result is valid until the next gather.
        """
        num_values = row_ids.numel() * self._rows.shape[1]
        if self._buffer.numel() < num_values:
            self._buffer = self._rows.new_empty(num_values)
        dense = self._buffer[:num_values]
        torch.index_select(
            self._rows, 0, row_ids.view(-1) + 2 * layer, out=dense.view(-1, self._rows.shape[1])
        )
        keys, values = dense.view(2, row_ids.shape[1], -1, self._head_dim)
        return keys, values
