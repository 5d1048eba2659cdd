"""Decode attention with shared prefixes against the plainest attention, which knows none."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from engine.attention.cascade import Cascade
from engine.attention.cascade_plan import plan_cascade
from engine.attention.prefix_groups import PrefixGroups
from engine.attention.reference import ReferenceAttention
from engine.attention.triton_backend import TritonAttention
from engine.batch import ForwardBatch
from engine.kernels.cuda.launch import Gpu, assuming
from engine.kernels.cuda.paged_prefix import PrefixResults, paged_prefix, paged_prefix_torch
from engine.kernels.cuda.prefix_shape import PrefixShape, prefix_unit
from engine.kv_cache import KvCache
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.engine.attention_cases import CPU, make_model, make_pool, scattered_blocks
from tests.engine.kernels.cuda.test_attention_kernels import (
    HALF,
    SHAPES,
    TOLERANCE,
    reference_output,
)

BLOCK = 16
NUM_BLOCKS = 800
SMALL = PrefixShape(16, 32, 4, 1, 1)


@dataclass(frozen=True, slots=True)
class Family:
    """Sequences that share ``shared`` blocks, and have so many tokens for themselves; ``inner``
    blocks more are shared by the first two."""

    shared: int
    owns: Sequence[int]
    inner: int = 0


CASES = {
    "one group": [Family(16, [1, 20, 300])],
    "a group and loners": [Family(0, [40]), Family(8, [5, 6]), Family(0, [1])],
    "two groups of several lengths": [Family(24, [1, 1, 1]), Family(9, [33, 70])],
    "a prefix in a prefix": [Family(8, [17, 2, 200, 1], inner=8)],
    "none": [Family(3, [9, 9])],
}


def make_requests(families: Sequence[Family]) -> list[Request]:
    blocks = scattered_blocks(NUM_BLOCKS)
    requests = []
    for family in families:
        shared = [blocks.pop() for _ in range(family.shared)]
        inner = [blocks.pop() for _ in range(family.inner)]
        for place, own in enumerate(family.owns):
            start = [*shared, *(inner if place < 2 else ())]
            table = [*start, *(blocks.pop() for _ in range(-(-own // BLOCK)))]
            requests.append(request(table, len(start) * BLOCK + own))
    return requests


def request(table: list[int], num_tokens: int) -> Request:
    return Request(
        request_id="r",
        token_ids=[0] * num_tokens,
        num_prompt_tokens=1,
        params=SamplingParams(),
        block_table=table,
        num_computed_tokens=num_tokens - 1,
    )


def make_step(requests: Sequence[Request]) -> ForwardBatch:
    """A step in which each brings its last token; what the pool holds of it is random."""
    lens = torch.tensor([each.num_tokens for each in requests])
    width = max(len(each.block_table) for each in requests)
    tables = [each.block_table + [0] * (width - len(each.block_table)) for each in requests]
    number = len(requests)
    return ForwardBatch(
        token_ids=torch.zeros(number, dtype=torch.int64),
        positions=lens - 1,
        slot_blocks=torch.zeros(number, dtype=torch.int64),
        slot_offsets=torch.zeros(number, dtype=torch.int64),
        query_starts=torch.arange(number + 1),
        seq_lens=lens,
        block_tables=torch.tensor(tables),
        logit_indices=torch.arange(number),
        query_lens=(1,) * number,
        context_lens=tuple((lens - 1).tolist()),
    )


def planned(
    pool: KvCache, requests: Sequence[Request], num_heads: int, shape: PrefixShape | None
) -> Cascade:
    """With room for two sequences more, as in a bucket that is not full."""
    cascade = Cascade(pool, num_heads, len(requests) + 2, shape)
    unit = prefix_unit(BLOCK)
    prefixes = PrefixGroups(BLOCK, unit, lambda members, tokens: True).update(requests)
    words = torch.zeros_like(cascade.words, device=CPU)
    plan = plan_cascade(prefixes, len(requests), cascade.limits)
    end = cascade.pack(plan, words.numpy())
    cascade.words[:end] = words[:end]
    return cascade


def make_query(number: int, pool: KvCache, num_heads: int) -> torch.Tensor:
    shape = (number, num_heads, pool.tensor.shape[-1])
    query = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    return query.to(pool.tensor.device, pool.tensor.dtype)


@pytest.mark.parametrize("families", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(
    ("shape", "dtype"), [(SHAPES[0], torch.float32), (SHAPES[0], HALF), (SHAPES[2], torch.float32)]
)
def test_a_step_with_shared_prefixes_equals_the_reference(
    families: list[Family],
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Twice with one plan: what a layer leaves behind must not disturb the next."""
    num_heads, num_kv_heads, head_dim = shape
    model = make_model(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    pool = make_pool(model, num_blocks=NUM_BLOCKS, dtype=dtype, block_size=BLOCK, device=device)
    requests = make_requests(families)
    batch = make_step(requests).to(device)
    query = make_query(len(requests), pool, num_heads)
    cascade = planned(pool, requests, num_heads, SMALL)
    attention = TritonAttention(pool)
    tables = batch.block_tables.int().flatten()
    stride = torch.tensor([batch.block_tables.shape[1]], dtype=torch.int32, device=device)
    attention.plan_captured(batch, tables, stride, cascade)
    expected = reference_output(pool, batch, query, None)
    for _ in range(2):
        torch.testing.assert_close(
            attention.run(1, query).cpu(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )


def test_a_layer_with_a_window_attends_by_itself(device: torch.device) -> None:
    pool = make_pool(
        make_model(),
        num_blocks=NUM_BLOCKS,
        dtype=torch.float32,
        block_size=BLOCK,
        device=device,
    )
    requests = make_requests(CASES["one group"])
    batch = make_step(requests).to(device)
    query = make_query(len(requests), pool, 6)
    attention = TritonAttention(pool)
    tables = batch.block_tables.int().flatten()
    stride = torch.tensor([batch.block_tables.shape[1]], dtype=torch.int32, device=device)
    attention.plan_captured(batch, tables, stride, planned(pool, requests, 6, SMALL))
    for window in (None, 20, 290):
        expected = reference_output(pool, batch, query, window)
        actual = attention.run(1, query, window).cpu()
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("programs", [1, 3, 16])
def test_prefixes_equal_their_twin_however_many_programs_there_are(
    programs: int, device: torch.device
) -> None:
    """More programs cut the prefixes into more pieces."""
    pool = make_pool(
        make_model(),
        num_blocks=NUM_BLOCKS,
        dtype=torch.float32,
        block_size=BLOCK,
        device=device,
    )
    requests = make_requests([Family(40, [1] * 6), Family(9, [33, 70])])
    batch = make_step(requests).to(device)
    query = make_query(len(requests), pool, 6)
    with assuming(Gpu((8, 0), programs)):
        cascade = planned(pool, requests, 6, SMALL)
    work = cascade.work(len(requests))
    tables = batch.block_tables.int().flatten()
    stride = torch.tensor([batch.block_tables.shape[1]], dtype=torch.int32, device=device)
    sizes = (cascade.limits.slots, 6)
    actual, expected = (
        PrefixResults(
            work.slots,
            torch.zeros(*sizes, pool.tensor.shape[-1], device=device),
            torch.zeros(*sizes, 2, device=device),
        )
        for _ in range(2)
    )
    layer = pool.tensor[:, :, 1]
    places = (query, layer, tables, stride, work)
    paged_prefix(*places, actual, SMALL, programs)
    paged_prefix_torch(*places, expected)
    assert int(work.slots[:, 1].sum()) >= len(requests)
    torch.testing.assert_close(actual.weights, expected.weights, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(actual.values, expected.values, atol=1e-4, rtol=1e-5)


def test_prefixes_and_own_parts_merged_by_the_twins_are_flat_attention() -> None:
    """In float32, by torch alone: the sums are those of the reference in another order."""
    pool = make_pool(make_model(), num_blocks=NUM_BLOCKS, dtype=torch.float32, block_size=BLOCK)
    requests = make_requests(CASES["a prefix in a prefix"])
    batch, query = make_step(requests), make_query(len(requests), pool, 6)
    work = planned(pool, requests, 6, SMALL).work(len(requests))
    number = int(work.slots.sum(1).max()) + len(requests)
    # The own part of each sequence goes to a slot of its own, behind the others.
    results = PrefixResults(work.slots, torch.zeros(number, 6, 16), torch.zeros(number, 6, 2))
    tables, stride = batch.block_tables.int().flatten(), torch.tensor([batch.block_tables.shape[1]])
    layer = pool.tensor[:, :, 1]
    paged_prefix_torch(query, layer, tables, stride, work, results)
    reference = ReferenceAttention(pool)
    reference.plan(batch)
    expected = reference.run(1, query)
    for sequence, (first, count) in enumerate(work.slots.tolist()):
        begin, end = int(work.starts[sequence]), int(batch.seq_lens[sequence])
        values, weights = own_part(query[sequence], layer, batch.block_tables[sequence], begin, end)
        every = torch.cat((results.values[first : first + count], values[None]))
        logs = torch.cat((results.weights[first : first + count], weights[None]))
        factors = (logs[..., 0] - logs[..., 0].amax(0)).exp2()
        merged = (every * factors[..., None]).sum(0) / (logs[..., 1] * factors).sum(0)[:, None]
        torch.testing.assert_close(merged, expected[sequence], atol=2e-6, rtol=2e-6)


def own_part(
    query: torch.Tensor, layer: torch.Tensor, table: torch.Tensor, begin: int, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As a slot: values (heads, dim) and weights (heads, 2)."""
    tokens = torch.arange(begin, end)
    keys, values = (layer[table[tokens // BLOCK], :, kind, tokens % BLOCK] for kind in (0, 1))
    keys, values = (each.repeat_interleave(3, dim=1) for each in (keys, values))
    scores = torch.einsum("hd,thd->ht", query, keys) * 16**-0.5 * 1.4426950408889634
    highest = scores.amax(-1)
    weights = (scores - highest[:, None]).exp2()
    attended = torch.einsum("ht,thd->hd", weights, values)
    return attended, torch.stack((highest, weights.sum(-1)), dim=-1)
