"""Shared prefixes of captured decode steps, where the GPU finds them."""

import itertools

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention.cascade_plan import ITEM_FIELDS, CascadeLimits, CascadePlan
from engine.kernels.cuda.decode_shape import DecodeShape
from engine.kernels.cuda.launch import current_gpu
from engine.kernels.cuda.paged_prefix import PrefixResults, PrefixWork, paged_prefix
from engine.kernels.cuda.prefix_shape import PrefixShape, prefix_shape, prefix_unit
from engine.kv_cache import KvCache

# Arrays begin at multiples of so many words: Triton compiles anew for addresses that do not.
_ALIGNMENT = 16


class Cascade:
    """One packed int32 buffer for the plan of a step, and room for what attention to its prefixes
    leaves.

    ``words``: the buffer, to be filled with what ``pack`` makes. Both are shared by all steps.
    """

    def __init__(
        self,
        kv_cache: KvCache,
        num_heads: int,
        max_sequences: int,
        shape: PrefixShape | None = None,
        own_shape: DecodeShape | None = None,
    ) -> None:
        """``shape``, and ``own_shape`` of the sequences' own parts: other ones than the tables',
        for measuring."""
        self.own_shape = own_shape
        pool = kv_cache.tensor
        num_kv_heads, head_dim = pool.shape[1], pool.shape[-1]
        gpu = current_gpu()
        capability = (0, 0) if gpu is None else gpu.capability
        self._shape = shape or prefix_shape(capability, pool[:, :, 0])
        self._num_programs = self._shape.programs * (1 if gpu is None else gpu.num_processors)
        self.limits = CascadeLimits.of_batch(
            max_sequences,
            tile_members=self._shape.rows // (num_heads // num_kv_heads),
            programs=max(self._num_programs // num_kv_heads, 1),
            unit=prefix_unit(kv_cache.block_size),
        )
        limits = self.limits
        # The number of items, starts, slots, members, items.
        self._sizes = (
            1, max_sequences, 2 * max_sequences, limits.members, ITEM_FIELDS * limits.items,
        )  # fmt: skip
        padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes]
        *self._offsets, size = itertools.accumulate(padded, initial=0)
        self.words = torch.zeros(size, dtype=torch.int32, device=pool.device)
        self._values = torch.empty(limits.slots, num_heads, head_dim, device=pool.device)
        self._weights = torch.empty(limits.slots, num_heads, 2, device=pool.device)

    def pack(self, plan: CascadePlan, words: NDArray[np.int32]) -> int:
        """Writes a plan to the start of ``words``; returns how many of them count."""
        arrays = (np.array([len(plan.items)]), plan.starts, plan.slots, plan.members, plan.items)
        for offset, values in zip(self._offsets, arrays, strict=True):
            words[offset : offset + values.size] = values.reshape(-1)
        return self._offsets[-1] + plan.items.size

    def starts(self, num_sequences: int) -> torch.Tensor:
        """(S,) int32: the first token that each sequence attends to by itself."""
        return self._array(1)[:num_sequences]

    def attend(
        self,
        query: torch.Tensor,
        pool: torch.Tensor,
        tables: torch.Tensor,
        table_stride: torch.Tensor,
    ) -> PrefixResults:
        """What ``query`` (S, heads, head_dim) finds in the prefixes, for ``paged_decode``; valid
        until the next call. The rest as ``paged_prefix`` takes it."""
        work = self.work(query.shape[0])
        results = PrefixResults(work.slots, self._values, self._weights)
        paged_prefix(
            query, pool, tables, table_stride, work, results, self._shape, self._num_programs
        )
        return results

    def work(self, num_sequences: int) -> PrefixWork:
        """The plan in ``words``: views that stay right when it changes."""
        return PrefixWork(
            num_items=self._array(0),
            items=self._array(4).view(-1, ITEM_FIELDS),
            members=self._array(3),
            starts=self.starts(num_sequences),
            slots=self._array(2)[: 2 * num_sequences].view(-1, 2),
        )

    def _array(self, index: int) -> torch.Tensor:
        return self.words[self._offsets[index] :][: self._sizes[index]]
