"""What runs between the GEMMs of a layer."""

import pytest
import torch

from engine.kernels.cuda.add_rms_norm import add_rms_norm, add_rms_norm_torch
from engine.kernels.cuda.rotary_store import rotary_store, rotary_store_torch
from engine.kernels.cuda.silu_mul import silu_mul, silu_mul_torch

# Largest error relative to values of about 1: bfloat16 keeps 8 bits.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
BOTH_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def randn(*shape: int, seed: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(device, dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@BOTH_DTYPES
@pytest.mark.parametrize("size", [64, 96, 576], ids=["full block", "part of one", "of smollm2"])
@pytest.mark.parametrize("with_delta", [True, False], ids=["with delta", "without"])
def test_add_rms_norm_equals_its_twin(
    dtype: torch.dtype, size: int, with_delta: bool, device: torch.device
) -> None:
    x, weight = (
        randn(3, size, seed=0, dtype=dtype, device=device),
        randn(size, seed=1, dtype=dtype, device=device),
    )
    delta = randn(3, size, seed=2, dtype=dtype, device=device) if with_delta else None
    sums, expected_sums = x.clone(), x.clone()
    output = add_rms_norm(sums, delta, weight, 1e-5)
    assert_close(output, add_rms_norm_torch(expected_sums, delta, weight, 1e-5))
    # Not bit by bit: the interpreter cuts bfloat16 off where a GPU rounds.
    assert_close(sums, expected_sums)


@BOTH_DTYPES
@pytest.mark.parametrize("size", [1536, 100], ids=["over two programs", "part of one"])
def test_silu_mul_equals_its_twin(dtype: torch.dtype, size: int, device: torch.device) -> None:
    gate_up = randn(3, 2 * size, seed=0, dtype=dtype, device=device)
    assert_close(silu_mul(gate_up), silu_mul_torch(gate_up))


@BOTH_DTYPES
@pytest.mark.parametrize("normed", [True, False], ids=["head norms", "plain"])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(4, 2, 16), (9, 3, 64), (4, 4, 80)],
    ids=["one program", "of smollm2", "no power of two"],
)
def test_rotary_store_equals_its_twin(
    dtype: torch.dtype,
    normed: bool,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    device: torch.device,
) -> None:
    """The pools are compared whole: what the step must not write stays as it was."""
    num_all = num_heads + 2 * num_kv_heads
    qkv = randn(5, num_all, head_dim, seed=0, dtype=dtype, device=device)
    angles = torch.arange(64)[:, None] * 10.0 ** -torch.linspace(0, 3, head_dim // 2)
    rotations = torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
    positions = torch.tensor([63, 0, 17, 18, 2], device=device)
    slot_blocks = torch.tensor([5, 2, 4, 4, 1], device=device)
    slot_offsets = torch.tensor([3, 0, 1, 2, 2], device=device)
    whole = randn(6, num_kv_heads, 3, 2, 4, head_dim, seed=1, dtype=dtype, device=device)
    expected_whole = whole.clone()
    weights = (
        randn(head_dim, seed=2, dtype=dtype, device=device),
        randn(head_dim, seed=3, dtype=dtype, device=device),
    )
    arguments = (rotations, positions, slot_blocks, slot_offsets)
    norms = weights if normed else None
    expected = rotary_store_torch(qkv.clone(), *arguments, expected_whole[:, :, 1], norms, 1e-5)
    actual = rotary_store(qkv, *arguments, whole[:, :, 1], norms, 1e-5)
    assert_close(actual, expected)
    assert_close(whole, expected_whole)
