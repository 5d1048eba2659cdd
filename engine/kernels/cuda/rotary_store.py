"""All between the q, k, v GEMM and attention: head norms, rotation, storing K and V."""

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import next_power_of_two, pdl_options

_HEADS_AT_ONCE = 8


@triton.jit
def rotary_store_kernel(
    qkv,
    rotations,
    positions,
    slot_blocks,
    slot_offsets,
    q_weight,
    k_weight,
    pool,
    block_stride,
    head_stride,
    kind_stride,
    epsilon,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    place = tl.arange(0, HALF_BLOCK)[None, :]
    exists = (head < NUM_HEADS + 2 * NUM_KV_HEADS) & (place < HALF)
    is_q = head < NUM_HEADS
    is_k = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    if NORM:
        weight = tl.where(is_q, q_weight, k_weight) + place
        first_weight = tl.load(weight, mask=exists, other=0.0).to(tl.float32)
        second_weight = tl.load(weight + HALF, mask=exists, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    position = tl.load(positions + token).to(tl.int64)
    rotation = rotations + position * (2 * HALF) + place
    cos = tl.load(rotation, mask=place < HALF, other=0.0)
    sin = tl.load(rotation + HALF, mask=place < HALF, other=0.0)
    source = qkv + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * (2 * HALF) + place
    first = tl.load(source, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=exists, other=0.0).to(tl.float32)
    is_v = head >= NUM_HEADS + NUM_KV_HEADS
    if NORM:
        squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
        inverse = 1.0 / tl.sqrt(squares / (2 * HALF) + epsilon)
        first = tl.where(is_v, first, first * inverse * first_weight)
        second = tl.where(is_v, second, second * inverse * second_weight)
    rotated_first = tl.where(is_v, first, first * cos - second * sin)
    rotated_second = tl.where(is_v, second, second * cos + first * sin)
    value_type = pool.dtype.element_ty
    tl.store(source, rotated_first.to(value_type), mask=exists & (is_q | is_k))
    tl.store(source + HALF, rotated_second.to(value_type), mask=exists & (is_q | is_k))
    block = tl.load(slot_blocks + token).to(tl.int64)
    offset = tl.load(slot_offsets + token).to(tl.int64)
    kv_head = tl.where(is_v, head - NUM_HEADS - NUM_KV_HEADS, head - NUM_HEADS)
    target = pool + block * block_stride + kv_head * head_stride + offset * (2 * HALF) + place
    target += tl.where(is_v, kind_stride, 0)
    tl.store(target, rotated_first.to(value_type), mask=exists & (head >= NUM_HEADS))
    tl.store(target + HALF, rotated_second.to(value_type), mask=exists & (head >= NUM_HEADS))


def rotary_store(
    qkv: torch.Tensor,
    rotations: torch.Tensor,
    positions: torch.Tensor,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
    pool: torch.Tensor,
    head_weights: tuple[torch.Tensor, torch.Tensor] | None,
    epsilon: float,
) -> torch.Tensor:
    """Rotates q and k in place, stores k and v, and returns q (T, heads, head_dim), a view.

    ``qkv``: contiguous (T, heads + 2 * kv heads, head_dim). ``rotations``: (positions, head_dim)
    float32, cosines then sines. ``positions``, ``slot_blocks``, ``slot_offsets``: (T,) integers.
    ``pool``: one layer of the KV pool, (block, kv head, 2, token, head_dim). With
    ``head_weights`` each head of q and of k is RMS-normalised first.
    """
    num_tokens, num_all, head_dim = qkv.shape
    num_kv_heads = pool.shape[1]
    num_heads = num_all - 2 * num_kv_heads
    assert qkv.is_contiguous() and rotations.shape[1] == head_dim, (qkv.shape, rotations.shape)
    assert pool.stride()[3:] == (head_dim, 1), pool.stride()
    q_weight, k_weight = head_weights if head_weights is not None else (qkv, qkv)
    rotary_store_kernel[(num_tokens, triton.cdiv(num_all, _HEADS_AT_ONCE))](
        qkv,
        rotations,
        positions,
        slot_blocks,
        slot_offsets,
        q_weight,
        k_weight,
        pool,
        pool.stride(0),
        pool.stride(1),
        pool.stride(2),
        epsilon,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF=head_dim // 2,
        HALF_BLOCK=next_power_of_two(head_dim // 2),
        HEADS=_HEADS_AT_ONCE,
        NORM=head_weights is not None,
        num_warps=2,
        **pdl_options(),
    )
    return qkv[:, :num_heads]


def rotary_store_torch(
    qkv: torch.Tensor,
    rotations: torch.Tensor,
    positions: torch.Tensor,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
    pool: torch.Tensor,
    head_weights: tuple[torch.Tensor, torch.Tensor] | None,
    epsilon: float,
) -> torch.Tensor:
    """The twin of ``rotary_store``."""
    num_kv_heads, head_dim = pool.shape[1], qkv.shape[2]
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    q, k, v = qkv.float().split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if head_weights is not None:
        q, k = (
            functional.rms_norm(x, (head_dim,), weight.float(), epsilon)
            for x, weight in zip((q, k), head_weights, strict=True)
        )
    cos, sin = rotations[positions].unsqueeze(1).chunk(2, dim=-1)
    first, second = torch.cat((q, k), dim=1).chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    qkv[:, : num_heads + num_kv_heads] = rotated.to(qkv.dtype)
    pool[slot_blocks, :, 0, slot_offsets] = qkv[:, num_heads : num_heads + num_kv_heads]
    pool[slot_blocks, :, 1, slot_offsets] = v.to(qkv.dtype)
    return qkv[:, :num_heads]
