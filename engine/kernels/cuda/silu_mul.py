"""The activation between the feed-forward GEMMs."""

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import pdl_options

_BLOCK = 1024


@triton.jit
def silu_mul_kernel(gate_up, output, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    gate = tl.load(gate_up + row * 2 * size + place, mask=inside).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + place, mask=inside).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + row * size + place, value.to(output.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of a contiguous (T, 2 * size), gate first: (T, size)."""
    assert gate_up.is_contiguous() and gate_up.dim() == 2, gate_up.shape
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty(num_rows, size)
    silu_mul_kernel[(num_rows, triton.cdiv(size, _BLOCK))](
        gate_up, output, size, BLOCK=_BLOCK, num_warps=4, **pdl_options()
    )
    return output


def silu_mul_torch(gate_up: torch.Tensor) -> torch.Tensor:
    """The twin of ``silu_mul``."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
