"""The fast backends against the plain one, on pools whose every unread byte would be noticed."""

import pytest
import torch

from engine.attention import grouping
from engine.attention.base import AttentionBackend
from engine.attention.invariant import InvariantAttention
from engine.attention.reference import ReferenceAttention
from engine.attention.select import create_attention
from engine.attention.torch_backend import TorchAttention
from engine.batch import ForwardBatch
from engine.kv_cache import KvCache
from tests.engine.attention_cases import make_batch, make_model, make_pool, scattered_blocks

# Largest absolute error of a weighted mean of standard normal values.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-2}

CASES = {
    "one token alone": [(1, 0)],
    "one token, one full block": [(1, 3)],
    "one token, first of a new block": [(1, 4)],
    "decode of mixed lengths": [(1, 0), (1, 130), (1, 7), (1, 64), (1, 31), (1, 129)],
    "prompt from the start": [(37, 0)],
    "chunk after a context": [(16, 45)],
    "chunk longer than a tile": [(150, 21)],
    "prompts, chunks and decode mixed": [(1, 50), (9, 0), (1, 3), (30, 17), (2, 100), (1, 0)],
}

ALL_CASES = pytest.mark.parametrize("lens", CASES.values(), ids=CASES.keys())
WINDOWS = pytest.mark.parametrize("window", [None, 1, 6, 40], ids=lambda w: f"window {w}")
BOTH_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def make_query(batch: ForwardBatch, pool: KvCache, num_heads: int = 6) -> torch.Tensor:
    shape = (len(batch.token_ids), num_heads, pool.tensor.shape[-1])
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(pool.tensor.dtype)


def assert_equal_to_reference(
    attention: AttentionBackend, pool: KvCache, batch: ForwardBatch, window: int | None = None
) -> None:
    query = make_query(batch, pool)
    reference = ReferenceAttention(pool)
    reference.plan(batch)
    attention.plan(batch)
    for layer in range(pool.num_layers):
        expected = reference.run(layer, query, window)
        torch.testing.assert_close(
            attention.run(layer, query, window),
            expected,
            atol=TOLERANCE[query.dtype],
            rtol=TOLERANCE[query.dtype],
        )


@ALL_CASES
@BOTH_DTYPES
@WINDOWS
def test_torch_backend_equals_the_reference(
    lens: list[tuple[int, int]], dtype: torch.dtype, window: int | None
) -> None:
    pool = make_pool(make_model(), num_blocks=500, dtype=dtype)
    batch = make_batch(lens, scattered_blocks(500))
    assert_equal_to_reference(TorchAttention(pool, tile_size=32), pool, batch, window)


@ALL_CASES
@WINDOWS
@pytest.mark.parametrize("block_size", [4, 24], ids=["blocks of 4", "blocks of 24"])
def test_invariant_backend_equals_the_reference(
    lens: list[tuple[int, int]], window: int | None, block_size: int
) -> None:
    """24 does not divide the tile: the tile is rounded up."""
    pool = make_pool(make_model(), num_blocks=500, dtype=torch.float32, block_size=block_size)
    batch = make_batch(lens, scattered_blocks(500), block_size)
    assert_equal_to_reference(InvariantAttention(pool), pool, batch, window)


@BOTH_DTYPES
def test_selected_backend_equals_the_reference(dtype: torch.dtype) -> None:
    pool = make_pool(make_model(), num_blocks=500, dtype=dtype)
    batch = make_batch(CASES["prompts, chunks and decode mixed"], scattered_blocks(500))
    assert_equal_to_reference(create_attention(pool), pool, batch)


@BOTH_DTYPES
def test_decode_in_many_groups_equals_the_reference(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(grouping, "MAX_GROUP_BYTES", 1 << 14)
    monkeypatch.setattr(grouping, "SMALL_GROUP_BYTES", 0)
    pool = make_pool(make_model(), num_blocks=500, dtype=dtype)
    batch = make_batch(CASES["decode of mixed lengths"], scattered_blocks(500))
    assert_equal_to_reference(create_attention(pool), pool, batch)


def test_one_plan_serves_layers_with_and_without_a_window() -> None:
    pool = make_pool(make_model(), num_blocks=500, dtype=torch.float32)
    batch = make_batch(CASES["decode of mixed lengths"], scattered_blocks(500))
    attention, reference, query = create_attention(pool), ReferenceAttention(pool), None
    attention.plan(batch)
    reference.plan(batch)
    query = make_query(batch, pool)
    for layer, window in enumerate((8, None, 8)):
        torch.testing.assert_close(
            attention.run(layer, query, window), reference.run(layer, query, window)
        )


def test_reference_equals_dense_causal_attention() -> None:
    """Ties the reference itself to torch's own attention, on a sequence laid out by hand."""
    pool = make_pool(make_model(), num_blocks=20, dtype=torch.float32)
    batch = make_batch([(10, 5)], scattered_blocks(20))
    query = make_query(batch, pool)
    blocks = batch.block_tables[0].tolist()
    key, value = (
        torch.cat([pool.tensor[block, :, 1, kind] for block in blocks], dim=1)[:, :15]
        for kind in (0, 1)
    )
    mask = torch.ones(10, 15, dtype=torch.bool).tril(diagonal=5)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], key[None], value[None], attn_mask=mask, enable_gqa=True
    )
    reference = ReferenceAttention(pool)
    reference.plan(batch)
    torch.testing.assert_close(reference.run(1, query), expected[0].transpose(0, 1))


def test_highest_block_ids_of_a_pool_beyond_two_to_the_31_elements() -> None:
    """Protocol 4.7. The pool's pages are only reserved; the test touches a few of them."""
    model = make_model(num_heads=8, num_kv_heads=8, head_dim=64)
    pool = KvCache(model, num_blocks=45_000, block_size=16, dtype=torch.bfloat16)
    assert pool.tensor.numel() > 1 << 31
    top = list(range(44_981, 45_001))
    batch = make_batch([(1, 70), (20, 30)], top, block_size=16)
    for block in top:
        pool.tensor[block].normal_(generator=torch.Generator().manual_seed(block))
    keys = torch.randn(21, 8, 64).bfloat16()
    pool.store(2, keys, keys, batch)
    last = batch.slot_blocks[-1], batch.slot_offsets[-1]
    assert torch.equal(pool.tensor[last[0], :, 2, 0, last[1]], keys[-1])
    query = make_query(batch, pool, num_heads=8)
    attention, reference = create_attention(pool), ReferenceAttention(pool)
    attention.plan(batch)
    reference.plan(batch)
    torch.testing.assert_close(
        attention.run(2, query), reference.run(2, query), atol=4e-2, rtol=4e-2
    )


@WINDOWS
def test_float32_attention_is_the_same_bits_in_any_company(window: int | None) -> None:
    """As the last token of a prompt, of a chunk, and by itself."""
    pool = make_pool(make_model(), num_blocks=500, dtype=torch.float32)
    attention = create_attention(pool)
    block_ids = scattered_blocks(500)
    results = []
    for lens in ([(1, 261)], [(262, 0)], [(62, 200)], [(1, 261), (1, 200), (1, 9), (40, 10)]):
        batch = make_batch(lens, block_ids)
        query = make_query(batch, pool)
        last = lens[0][0] - 1
        query[last] = 0.5
        attention.plan(batch)
        results.append(attention.run(0, query, window)[last])
    assert [torch.equal(each, results[0]) for each in results] == [True] * 4
