"""Attention to shared prefixes by the kernel for Hopper, against its twin in float32."""

import pytest
import torch

from engine.kernels.cuda.paged_prefix import PrefixResults, paged_prefix, paged_prefix_torch
from engine.kernels.cuda.prefix_shape import prefix_shape
from tests.engine.attention_cases import make_model, make_pool
from tests.engine.kernels.cuda.test_cascade import (
    NUM_BLOCKS,
    Family,
    make_query,
    make_requests,
    make_step,
    planned,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]
FAMILIES = {
    "one tile": [Family(8, [1, 1])],
    "many tiles and members": [Family(256, [1] * 70), Family(0, [9])],
    "groups of odd sizes": [Family(80, [1] * 33), Family(9, [33, 70, 2]), Family(40, [1] * 5)],
    "a prefix in a prefix": [Family(72, [3] * 19, inner=24), Family(16, [40, 5, 200], inner=48)],
}


@pytest.mark.parametrize("families", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("num_heads", [8, 32, 64])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_prefixes_equal_their_twin(families: list[Family], num_heads: int, head_dim: int) -> None:
    """Twice: a program must leave its barriers as the next launch expects them."""
    device = torch.device("cuda")
    model = make_model(num_heads=num_heads, num_kv_heads=8, head_dim=head_dim)
    pool = make_pool(
        model, num_blocks=NUM_BLOCKS, dtype=torch.bfloat16, block_size=16, device=device
    )
    layer = pool.tensor[:, :, 1]
    shape = prefix_shape((9, 0), layer)
    assert shape.specialized
    requests = make_requests(families)
    batch = make_step(requests).to(device)
    query = make_query(len(requests), pool, num_heads)
    cascade = planned(pool, requests, num_heads, None)
    work = cascade.work(len(requests))
    assert int(work.num_items) > 0
    sizes = (cascade.limits.slots, num_heads)
    actual, expected = (
        PrefixResults(
            work.slots,
            torch.zeros(*sizes, head_dim, device=device),
            torch.zeros(*sizes, 2, device=device),
        )
        for _ in range(2)
    )
    tables = batch.block_tables.int().flatten()
    stride = torch.tensor([batch.block_tables.shape[1]], dtype=torch.int32, device=device)
    places = (query, layer, tables, stride, work)
    paged_prefix_torch(*places, expected)
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    for number in (programs, 3):
        actual.values.zero_()
        paged_prefix(*places, actual, shape, number)
        assert_close(actual, expected, int(work.slots[:, 1].sum()))


def assert_close(actual: PrefixResults, expected: PrefixResults, num_slots: int) -> None:
    """Up to bfloat16 weights: of the norm of a head's values, and of the logarithm of its sum."""
    found, wanted = (
        (each.values[:num_slots] / each.weights[:num_slots, :, 1:], each.weights[:num_slots])
        for each in (actual, expected)
    )
    difference = (found[0] - wanted[0]).norm(dim=-1) / wanted[0].norm(dim=-1)
    assert difference.max() < 1e-2
    logs, wanted_logs = (each[..., 0] + each[..., 1].log2() for each in (found[1], wanted[1]))
    torch.testing.assert_close(logs, wanted_logs, atol=1e-3, rtol=0.0)
