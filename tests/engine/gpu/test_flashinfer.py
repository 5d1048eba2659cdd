"""Prefill by FlashInfer against the plainest attention."""

import copy

import pytest
import torch

from engine.attention.gpu_select import create_gpu_attention
from engine.attention.reference import ReferenceAttention
from tests.engine.attention_cases import CPU, make_batch, make_model, make_pool, scattered_blocks

pytestmark = pytest.mark.gpu
CASES = {
    "fresh prompts": [(300, 0), (37, 0)],
    "chunks, prompts and decode": [(1, 50), (90, 0), (1, 3), (300, 170)],
}


@pytest.mark.parametrize("lens", CASES.values(), ids=CASES.keys())
def test_prefill_equals_the_reference(lens: list[tuple[int, int]]) -> None:
    pytest.importorskip("flashinfer")
    from engine.attention.flashinfer_backend import FlashInferAttention

    device, model = torch.device("cuda"), make_model(num_heads=8, num_kv_heads=2, head_dim=128)
    pool = make_pool(model, num_blocks=200, dtype=torch.bfloat16, block_size=16, device=device)
    batch = make_batch(lens, scattered_blocks(200), block_size=16)
    shape = (len(batch.token_ids), 12, 128)
    qkv = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(device).bfloat16()
    pool.store(1, qkv[:, 8:10], qkv[:, 10:], batch.to(device))
    attention = create_gpu_attention(pool)
    assert isinstance(attention, FlashInferAttention)
    attention.plan(batch.to(device))
    actual = attention.run_step(1, qkv)
    twin = copy.copy(pool)
    twin.tensor = pool.tensor.cpu()
    reference = ReferenceAttention(twin)
    reference.plan(batch.to(CPU))
    expected = reference.run(1, qkv[:, :8].cpu())
    torch.testing.assert_close(actual.cpu(), expected, atol=4e-2, rtol=4e-2)
