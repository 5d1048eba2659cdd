"""Attention kernels against the plainest attention, on pools whose every unread byte is random."""

import copy as copy_module
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.attention.reference import ReferenceAttention
from engine.attention.triton_backend import TritonAttention
from engine.batch import ForwardBatch
from engine.kernels.cuda.decode_plan import PIECE_UNIT, DecodePlan, plan_decode, plan_decode_torch
from engine.kv_cache import KvCache
from tests.engine.attention_cases import CPU, make_batch, make_model, make_pool, scattered_blocks

# Largest absolute error of a weighted mean of standard normal values.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
# The interpreter multiplies bfloat16 matrices as if they were integers.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
# Query heads, KV heads, head size.
SHAPES = ((6, 2, 16), (4, 4, 32), (3, 1, 48))
LENS = {
    "one token": [(1, 0)],
    "one whole piece": [(1, 63)],
    "decode of mixed lengths": [(1, 0), (1, 130), (1, 7), (1, 300), (1, 31), (1, 64)],
    "prompt from the start": [(37, 0)],
    "chunk after a context": [(50, 45)],
    "prompts, chunks and decode": [(1, 50), (9, 0), (1, 3), (30, 17), (2, 100), (1, 0)],
}


def attention_cases() -> Iterator[Any]:
    """Every batch with one shape; the other shapes and dtypes with the two that hold the most."""
    for name, lens in LENS.items():
        for window in (None, 6, 100):
            yield pytest.param(lens, window, SHAPES[0], torch.float32, id=f"{name}, {window}")
    for name in ("decode of mixed lengths", "prompts, chunks and decode"):
        for shape, dtype in ((SHAPES[1], HALF), (SHAPES[2], torch.float32), (SHAPES[0], HALF)):
            for window in (None, 6):
                case_id = f"{name}, {window}, {shape}, {dtype}"
                yield pytest.param(LENS[name], window, shape, dtype, id=case_id)


def reference_output(
    pool: KvCache, batch: ForwardBatch, query: torch.Tensor, window: int | None
) -> torch.Tensor:
    """On the CPU, from a copy of the pool."""
    copy = copy_module.copy(pool)
    copy.tensor = pool.tensor.cpu()
    reference = ReferenceAttention(copy)
    reference.plan(batch.to(CPU))
    return reference.run(1, query.cpu(), window)


@pytest.mark.parametrize(("lens", "window", "shape", "dtype"), list(attention_cases()))
def test_backend_equals_the_reference(
    lens: list[tuple[int, int]],
    window: int | None,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Twice with one plan: what a layer leaves behind must not disturb the next."""
    num_heads, num_kv_heads, head_dim = shape
    model = make_model(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    pool = make_pool(model, num_blocks=500, dtype=dtype, device=device)
    batch = make_batch(lens, scattered_blocks(500)).to(device)
    query_shape = (len(batch.token_ids), num_heads, head_dim)
    query = torch.randn(query_shape, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    attention = TritonAttention(pool)
    attention.plan(batch)
    expected = reference_output(pool, batch, query, window)
    for _ in range(2):
        torch.testing.assert_close(
            attention.run(1, query, window).cpu(),
            expected,
            atol=TOLERANCE[dtype],
            rtol=TOLERANCE[dtype],
        )


@pytest.mark.parametrize("target", [1, 3, 40], ids=lambda target: f"target {target}")
@pytest.mark.parametrize("window", [None, 100], ids=lambda window: f"window {window}")
def test_plan_equals_its_twin(target: int, window: int | None, device: torch.device) -> None:
    seq_lens = torch.tensor([1, 64, 65, 1000, 7, 640, 129], device=device)
    plan = DecodePlan.allocate(len(seq_lens), target, device)
    plan_decode(seq_lens, plan, window)
    expected = DecodePlan.allocate(len(seq_lens), target, CPU)
    plan_decode_torch(seq_lens.cpu(), expected, window)
    used = expected.pieces[:, 0] >= 0
    assert plan.pieces[:, 0].tolist() == expected.pieces[:, 0].tolist()
    assert plan.pieces.cpu()[used].tolist() == expected.pieces[used].tolist()


def test_a_plan_of_own_parts_equals_its_twin(device: torch.device) -> None:
    seq_lens = torch.tensor([1, 640, 65, 1000], device=device)
    starts = torch.tensor([0, 512, 64, 128], dtype=torch.int32, device=device)
    plan, expected = (DecodePlan.allocate(4, 3, place) for place in (device, CPU))
    plan_decode(seq_lens, plan, None, starts)
    plan_decode_torch(seq_lens.cpu(), expected, None, starts.cpu())
    used = expected.pieces[:, 0] >= 0
    assert plan.pieces.cpu()[used].tolist() == expected.pieces[used].tolist()
    begins = {row[0]: row[1] for row in reversed(expected.pieces[used].tolist())}
    assert begins == dict(enumerate(starts.tolist()))


@pytest.mark.parametrize(
    ("seq_lens", "number"),
    [([1030] * 8, 16), ([1024] * 8, 16), ([4000, 100, 100], 15), ([64] * 17, 17), ([640] * 18, 18)],
    ids=["just above", "even", "one long", "as many", "more"],
)
def test_there_are_no_more_pieces_than_wanted_unless_sequences_are(
    seq_lens: list[int], number: int, device: torch.device
) -> None:
    plan = DecodePlan.allocate(len(seq_lens), 17, device)
    plan_decode(torch.tensor(seq_lens, device=device), plan, None)
    assert (plan.pieces[:, 0] >= 0).sum() == number


def test_pieces_cover_each_sequence_once_at_every_length() -> None:
    for target in (1, 2, 5, 33):
        for length in range(1, 40 * PIECE_UNIT, 37):
            seq_lens = [length, 1, 3 * length, 65]
            plan = DecodePlan.allocate(len(seq_lens), target, CPU)
            plan_decode_torch(torch.tensor(seq_lens), plan, None)
            covered = [0] * len(seq_lens)
            for sequence, begin, end, _, _ in plan.pieces.tolist():
                if sequence >= 0:
                    assert begin == covered[sequence] < end
                    covered[sequence] = end
            assert covered == seq_lens
