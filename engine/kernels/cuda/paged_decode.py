"""Attention of sequences that bring one token each, over the paged pool, in one launch.

A program attends with all query heads of a KV head to one piece of one sequence. The last program
of a sequence and head to finish merges what the others left.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.decode_plan import DecodePlan
from engine.kernels.cuda.decode_shape import DecodeShape
from engine.kernels.cuda.launch import next_power_of_two, pdl_options
from engine.kernels.cuda.paged_prefix import PrefixResults


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """What pieces leave for the merge; ``counters`` are all 0 between launches.

    ``values``: (pieces, heads, head_dim) float32; ``weights``: (pieces, heads, 2) float32, the
    highest score (base 2) and the sum; ``counters``: (sequences, kv heads) int32.
    """

    values: torch.Tensor
    weights: torch.Tensor
    counters: torch.Tensor

    @classmethod
    def allocate(
        cls,
        *,
        num_pieces: int,
        num_sequences: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
    ) -> "DecodeWorkspace":
        return cls(
            torch.empty(num_pieces, num_heads, head_dim, device=device),
            torch.empty(num_pieces, num_heads, 2, device=device),
            torch.zeros(num_sequences, num_kv_heads, dtype=torch.int32, device=device),
        )


@triton.jit
def _take_in_prefixes(
    highest,
    total,
    value,
    prefix_values,
    prefix_weights,
    first_slot,
    num_slots,
    head,
    row,
    place,
    inside,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """The running sums with those of so many slots, which ``paged_prefix`` left."""
    for slot in range(first_slot, first_slot + num_slots):
        theirs = (slot * (NUM_KV_HEADS * GROUP) + head).to(tl.int64)
        source = prefix_weights + theirs * 2
        their_highest = tl.load(source, mask=row < GROUP, other=0.0)
        their_total = tl.load(source + 1, mask=row < GROUP, other=0.0)
        their_value = tl.load(
            prefix_values + theirs[:, None] * HEAD_DIM + place[None, :], mask=inside, other=0.0
        )
        best = tl.maximum(highest, their_highest)
        shrink = tl.exp2(highest - best)
        factor = tl.exp2(their_highest - best)
        total = total * shrink + their_total * factor
        value = value * shrink[:, None] + their_value * factor[:, None]
        highest = best
    return highest, total, value


@triton.jit
def _merge_pieces(
    target,
    values,
    weights,
    kv_head,
    first_piece,
    num_pieces,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MERGE: tl.constexpr,
    MERGE_WIDTH: tl.constexpr,
):
    """What all pieces of a sequence left for a KV head, MERGE of them at a time, to ``target``."""
    # The query heads of a KV head lie side by side: a piece is one row of them all.
    column = tl.arange(0, MERGE_WIDTH)
    is_value = column < GROUP * HEAD_DIM
    merged_highest = tl.full((MERGE_WIDTH,), -1e30, tl.float32)
    merged_total = tl.zeros((MERGE_WIDTH,), tl.float32)
    merged = tl.zeros((MERGE_WIDTH,), tl.float32)
    for first in range(0, num_pieces, MERGE):
        other = first + tl.arange(0, MERGE)
        exists = (other < num_pieces)[:, None] & is_value[None, :]
        theirs = ((first_piece + other) * NUM_KV_HEADS + kv_head).to(tl.int64) * GROUP
        source = weights + (theirs[:, None] + column[None, :] // HEAD_DIM) * 2
        their_highest = tl.load(source, mask=exists, other=-1e30, cache_modifier=".cg")
        their_total = tl.load(source + 1, mask=exists, other=0.0, cache_modifier=".cg")
        their_value = tl.load(
            values + theirs[:, None] * HEAD_DIM + column[None, :],
            mask=exists,
            other=0.0,
            cache_modifier=".cg",
        )
        best = tl.maximum(merged_highest, tl.max(their_highest, axis=0))
        shrink = tl.exp2(merged_highest - best)
        factor = tl.exp2(their_highest - best[None, :])
        merged_total = merged_total * shrink + tl.sum(their_total * factor, axis=0)
        merged = merged * shrink + tl.sum(their_value * factor, axis=0)
        merged_highest = best
    result = merged / tl.where(is_value, merged_total, 1.0)
    tl.store(target + column, result.to(target.dtype.element_ty), mask=is_value)


@triton.jit
def paged_decode_kernel(
    query,
    pool,
    tables,
    table_stride,
    pieces,
    output,
    values,
    weights,
    counters,
    slots,
    prefix_values,
    prefix_weights,
    scale,
    query_stride,
    block_stride,
    head_stride,
    kind_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    MERGE: tl.constexpr,
    MERGE_WIDTH: tl.constexpr,
    SHARED: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    # Heads first: those of a block lie in one page of the memory, and run at the same time.
    kv_head = tl.program_id(0)
    piece = tl.program_id(1)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    sequence = tl.load(pieces + piece * 5)
    begin = tl.load(pieces + piece * 5 + 1)
    end = tl.load(pieces + piece * 5 + 2)
    first_piece = tl.load(pieces + piece * 5 + 3)
    num_pieces = tl.load(pieces + piece * 5 + 4)
    stride = tl.load(table_stride)
    if sequence < 0:
        return

    row = tl.arange(0, ROWS)
    place = tl.arange(0, DIM_BLOCK)
    head = kv_head * GROUP + row
    inside = (row[:, None] < GROUP) & (place[None, :] < HEAD_DIM)
    q = tl.load(
        query + sequence.to(tl.int64) * query_stride + head[:, None] * HEAD_DIM + place[None, :],
        mask=inside,
        other=0.0,
    )
    highest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    value = tl.zeros((ROWS, DIM_BLOCK), tl.float32)
    if SHARED:
        # The first piece goes on from what was attended to together with others.
        first_slot = tl.load(slots + sequence * 2)
        num_slots = tl.where(piece == first_piece, tl.load(slots + sequence * 2 + 1), 0)
        highest, total, value = _take_in_prefixes(
            highest, total, value, prefix_values, prefix_weights, first_slot, num_slots,
            head, row, place, inside, NUM_KV_HEADS, GROUP, HEAD_DIM,
        )  # fmt: skip
    table = tables + sequence.to(tl.int64) * stride
    keys = pool + kv_head * head_stride + place[None, :]
    for first in tl.range(begin, end, TILE, num_stages=STAGES):
        token = first + tl.arange(0, TILE)
        # Nothing is read past the end: a last tile that is mostly empty costs little.
        known = token[:, None] < end
        if HEAD_DIM != DIM_BLOCK:
            known = known & (place[None, :] < HEAD_DIM)
        block = tl.load(table + token // BLOCK_SIZE, mask=token < end, other=0).to(tl.int64)
        offset = block * block_stride + (token % BLOCK_SIZE) * HEAD_DIM
        k = tl.load(keys + offset[:, None], mask=known, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        score = tl.where((token < end)[None, :], score, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(score, axis=1))
        weight = tl.exp2(score - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weight, axis=1)
        v = tl.load(keys + kind_stride + offset[:, None], mask=known, other=0.0)
        value = value * shrink[:, None]
        value = tl.dot(weight.to(v.dtype), v, value, input_precision=PRECISION)
        highest = new_highest

    target = output + (sequence.to(tl.int64) * NUM_KV_HEADS + kv_head) * (GROUP * HEAD_DIM)
    if num_pieces == 1:
        result = (value / total[:, None]).to(output.dtype.element_ty)
        tl.store(target + row[:, None] * HEAD_DIM + place[None, :], result, mask=inside)
    else:
        own = (piece * NUM_KV_HEADS * GROUP + head).to(tl.int64)
        tl.store(values + own[:, None] * HEAD_DIM + place[None, :], value, mask=inside)
        tl.store(weights + own * 2, highest, mask=row < GROUP)
        tl.store(weights + own * 2 + 1, total, mask=row < GROUP)
        # Every thread's stores must be out before one thread says so.
        tl.debug_barrier()
        counter = counters + sequence * NUM_KV_HEADS + kv_head
        num_done = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
        if num_done == num_pieces - 1:
            tl.debug_barrier()
            tl.store(counter, 0)
            _merge_pieces(
                target, values, weights, kv_head, first_piece, num_pieces,
                NUM_KV_HEADS, GROUP, HEAD_DIM, MERGE, MERGE_WIDTH,
            )  # fmt: skip


def paged_decode(
    query: torch.Tensor,
    pool: torch.Tensor,
    tables: torch.Tensor,
    table_stride: torch.Tensor,
    plan: DecodePlan,
    workspace: DecodeWorkspace,
    shape: DecodeShape,
    prefix: PrefixResults | None = None,
) -> torch.Tensor:
    """Attends with ``query`` (S, heads, head_dim), whose rows may lie apart; contiguous result.

    ``pool``: one layer, (block, kv head, 2, token, head_dim). ``tables``: int32, the block table
    of sequence s from place ``s * table_stride[0]`` on. ``plan``: made for the sequences' lengths,
    the new token counted. ``prefix``: what ``paged_prefix`` left of the tokens before the plan's.
    """
    _, num_heads, head_dim = query.shape
    _, num_kv_heads, _, block_size, _ = pool.shape
    group = num_heads // num_kv_heads
    assert query.stride()[1:] == (head_dim, 1) and pool.stride()[3:] == (head_dim, 1)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    paged_decode_kernel[(num_kv_heads, plan.pieces.shape[0])](
        query,
        pool,
        tables,
        table_stride,
        plan.pieces,
        output,
        workspace.values,
        workspace.weights,
        workspace.counters,
        workspace.counters if prefix is None else prefix.slots,
        workspace.values if prefix is None else prefix.values,
        workspace.weights if prefix is None else prefix.weights,
        head_dim**-0.5 * 1.4426950408889634,
        query.stride(0),
        pool.stride(0),
        pool.stride(1),
        pool.stride(2),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        ROWS=max(16, next_power_of_two(group)),
        HEAD_DIM=head_dim,
        DIM_BLOCK=max(16, next_power_of_two(head_dim)),
        BLOCK_SIZE=block_size,
        TILE=shape.tile,
        STAGES=shape.num_stages,
        MERGE=shape.merged,
        MERGE_WIDTH=next_power_of_two(group * head_dim),
        SHARED=prefix is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=shape.num_warps,
        **pdl_options(),
    )
    return output
