"""Causal attention of several new tokens a sequence over the paged pool."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import next_power_of_two, pdl_options


@triton.jit
def paged_prefill_kernel(
    query,
    pool,
    tables,
    table_stride,
    query_starts,
    seq_lens,
    tile_sequences,
    tile_firsts,
    output,
    scale,
    window,
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
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    sequence = tl.load(tile_sequences + tile)
    first_token = tl.load(query_starts + sequence).to(tl.int32)
    query_len = tl.load(query_starts + sequence + 1).to(tl.int32) - first_token
    length = tl.load(seq_lens + sequence).to(tl.int32)
    context = length - query_len
    # A row is one query head of one token; rows of a token are neighbours.
    row = tl.load(tile_firsts + tile) * GROUP + tl.arange(0, ROWS)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    exists = token < query_len
    position = context + token
    place = tl.arange(0, DIM_BLOCK)
    inside = exists[:, None] & (place[None, :] < HEAD_DIM)
    place_of_row = (first_token + token).to(tl.int64)
    q = tl.load(
        query + place_of_row[:, None] * query_stride + head[:, None] * HEAD_DIM + place[None, :],
        mask=inside,
        other=0.0,
    )
    highest = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    value = tl.zeros((ROWS, DIM_BLOCK), tl.float32)
    last = tl.max(tl.where(exists, position, 0))
    oldest = tl.maximum(tl.min(tl.where(exists, position, last)) - window + 1, 0)
    table = tables + sequence.to(tl.int64) * table_stride
    keys = pool + kv_head * head_stride + place[None, :]
    for first in tl.range(oldest // TILE * TILE, last + 1, TILE, num_stages=STAGES):
        key = first + tl.arange(0, TILE)
        block = tl.load(table + key // BLOCK_SIZE, mask=key <= last, other=0).to(tl.int64)
        offset = block * block_stride + (key % BLOCK_SIZE) * HEAD_DIM
        known = place[None, :] < HEAD_DIM
        k = tl.load(keys + offset[:, None], mask=known, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        seen = (key[None, :] <= position[:, None]) & (key[None, :] > position[:, None] - window)
        score = tl.where(seen, score, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(score, axis=1))
        weight = tl.exp2(score - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weight, axis=1)
        v = tl.load(keys + kind_stride + offset[:, None], mask=known, other=0.0)
        value = value * shrink[:, None]
        value = tl.dot(weight.to(v.dtype), v, value, input_precision=PRECISION)
        highest = new_highest
    target = place_of_row * (NUM_KV_HEADS * GROUP) + head
    result = value / tl.where(exists, total, 1.0)[:, None]
    tl.store(
        output + target[:, None] * HEAD_DIM + place[None, :],
        result.to(output.dtype.element_ty),
        mask=inside,
    )


def prefill_tile_tokens(num_heads: int, num_kv_heads: int) -> int:
    """Tokens that one program attends with."""
    group = num_heads // num_kv_heads
    return max(_rows(group) // group, 1)


def paged_prefill(
    query: torch.Tensor,
    pool: torch.Tensor,
    tables: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    tile_sequences: torch.Tensor,
    tile_firsts: torch.Tensor,
    window: int | None,
) -> torch.Tensor:
    """Attends with ``query`` (T, heads, head_dim), whose rows may lie apart; contiguous result.

    ``pool``: one layer, (block, kv head, 2, token, head_dim). ``tables``: (S, blocks) integers.
    Tile i covers ``prefill_tile_tokens`` tokens of sequence ``tile_sequences[i]`` from its new
    token ``tile_firsts[i]`` on; together they cover all.
    """
    _, num_heads, head_dim = query.shape
    _, num_kv_heads, _, block_size, _ = pool.shape
    group = num_heads // num_kv_heads
    assert query.stride()[1:] == (head_dim, 1) and pool.stride()[3:] == (head_dim, 1)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    wide = query.dtype == torch.float32 or head_dim > 128
    paged_prefill_kernel[(tile_sequences.shape[0], num_kv_heads)](
        query,
        pool,
        tables,
        tables.stride(0),
        query_starts,
        seq_lens,
        tile_sequences,
        tile_firsts,
        output,
        head_dim**-0.5 * 1.4426950408889634,
        (1 << 30) if window is None else window,
        query.stride(0),
        pool.stride(0),
        pool.stride(1),
        pool.stride(2),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        ROWS=_rows(group),
        HEAD_DIM=head_dim,
        DIM_BLOCK=max(16, next_power_of_two(head_dim)),
        BLOCK_SIZE=block_size,
        TILE=32 if wide else 64,
        STAGES=1 if wide else 2,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4,
        **pdl_options(),
    )
    return output


def _rows(group: int) -> int:
    return max(64, next_power_of_two(group))
