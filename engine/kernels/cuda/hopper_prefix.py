"""``paged_prefix`` on Hopper: softmax beside products, in Gluon, where who waits for whom is said.

A warp of its own loads blocks of K and V into shared memory; two groups of four warps attend, each
with half of the rows. They share nothing but what is loaded, so that one may take exponentials
while the tensor cores work for the other; and within a group the products of one tile run beside
the softmax of the next. In Triton's own loop barriers keep all warps in step.

No interpreter runs Gluon: it is compiled without a GPU, and compared with ``paged_prefix_torch``
on one.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.paged_prefix import PrefixResults, PrefixWork
from engine.kernels.cuda.prefix_shape import PrefixShape

# Triton 3.7 and later name it so; of all threads of a group.
_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
# What the tensor cores read by themselves: rows of 128 bytes, swizzled, so a head in pieces of 64.
_PIECE = gl.constexpr(64)
_SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
# Of the 65536 of a multiprocessor: a group's thread holds a row of scores, of weights and of
# values; the loading warp holds addresses.
_GROUP_REGISTERS = gl.constexpr(240)
_LOADER_REGISTERS = gl.constexpr(24)


# Of K, and of V: (stages, tile, head_dim) in shared memory, and of each stage the barriers that say
# loaded and empty. Barriers count by turns of even and odd numbers.
@gluon.jit
def _load_tile(pool, rows, first_row, ring, number, BLOCKS: gl.constexpr):
    """K or V of the tile of this number, when both groups are done with what is in its place."""
    tiles, loaded, empty = ring
    STAGES: gl.constexpr = tiles.shape[0]
    TILE: gl.constexpr = tiles.shape[1]
    PIECES: gl.constexpr = tiles.shape[2] // _PIECE
    stage = number % STAGES
    mbarrier.wait(empty.index(stage), number // STAGES & 1 ^ 1)
    mbarrier.expect(loaded.index(stage), TILE * tiles.shape[2] * 2)
    # As shared memory has it: all rows of the first piece of the head, then those of the next.
    boxes = tiles.index(stage)._reinterpret(
        gl.bfloat16, [PIECES * BLOCKS, TILE // BLOCKS, _PIECE], _SHARED
    )
    for block in gl.static_range(BLOCKS):
        for piece in gl.static_range(PIECES):
            tma.async_copy_global_to_shared(
                pool,
                [rows[block] + first_row, piece * _PIECE],
                loaded.index(stage),
                boxes.index(piece * BLOCKS + block),
            )


@gluon.jit
def _load_prefixes(
    work, pool, loads, keys, values, NUM_KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr
):
    """The loading warp: the tiles of every unit, one after the other, through all stages."""
    items, _, _, num_units = work
    tables, table_stride, block_rows, head_rows, kind_rows = loads
    TILE: gl.constexpr = keys[0].shape[1]
    BLOCKS: gl.constexpr = TILE // BLOCK_SIZE
    number = 0
    for unit in range(gl.program_id(0), num_units, gl.num_programs(0)):
        item = items + unit // NUM_KV_HEADS * 6
        table = tables + gl.load(item).to(gl.int64) * table_stride
        begin = gl.load(item + 1)
        end = gl.load(item + 2)
        head_row = unit % NUM_KV_HEADS * head_rows
        for first in range(begin, end, TILE):
            rows = ()
            for block in gl.static_range(BLOCKS):
                entry = gl.load(table + first // BLOCK_SIZE + block)
                rows = rows + (entry * block_rows + head_row,)  # type: ignore[assignment]  # noqa: RUF005
            _load_tile(pool, rows, 0, keys, number, BLOCKS)
            _load_tile(pool, rows, kind_rows, values, number, BLOCKS)
            number += 1


@gluon.jit
def _begin_scores(query, keys, number, zero):
    """The products of the query with the K of a tile, under way."""
    tiles, loaded, _ = keys
    STAGES: gl.constexpr = tiles.shape[0]
    mbarrier.wait(loaded.index(number % STAGES), number // STAGES & 1)
    tile = tiles.index(number % STAGES).permute((1, 0))
    return warpgroup_mma(query, tile, zero, use_acc=False, is_async=True)


@gluon.jit
def _begin_products(weight, values, number, value):
    """``value`` and the products of the weights with the V of a tile, under way."""
    tiles, loaded, _ = values
    STAGES: gl.constexpr = tiles.shape[0]
    mbarrier.wait(loaded.index(number % STAGES), number // STAGES & 1)
    return warpgroup_mma(weight, tiles.index(number % STAGES), value, is_async=True)


@gluon.jit
def _leave_tile(ring, number):
    """This group has read the tile of this number."""
    tiles, _, empty = ring
    mbarrier.arrive(empty.index(number % tiles.shape[0]), count=1)


@gluon.jit
def _soften(score, highest, total, scale):
    """One tile on: weights, what earlier ones shrink by, highest score (base 2) and sum."""
    new_highest = gl.maximum(highest, gl.max(score, axis=1) * scale)
    weight = gl.exp2(score * scale - new_highest[:, None])
    shrink = gl.exp2(highest - new_highest)
    return weight, shrink, new_highest, total * shrink + gl.sum(weight, axis=1)


@gluon.jit
def _attend(
    half,
    rows,
    work,
    queries,
    found,
    keys,
    values,
    NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
):
    """A group of four warps: its half of the rows of every unit; ``rows`` is room for them."""
    items, members, slots, num_units = work
    query, query_stride, scale = queries
    results, weights = found
    TILE: gl.constexpr = keys[0].shape[1]
    ROWS: gl.constexpr = rows.shape[0]
    HEAD_DIM: gl.constexpr = rows.shape[1]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    VALUES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, VALUES, 2)
    SCORE_ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    VALUE_ROWS: gl.constexpr = gl.SliceLayout(1, VALUES)
    QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    query_row = half * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, QUERY))
    query_place = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, QUERY))
    row = half * ROWS + gl.arange(0, ROWS, VALUE_ROWS)
    place = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, VALUES))
    zero = gl.zeros([ROWS, TILE], gl.float32, SCORES)
    number = 0
    for unit in range(gl.program_id(0), num_units, gl.num_programs(0)):
        kv_head = unit % NUM_KV_HEADS
        item = items + unit // NUM_KV_HEADS * 6
        begin = gl.load(item + 1)
        end = gl.load(item + 2)
        own_members = members + gl.load(item + 3)
        num_members = gl.load(item + 4)
        slot = gl.load(item + 5)
        exists = query_row // GROUP < num_members
        sequence = gl.load(own_members + query_row // GROUP, mask=exists, other=0)
        source = query + sequence.to(gl.int64) * query_stride
        source += (kv_head * GROUP + query_row % GROUP) * HEAD_DIM
        rows.store(gl.load(source[:, None] + query_place[None, :], mask=exists[:, None], other=0.0))
        # The tensor cores read shared memory on a way of their own, the rows of all four warps.
        fence_async_shared()
        _barrier()

        highest = gl.full([ROWS], -float("inf"), gl.float32, SCORE_ROWS)
        total = gl.zeros([ROWS], gl.float32, SCORE_ROWS)
        value = gl.zeros([ROWS, HEAD_DIM], gl.float32, VALUES)
        score = _begin_scores(rows, keys, number, zero)
        score = warpgroup_mma_wait(0, deps=(score,))
        _leave_tile(keys, number)
        weight, _, highest, total = _soften(score, highest, total, scale)
        for _ in range(begin + TILE, end, TILE):
            operand = gl.convert_layout(weight.to(gl.bfloat16), WEIGHTS)
            score = _begin_scores(rows, keys, number + 1, zero)
            product = _begin_products(operand, values, number, value)
            # The scores are there; the products of the tile before run beside the softmax.
            score = warpgroup_mma_wait(1, deps=(score,))
            _leave_tile(keys, number + 1)
            weight, shrink, highest, total = _soften(score, highest, total, scale)
            value = warpgroup_mma_wait(0, deps=(product,))
            _leave_tile(values, number)
            value = value * gl.convert_layout(shrink, VALUE_ROWS)[:, None]
            number += 1
        operand = gl.convert_layout(weight.to(gl.bfloat16), WEIGHTS)
        product = _begin_products(operand, values, number, value)
        value = warpgroup_mma_wait(0, deps=(product,))
        _leave_tile(values, number)
        number += 1

        exists = row // GROUP < num_members
        sequence = gl.load(own_members + row // GROUP, mask=exists, other=0)
        own_slot = gl.load(slots + sequence * 2, mask=exists, other=0) + slot
        head = kv_head * GROUP + row % GROUP
        target = (own_slot * (NUM_KV_HEADS * GROUP) + head).to(gl.int64)
        gl.store(results + target[:, None] * HEAD_DIM + place[None, :], value, mask=exists[:, None])
        gl.store(weights + target * 2, gl.convert_layout(highest, VALUE_ROWS), mask=exists)
        gl.store(weights + target * 2 + 1, gl.convert_layout(total, VALUE_ROWS), mask=exists)


@gluon.jit
def _make_ring(STAGES: gl.constexpr, TILE: gl.constexpr, HEAD_DIM: gl.constexpr):
    tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TILE, HEAD_DIM], _SHARED)
    loaded = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(loaded.index(stage), count=1)
        # Both groups must be done with a tile.
        mbarrier.init(empty.index(stage), count=2)
    return tiles, loaded, empty


@gluon.jit
def hopper_prefix_kernel(
    query, pool, tables, table_stride, num_items, items, members, slots, results, weights, scale,
    query_stride, block_rows, head_rows, kind_rows, NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr, ROWS: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    TILE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    keys = _make_ring(STAGES, TILE, HEAD_DIM)
    values = _make_ring(STAGES, TILE, HEAD_DIM)
    first_rows = gl.allocate_shared_memory(gl.bfloat16, [ROWS // 2, HEAD_DIM], _SHARED)
    other_rows = gl.allocate_shared_memory(gl.bfloat16, [ROWS // 2, HEAD_DIM], _SHARED)
    fence_async_shared()
    gdc_wait()
    gdc_launch_dependents()
    num_units = gl.load(num_items) * NUM_KV_HEADS
    work = items, members, slots, num_units
    loads = tables, gl.load(table_stride), block_rows, head_rows, kind_rows
    queries = query, query_stride, scale
    found = results, weights
    gl.warp_specialize(
        [
            (_attend, (0, first_rows, work, queries, found, keys, values, NUM_KV_HEADS, GROUP)),
            (_attend, (1, other_rows, work, queries, found, keys, values, NUM_KV_HEADS, GROUP)),
            (_load_prefixes, (work, pool, loads, keys, values, NUM_KV_HEADS, BLOCK_SIZE)),
        ],
        [4, 1],
        [_GROUP_REGISTERS, _LOADER_REGISTERS],
    )


def hopper_prefix(
    query: torch.Tensor,
    pool: torch.Tensor,
    tables: torch.Tensor,
    table_stride: torch.Tensor,
    work: PrefixWork,
    results: PrefixResults,
    shape: PrefixShape,
    num_programs: int,
) -> None:
    """As ``paged_prefix``, for bfloat16 and what ``prefix_shape`` gives it."""
    _, num_heads, head_dim = query.shape
    _, num_kv_heads, _, block_size, _ = pool.shape
    group = num_heads // num_kv_heads
    assert query.stride()[1:] == (head_dim, 1) and pool.stride()[3:] == (head_dim, 1)
    assert pool.dtype == query.dtype == torch.bfloat16 and group <= shape.rows, (group, shape)
    # The whole pool from this layer on, as vectors: a box is a block's, 64 elements wide.
    ends = ((size - 1) * stride for size, stride in zip(pool.shape, pool.stride(), strict=True))
    num_vectors = (1 + sum(ends)) // head_dim
    assert num_vectors < 1 << 31, pool.shape
    vectors = TensorDescriptor(
        pool, [num_vectors, head_dim], [head_dim, 1], [block_size, _PIECE.value], _SHARED.value
    )
    hopper_prefix_kernel[(num_programs,)](
        query,
        vectors,
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
        pool.stride(0) // head_dim,
        pool.stride(1) // head_dim,
        pool.stride(2) // head_dim,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        ROWS=shape.rows,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE=shape.tile,
        STAGES=shape.num_stages,
        num_warps=shape.num_warps,
        launch_pdl=True,
    )
