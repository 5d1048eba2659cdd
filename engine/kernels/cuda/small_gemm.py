"""GEMM of few tokens by a dense weight: bound by reading the weight, so built around that.

A program owns some rows of the weight for all tokens. It loads its first piece of them before it
waits for the predecessor, so that weights stream while the kernel before drains.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import next_power_of_two, pdl_options


@dataclass(frozen=True, slots=True)
class SmallGemmShape:
    """``rows`` of the weight and ``columns`` at a time a program, warps and stages of its loop."""

    rows: int
    columns: int
    num_warps: int
    num_stages: int


@triton.jit
def gemv_kernel(
    x,
    weight,
    output,
    num_outputs,
    num_columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SILU: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < num_outputs)[:, None]
    source = weight + row.to(tl.int64)[:, None] * num_columns + column[None, :]
    matrix = tl.load(source, mask=inside, other=0.0, eviction_policy="evict_first")
    up_source = source + num_outputs.to(tl.int64) * num_columns
    if SILU:
        up_matrix = tl.load(up_source, mask=inside, other=0.0, eviction_policy="evict_first")
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(x + column).to(tl.float32)[None, :]
    total = matrix.to(tl.float32) * value
    if SILU:
        up_total = up_matrix.to(tl.float32) * value
    for first in tl.range(COLUMNS, num_columns, COLUMNS, num_stages=STAGES):
        matrix = tl.load(source + first, mask=inside, other=0.0, eviction_policy="evict_first")
        value = tl.load(x + first + column).to(tl.float32)[None, :]
        total += matrix.to(tl.float32) * value
        if SILU:
            up_matrix = tl.load(
                up_source + first, mask=inside, other=0.0, eviction_policy="evict_first"
            )
            up_total += up_matrix.to(tl.float32) * value
    result = tl.sum(total, axis=1)
    if SILU:
        up = tl.sum(up_total, axis=1).to(output.dtype.element_ty).to(tl.float32)
        gate = result.to(output.dtype.element_ty).to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + row, result.to(output.dtype.element_ty), mask=row < num_outputs)


# One kernel for any number of tokens: it says only what is masked.
@triton.jit(do_not_specialize=["num_tokens"])
def small_gemm_kernel(
    x,
    weight,
    output,
    num_tokens,
    num_outputs,
    num_columns,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SILU: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    column = tl.arange(0, COLUMNS)
    inside = (row < num_outputs)[:, None]
    exists = (token < num_tokens)[:, None]
    source = weight + row.to(tl.int64)[:, None] * num_columns + column[None, :]
    up_source = source + num_outputs.to(tl.int64) * num_columns
    activations = x + token[:, None] * num_columns + column[None, :]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros((TOKENS, ROWS), tl.float32)
    up_total = tl.zeros((TOKENS, ROWS), tl.float32)
    for first in tl.range(0, num_columns, COLUMNS, num_stages=STAGES):
        value = tl.load(activations + first, mask=exists, other=0.0)
        matrix = tl.load(source + first, mask=inside, other=0.0, eviction_policy="evict_first")
        total = tl.dot(value, tl.trans(matrix), total, input_precision=PRECISION)
        if SILU:
            up_matrix = tl.load(
                up_source + first, mask=inside, other=0.0, eviction_policy="evict_first"
            )
            up_total = tl.dot(value, tl.trans(up_matrix), up_total, input_precision=PRECISION)
    result = total
    if SILU:
        up = up_total.to(output.dtype.element_ty).to(tl.float32)
        gate = total.to(output.dtype.element_ty).to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up
    target = output + token[:, None] * num_outputs + row[None, :]
    tl.store(
        target,
        result.to(output.dtype.element_ty),
        mask=exists & (row < num_outputs)[None, :],
    )


def small_gemm(
    x: torch.Tensor, weight: torch.Tensor, shape: SmallGemmShape, *, silu: bool = False
) -> torch.Tensor:
    """``x`` (T, K) by ``weight`` (N, K): (T, N) in the dtype of ``x``.

    With ``silu`` the weight is a gate stacked on an up projection, and the result
    ``silu(gate) * up``, (T, N / 2). K must be a multiple of ``shape.columns``. All contiguous.
    """
    num_tokens, num_columns = x.shape
    assert x.is_contiguous() and weight.is_contiguous() and num_columns % shape.columns == 0
    num_outputs = weight.shape[0] // 2 if silu else weight.shape[0]
    output = x.new_empty(num_tokens, num_outputs)
    grid = (triton.cdiv(num_outputs, shape.rows),)
    options = {
        "ROWS": shape.rows,
        "COLUMNS": shape.columns,
        "SILU": silu,
        "STAGES": shape.num_stages,
        "num_warps": shape.num_warps,
        **pdl_options(),
    }
    if num_tokens == 1:
        gemv_kernel[grid](x, weight, output, num_outputs, num_columns, **options)
    else:
        small_gemm_kernel[grid](
            x,
            weight,
            output,
            num_tokens,
            num_outputs,
            num_columns,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            TOKENS=max(16, next_power_of_two(num_tokens)),
            **options,
        )
    return output


def small_gemm_torch(
    x: torch.Tensor, weight: torch.Tensor, shape: SmallGemmShape, *, silu: bool = False
) -> torch.Tensor:
    """The twin of ``small_gemm``."""
    output = functional.linear(x, weight)
    if not silu:
        return output
    gate, up = output.chunk(2, dim=-1)
    return functional.silu(gate) * up
