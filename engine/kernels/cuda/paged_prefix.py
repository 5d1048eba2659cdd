"""Attention of decoding sequences to the tokens that they share, over the paged pool.

The query heads that share a KV head, of many sequences, are the rows of one matrix, so that shared
tokens are read once for all of them. A program takes items of work in turn, as many as there are: a
captured step stays right while they change. What items leave ``paged_decode`` merges with what the
sequences have for themselves.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import next_power_of_two, pdl_options
from engine.kernels.cuda.prefix_shape import PrefixShape


@dataclass(frozen=True, slots=True)
class PrefixWork:
    """A CascadePlan on the device, int32 all: ``num_items`` (1,), ``items`` (N, 6), ``members``
    (M,), ``starts`` (S,), ``slots`` (S, 2)."""

    num_items: torch.Tensor
    items: torch.Tensor
    members: torch.Tensor
    starts: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefixResults:
    """``slots`` (S, 2) int32: a sequence's first slot and their number. Of each slot, float32,
    ``values`` (slots, heads, head_dim), not divided by the sum, and ``weights`` (slots, heads, 2),
    the highest score (base 2) and the sum."""

    slots: torch.Tensor
    values: torch.Tensor
    weights: torch.Tensor


@triton.jit
def paged_prefix_kernel(
    query,
    pool,
    tables,
    table_stride,
    num_items,
    items,
    members,
    slots,
    values,
    weights,
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
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    num_units = tl.load(num_items) * NUM_KV_HEADS
    stride = tl.load(table_stride)
    row = tl.arange(0, ROWS)
    place = tl.arange(0, DIM_BLOCK)
    known = place[None, :] < HEAD_DIM
    for unit in range(tl.program_id(0), num_units, tl.num_programs(0)):
        # Heads first: those of a block lie in one page of the memory, and run at the same time.
        kv_head = unit % NUM_KV_HEADS
        item = items + unit // NUM_KV_HEADS * 6
        owner = tl.load(item)
        begin = tl.load(item + 1)
        end = tl.load(item + 2)
        first_member = tl.load(item + 3)
        num_members = tl.load(item + 4)
        slot = tl.load(item + 5)
        exists = row // GROUP < num_members
        sequence = tl.load(members + first_member + row // GROUP, mask=exists, other=0)
        head = kv_head * GROUP + row % GROUP
        inside = exists[:, None] & known
        source = query + sequence.to(tl.int64) * query_stride + head * HEAD_DIM
        q = tl.load(source[:, None] + place[None, :], mask=inside, other=0.0)
        highest = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        value = tl.zeros((ROWS, DIM_BLOCK), tl.float32)
        table = tables + owner.to(tl.int64) * stride
        keys = pool + kv_head * head_stride + place[None, :]
        # Whole tiles: nothing is hidden from anybody.
        for first in tl.range(begin, end, TILE, num_stages=STAGES):
            token = first + tl.arange(0, TILE)
            block = tl.load(table + token // BLOCK_SIZE).to(tl.int64)
            offset = block * block_stride + (token % BLOCK_SIZE) * HEAD_DIM
            if HEAD_DIM == DIM_BLOCK:
                k = tl.load(keys + offset[:, None])
            else:
                k = tl.load(keys + offset[:, None], mask=known, other=0.0)
            score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            new_highest = tl.maximum(highest, tl.max(score, axis=1) * scale)
            weight = tl.exp2(score * scale - new_highest[:, None])
            shrink = tl.exp2(highest - new_highest)
            total = total * shrink + tl.sum(weight, axis=1)
            if HEAD_DIM == DIM_BLOCK:
                v = tl.load(keys + kind_stride + offset[:, None])
            else:
                v = tl.load(keys + kind_stride + offset[:, None], mask=known, other=0.0)
            value = value * shrink[:, None]
            value = tl.dot(weight.to(v.dtype), v, value, input_precision=PRECISION)
            highest = new_highest
        own = tl.load(slots + sequence * 2, mask=exists, other=0) + slot
        target = (own * (NUM_KV_HEADS * GROUP) + head).to(tl.int64)
        tl.store(values + target[:, None] * HEAD_DIM + place[None, :], value, mask=inside)
        tl.store(weights + target * 2, highest, mask=exists)
        tl.store(weights + target * 2 + 1, total, mask=exists)


def paged_prefix(
    query: torch.Tensor,
    pool: torch.Tensor,
    tables: torch.Tensor,
    table_stride: torch.Tensor,
    work: PrefixWork,
    results: PrefixResults,
    shape: PrefixShape,
    num_programs: int,
) -> None:
    """Fills the slots of ``results`` with what ``query`` (S, heads, head_dim), whose rows may lie
    apart, finds in the prefixes that ``work`` says.

    ``pool``: one layer, (block, kv head, 2, token, head_dim). ``tables``: int32, the block table
    of sequence s from place ``s * table_stride[0]`` on. Items begin and end at whole tiles.
    """
    if shape.specialized:
        from engine.kernels.cuda.hopper_prefix import hopper_prefix

        hopper_prefix(query, pool, tables, table_stride, work, results, shape, num_programs)
        return
    _, num_heads, head_dim = query.shape
    _, num_kv_heads, _, block_size, _ = pool.shape
    group = num_heads // num_kv_heads
    assert query.stride()[1:] == (head_dim, 1) and pool.stride()[3:] == (head_dim, 1)
    assert group <= shape.rows, (group, shape)
    paged_prefix_kernel[(num_programs,)](
        query,
        pool,
        tables,
        table_stride,
        work.num_items,
        work.items,
        work.members,
        results.slots,
        results.values,
        results.weights,
        head_dim**-0.5 * 1.4426950408889634,
        query.stride(0),
        pool.stride(0),
        pool.stride(1),
        pool.stride(2),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        ROWS=shape.rows,
        HEAD_DIM=head_dim,
        DIM_BLOCK=max(16, next_power_of_two(head_dim)),
        BLOCK_SIZE=block_size,
        TILE=shape.tile,
        STAGES=shape.num_stages,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=shape.num_warps,
        **pdl_options(),
    )


def paged_prefix_torch(
    query: torch.Tensor,
    pool: torch.Tensor,
    tables: torch.Tensor,
    table_stride: torch.Tensor,
    work: PrefixWork,
    results: PrefixResults,
) -> None:
    """The twin of ``paged_prefix``, in float32."""
    head_dim, num_kv_heads, block_size = query.shape[2], pool.shape[1], pool.shape[3]
    group = query.shape[1] // num_kv_heads
    number, stride = int(work.num_items), int(table_stride)
    for owner, begin, end, first, num_members, slot in work.items[:number].tolist():
        members = work.members[first : first + num_members].long()
        tokens = torch.arange(begin, end, device=query.device)
        blocks = tables[owner * stride + tokens // block_size].long()
        # (tokens, kv heads, head_dim)
        keys, values = (pool[blocks, :, kind, tokens % block_size].float() for kind in (0, 1))
        rows = query[members].float().unflatten(1, (num_kv_heads, group))
        scores = torch.einsum("mkgd,tkd->mkgt", rows, keys) * head_dim**-0.5 * 1.4426950408889634
        highest = scores.amax(-1)
        weights = (scores - highest[..., None]).exp2()
        target = results.slots[members, 0].long() + slot
        attended = torch.einsum("mkgt,tkd->mkgd", weights, values)
        results.values[target] = attended.flatten(1, 2)
        results.weights[target] = torch.stack((highest, weights.sum(-1)), dim=-1).flatten(1, 2)
