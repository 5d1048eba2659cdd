"""Prefill by FlashInfer over the paged pool; decode stays with our own kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flashinfer import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
)

from engine.attention.triton_backend import TritonAttention
from engine.batch import ForwardBatch
from engine.kv_cache import KvCache

_WORKSPACE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class _Pages:
    """Block tables in FlashInfer's words; ``indices`` are on the device, the rest on the host."""

    starts: torch.Tensor
    indices: torch.Tensor
    last_lens: torch.Tensor


class FlashInferAttention(TritonAttention):
    """Steps with prompts are planned once for each window of the model's layers.

    Prompts from their start attend to k and v where the GEMM left them, others to the pool.
    ``backend`` is FlashInfer's name of a kernel family: "fa3" on Hopper, "fa2" elsewhere.
    """

    def __init__(self, kv_cache: KvCache, *, backend: str) -> None:
        super().__init__(kv_cache)
        self._backend = backend
        device = kv_cache.tensor.device
        self._scratch = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._paged: dict[int | None, BatchPrefillWithPagedKVCacheWrapper] = {}
        self._ragged: dict[int | None, BatchPrefillWithRaggedKVCacheWrapper] = {}
        self._planned: set[int | None] = set()
        self._copied = torch.cuda.Event()

    def plan(self, batch: ForwardBatch) -> None:
        super().plan(batch)
        if not batch.is_decode:
            self._planned.clear()
            self._is_fresh = not any(batch.context_lens)
            self._query_starts = _starts(batch.query_lens)
            # A plan leaves through one pinned buffer: the last one must be out before it is reused.
            self._copied.synchronize()

    def run_step(self, layer: int, qkv: torch.Tensor, window: int | None = None) -> torch.Tensor:
        if self._batch.is_decode or not self._is_fresh:
            return super().run_step(layer, qkv, window)
        num_kv_heads = self._num_kv_heads
        sizes = (qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads)
        query, keys, values = qkv.split(sizes, dim=1)
        if window not in self._ragged:
            self._ragged[window] = BatchPrefillWithRaggedKVCacheWrapper(
                self._scratch, "NHD", backend=self._backend
            )
        wrapper = self._ragged[window]
        if window not in self._planned:
            starts = self._query_starts
            wrapper.plan(
                starts, starts, *sizes[:2], qkv.shape[2], **self._settings(window, qkv.dtype)
            )
            self._note_plan(window)
        attended: torch.Tensor = wrapper.run(query, keys, values, out=_empty(query))
        return attended

    def _prefill(self, pool: torch.Tensor, query: torch.Tensor, window: int | None) -> torch.Tensor:
        if window not in self._paged:
            self._paged[window] = BatchPrefillWithPagedKVCacheWrapper(
                self._scratch, "HND", backend=self._backend
            )
        wrapper = self._paged[window]
        if window not in self._planned:
            pages = _pages_of(self._batch, self._kv_cache.block_size)
            wrapper.plan(
                self._query_starts,
                pages.starts,
                pages.indices,
                pages.last_lens,
                query.shape[1],
                pool.shape[1],
                query.shape[2],
                self._kv_cache.block_size,
                **self._settings(window, query.dtype),
            )
            self._note_plan(window)
        attended: torch.Tensor = wrapper.run(
            query, (pool[:, :, 0], pool[:, :, 1]), out=_empty(query)
        )
        return attended

    def _settings(self, window: int | None, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "causal": True,
            "window_left": -1 if window is None else window - 1,
            "q_data_type": dtype,
            "kv_data_type": dtype,
        }

    def _note_plan(self, window: int | None) -> None:
        self._planned.add(window)
        self._copied.record()


def _empty(query: torch.Tensor) -> torch.Tensor:
    """Left to itself FlashInfer fills its output with zeros first."""
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


def _pages_of(batch: ForwardBatch, block_size: int) -> _Pages:
    lens = [
        query_len + context_len
        for query_len, context_len in zip(batch.query_lens, batch.context_lens, strict=True)
    ]
    num_blocks = [-(-length // block_size) for length in lens]
    indices = torch.cat(
        [table[:number] for table, number in zip(batch.block_tables, num_blocks, strict=True)]
    )

    return _Pages(
        starts=_starts(num_blocks),
        indices=indices.int(),
        last_lens=torch.tensor([(length - 1) % block_size + 1 for length in lens]).int(),
    )


def _starts(lengths: Sequence[int]) -> torch.Tensor:
    """(len + 1,) int32: where each begins, and the end."""
    return torch.tensor([0, *lengths]).cumsum(0).int()
