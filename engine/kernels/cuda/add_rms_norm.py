"""Residual addition and RMSNorm in one pass."""

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import next_power_of_two, pdl_options


@triton.jit
def add_rms_norm_kernel(
    x,
    delta,
    weight,
    output,
    size,
    epsilon,
    HAS_DELTA: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * size
    place = tl.arange(0, BLOCK)
    inside = place < size
    scale = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(x + row + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        value += tl.load(delta + row + place, mask=inside, other=0.0).to(tl.float32)
        # The sum is normalised as it is stored, so that a later reader sees the same numbers.
        value = value.to(x.dtype.element_ty)
        tl.store(x + row + place, value, mask=inside)
        value = value.to(tl.float32)
    mean = tl.sum(value * value) / size
    normed = value * (1.0 / tl.sqrt(mean + epsilon)) * scale
    tl.store(output + row + place, normed.to(output.dtype.element_ty), mask=inside)


def add_rms_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Adds ``delta`` to ``x`` (T, size) in place and returns the norm of the sum times ``weight``.

    Without ``delta``, ``x`` stays as it is. All contiguous and of one dtype.
    """
    assert x.is_contiguous() and weight.shape == x.shape[-1:], (x.shape, weight.shape)
    assert delta is None or (delta.shape == x.shape and delta.is_contiguous()), x.shape
    output = torch.empty_like(x)
    size = x.shape[-1]
    block = next_power_of_two(size)
    add_rms_norm_kernel[(x.numel() // size,)](
        x,
        x if delta is None else delta,
        weight,
        output,
        size,
        epsilon,
        HAS_DELTA=delta is not None,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
        **pdl_options(),
    )
    return output


def add_rms_norm_torch(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """The twin of ``add_rms_norm``."""
    if delta is not None:
        x += delta
    return functional.rms_norm(x, weight.shape, weight, epsilon)
