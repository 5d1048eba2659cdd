"""Attention by our Triton kernels: any head size, any GPU, decode without a plan on the host."""

import torch

from engine.attention.base import AttentionBackend
from engine.attention.cascade import Cascade
from engine.batch import ForwardBatch
from engine.kernels.cuda.decode_plan import DecodePlan, plan_decode
from engine.kernels.cuda.decode_shape import decode_shape
from engine.kernels.cuda.launch import current_gpu
from engine.kernels.cuda.paged_decode import DecodeWorkspace, paged_decode
from engine.kernels.cuda.paged_prefill import paged_prefill, prefill_tile_tokens
from engine.kv_cache import KvCache


class TritonAttention(AttentionBackend):
    """Steps that only decode are cut into pieces on the device, so that a captured step stays right
    while its sequences grow; all others go tile by tile."""

    def __init__(self, kv_cache: KvCache) -> None:
        self._kv_cache = kv_cache
        self._num_kv_heads = kv_cache.tensor.shape[1]
        gpu = current_gpu()
        self._num_processors = 1 if gpu is None else gpu.num_processors
        self._workspaces: dict[int, DecodeWorkspace] = {}

    def plan(self, batch: ForwardBatch) -> None:
        tables = batch.block_tables
        if batch.is_decode:
            stride = torch.tensor([tables.shape[1]], dtype=torch.int32)
            self.plan_captured(batch, tables.int(), stride.to(tables.device))
        else:
            self._batch = batch
            self._tiles: tuple[torch.Tensor, torch.Tensor] | None = None

    def plan_captured(
        self,
        batch: ForwardBatch,
        tables: torch.Tensor,
        table_stride: torch.Tensor,
        cascade: Cascade | None = None,
    ) -> None:
        """Plans a step that only decodes, for capture in a graph: lengths and tables may change
        between replays, and so may ``table_stride`` (1,), the entries of ``tables`` a sequence.

        With ``cascade`` layers without a window attend together to what sequences share."""
        self._batch = batch
        self._cascade = cascade
        self._tables = tables
        self._table_stride = table_stride
        own_shape = None if cascade is None else cascade.own_shape
        self._shape = own_shape or decode_shape(
            len(batch.query_lens), self._num_kv_heads, self._kv_cache.tensor[0, 0, 0, 0, 0]
        )
        self._decode_plans: dict[int | None, DecodePlan] = {}

    def run_step(self, layer: int, qkv: torch.Tensor, window: int | None = None) -> torch.Tensor:
        """Attends with q of ``qkv`` (T, heads + 2 * kv heads, head_dim), k and v already in the
        pool: of use where a step's own keys are all that it sees."""
        return self.run(layer, qkv[:, : qkv.shape[1] - 2 * self._num_kv_heads], window)

    def run(self, layer: int, query: torch.Tensor, window: int | None = None) -> torch.Tensor:
        pool = self._kv_cache.tensor[:, :, layer]
        if not self._batch.is_decode:
            return self._prefill(pool, query, window)
        if window not in self._decode_plans:
            self._decode_plans[window] = self._plan_decode(window)
        plan = self._decode_plans[window]
        places = (pool, self._tables, self._table_stride)
        cascade = self._cascade if window is None else None
        prefix = None if cascade is None else cascade.attend(query, *places)
        return paged_decode(query, *places, plan, self._workspace(query, plan), self._shape, prefix)

    def _prefill(self, pool: torch.Tensor, query: torch.Tensor, window: int | None) -> torch.Tensor:
        batch = self._batch
        if self._tiles is None:
            self._tiles = self._cut(prefill_tile_tokens(query.shape[1], self._num_kv_heads))
        return paged_prefill(
            query,
            pool,
            batch.block_tables,
            batch.query_starts,
            batch.seq_lens,
            *self._tiles,
            window,
        )

    def _plan_decode(self, window: int | None) -> DecodePlan:
        seq_lens = self._batch.seq_lens
        target = -(-self._shape.pieces * self._num_processors // self._num_kv_heads)
        plan = DecodePlan.allocate(seq_lens.shape[0], target, seq_lens.device)
        cascade = self._cascade if window is None else None
        starts = None if cascade is None else cascade.starts(seq_lens.shape[0])
        plan_decode(seq_lens, plan, window, starts)
        return plan

    def _workspace(self, query: torch.Tensor, plan: DecodePlan) -> DecodeWorkspace:
        """One for each batch size: its counters stay 0 between steps."""
        num_sequences, num_heads, head_dim = query.shape
        if num_sequences not in self._workspaces:
            self._workspaces[num_sequences] = DecodeWorkspace.allocate(
                num_pieces=plan.pieces.shape[0],
                num_sequences=num_sequences,
                num_heads=num_heads,
                num_kv_heads=self._num_kv_heads,
                head_dim=head_dim,
                device=query.device,
            )
        return self._workspaces[num_sequences]

    def _cut(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sequence and the first new token of every tile."""
        tiles = [
            (sequence, first)
            for sequence, query_len in enumerate(self._batch.query_lens)
            for first in range(0, query_len, step)
        ]
        numbers = torch.tensor(tiles, dtype=torch.int32).to(self._batch.seq_lens.device)
        # Copies also of a single tile, whose second number alone would not be aligned to 16 bytes:
        # Triton compiles anew for that.
        sequences, firsts = (
            numbers[:, place].clone(memory_format=torch.contiguous_format) for place in range(2)
        )
        return sequences, firsts
