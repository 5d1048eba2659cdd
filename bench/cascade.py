"""Decode attention with shared prefixes, Llama 3.1 8B's heads on one NVIDIA GPU.

``python -m bench.cascade`` measures a grid of groups, shared and own tokens both ways, finds the
row that chooses best, and says what its choices cost. At 32768 shared tokens of 256 sequences it
measures other layouts of our kernel, FlashInfer's kernels, and a whole step of the engine both
ways. It prints tables and writes ``bench/results/cascade.json``. ``--layouts`` stops before the
grid and writes nothing.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TypeAlias

import torch

from bench.cascade_step import compare_steps
from bench.gpu import copy_rate, gemm_rate
from bench.results import Figure, write_results
from engine.attention.cascade_table import CascadeHeads, CascadeRow
from engine.gpu.cascade_measure import (
    BLOCK_SIZE,
    CapturedAttention,
    CascadePoint,
    CascadePool,
    CascadeTime,
    fit_row,
    measure_cascade,
    microseconds,
)
from engine.kernels.cuda.decode_shape import DecodeShape, decode_shape
from engine.kernels.cuda.prefix_shape import PrefixShape, prefix_shape

# None: what the tables say.
_Prefix: TypeAlias = PrefixShape | None
_Own: TypeAlias = DecodeShape | None
LLAMA_8B = CascadeHeads(num_heads=32, num_kv_heads=8, head_dim=128)
HEADLINE = CascadePoint(members=256, shared=32768, own=256)
NAME = "cascade.32k.b256"
# All of them fit on a Hopper multiprocessor, without a register spilled.
LAYOUTS = (
    PrefixShape(128, 128, 4, 2, 1, specialized=True),
    PrefixShape(128, 128, 8, 2, 1),
    PrefixShape(128, 128, 8, 3, 1),
    PrefixShape(128, 64, 8, 2, 1),
    PrefixShape(128, 64, 8, 3, 1),
    PrefixShape(64, 128, 4, 2, 1),
    PrefixShape(64, 64, 4, 3, 2),
    PrefixShape(64, 64, 4, 2, 2),
)
# Of the own parts, which are short: smaller tiles let several programs share a multiprocessor.
OWN_LAYOUTS = tuple(
    DecodeShape(1 << 30, 1, tile, num_warps, num_stages, 2, "tried")
    for tile, num_warps, num_stages in (
        (128, 4, 3), (128, 8, 3), (128, 4, 2), (64, 4, 4), (64, 4, 3), (64, 2, 3), (32, 4, 4),
    )
)  # fmt: skip
# Of the norm: two ways to compute in bfloat16.
TOLERANCE = 2e-2


def measure_layouts(pool: CascadePool) -> None:
    """Prints microseconds of a layer at the headline, each after it was compared with flat, and
    what the tables should say."""
    layer = pool.kv_cache.tensor[:, :, 0]
    used = prefix_shape(torch.cuda.get_device_capability(), layer)
    print(f"the best is {_best(pool, LAYOUTS, [None])[0]}, the engine takes {used}", flush=True)
    used_own = decode_shape(HEADLINE.members, pool.heads.num_kv_heads, layer[0, 0, 0, 0])
    best_own = _best(pool, [None], OWN_LAYOUTS)[1]
    print(f"of own parts the best is {best_own}, the engine takes {used_own}", flush=True)


def _best(
    pool: CascadePool, shapes: Sequence[_Prefix], own_shapes: Sequence[_Own]
) -> tuple[_Prefix, _Own]:
    times: dict[tuple[_Prefix, _Own], float] = {}
    for pair in itertools.product(shapes, own_shapes):
        captured = CapturedAttention(pool, HEADLINE.members, *pair)
        captured.load(HEADLINE)
        difference = compare(captured)
        times[pair] = captured.microseconds(shares=True)
        tried = next(each for each in pair if each is not None)
        print(f"{tried}  {times[pair]:8.1f} us, differs by {difference:.1e}", flush=True)
    return min(times, key=lambda pair: times[pair])


def compare(captured: CapturedAttention) -> float:
    """How far both ways lie apart, of the norm; AssertionError where it is too far."""
    flat, together = (captured.output(shares=shares).float() for shares in (False, True))
    difference: float = ((flat - together).norm() / flat.norm()).item()
    assert difference < TOLERANCE, difference
    return difference


def headline(pool: CascadePool, copy: float, gemm: float) -> list[Figure]:
    """Ours against FlashInfer's flat kernels, and FlashInfer's cascade beside it."""
    captured = CapturedAttention(pool, HEADLINE.members)
    captured.load(HEADLINE)
    compare(captured)
    flat, ours = (captured.microseconds(shares=shares) for shares in (False, True))
    heads = pool.heads
    flops = 4 * HEADLINE.members * heads.num_heads * heads.head_dim * HEADLINE.shared
    own_bytes = HEADLINE.members * HEADLINE.own * 4 * heads.num_kv_heads * heads.head_dim
    floor = (flops / gemm + own_bytes / copy) * 1e6
    note = f"our flat kernel: {flat:.1f} us; the floor is products and bytes, one after the other"
    figures = [Figure(f"{NAME}.us", round(ours, 1), "us", floor=round(floor, 1), note=note)]
    print(f"{NAME}: {ours:.1f} us, floor {floor:.1f}, our flat kernel {flat:.1f}", flush=True)
    if find_spec("flashinfer") is None:
        print("FlashInfer is not installed: nothing to compare with")
        return figures
    for name, source, rival in rivals(pool, captured.query):
        print(f"  {source}: {rival:.1f} us, {rival / ours:.2f} times ours", flush=True)
        figures.append(
            Figure(f"{NAME}.{name}", round(rival / ours, 2), "x", rival=round(rival, 1),
                   rival_source=f"FlashInfer, us: {source}")
        )  # fmt: skip
    return figures


def rivals(pool: CascadePool, query: torch.Tensor) -> Sequence[tuple[str, str, float]]:
    """A figure's name, what was run, and its microseconds of a layer."""
    from engine.attention.flashinfer_decode import cascade_decode, flat_decode

    tables, num_shared = pool.tables(HEADLINE), HEADLINE.shared // BLOCK_SIZE
    backend = "fa3" if torch.cuda.get_device_capability() == (9, 0) else "fa2"

    def taken(run: Callable[[int], torch.Tensor]) -> float:
        layers = range(pool.kv_cache.num_layers)
        return microseconds(lambda: [run(layer) for layer in layers]) / len(layers)

    found = []
    for name, tensor_cores in (("over_cuda_core", False), ("over_tensor_core", True)):
        run = flat_decode(pool.kv_cache, query, tables, tensor_cores=tensor_cores)
        kind = "tensor" if tensor_cores else "CUDA"
        found.append((name, f"flat decode on {kind} cores", taken(run)))
    for pieces in (1, 2, 4):
        run = cascade_decode(
            pool.kv_cache,
            query,
            tables,
            num_shared=num_shared,
            num_pieces=pieces,
            backend=backend,
        )
        source = f"prefix by {backend} in {pieces} pieces, own parts by decode, merged"
        found.append((f"over_{backend}_in_{pieces}", source, taken(run)))
    return found


def grid(pool: CascadePool) -> tuple[list[CascadeTime], CascadeRow]:
    """Times of all points, printed, and the row that chooses best among them."""
    times = []
    for each in measure_cascade(pool):
        times.append(each)
        print(
            f"{each.point.members:4} members {each.point.shared:6} shared {each.point.own:5} own"
            f"  flat {each.flat:9.1f} us  together {each.cascade:9.1f}",
            flush=True,
        )
    gpu = torch.cuda.get_device_name()
    row = fit_row(times, pool.heads, gpu, f"bench.cascade, torch {torch.__version__}")
    print(row)
    return times, row


def grid_figures(times: Sequence[CascadeTime], row: CascadeRow) -> list[Figure]:
    """Every point with what the row chooses, against the better way; misses are told."""
    figures, misses = [], []
    for each in times:
        point, chosen, best = each.point, each.chosen(row), min(each.flat, each.cascade)
        name = f"cascade.grid.m{point.members}.s{point.shared}.o{point.own}.us"
        excess = each.excess(row)
        note = f"flat {each.flat:.1f}, together {each.cascade:.1f}"
        if excess:
            misses.append(f"{name} {excess:.1f} us too long")
            note += f"; {excess:.1f} us too long"
        figures.append(Figure(name, round(chosen, 1), "us", floor=round(best, 1), note=note))
    print(f"{len(misses)} of {len(times)} choices cost more than 2 % + 5 us", *misses, sep="\n  ")
    worst = max(each.chosen(row) / min(each.flat, each.cascade) for each in times)
    note = f"chosen over better; sequences and shared tokens of the row: {row.least_tokens}"
    return [
        Figure("cascade.grid.misses", len(misses), f"of {len(times)}", note="beyond 2 % + 5 us"),
        Figure("cascade.grid.worst", round(worst, 3), "x", note=note),
        *figures,
    ]


def main(arguments: Sequence[str]) -> None:
    with torch.inference_mode():
        copy, gemm = copy_rate(), gemm_rate()
        torch.cuda.empty_cache()
        print(f"copy {copy / 1e12:.2f} TB/s, GEMM {gemm / 1e12:.0f} TFLOP/s", flush=True)
        pool = CascadePool(LLAMA_8B)
        measure_layouts(pool)
        figures = headline(pool, copy, gemm)
        if "--layouts" in arguments:
            return
        times, row = grid(pool)
    figures += grid_figures(times, row)
    hardware = {
        "gpu": torch.cuda.get_device_name(),
        "gpu_copy": f"{copy / 1e12:.2f} TB/s, read and written",
        "gpu_gemm": f"{gemm / 1e12:.0f} TFLOP/s, bfloat16, 8192 x 28672 x 4096",
        "cuda": str(torch.version.cuda),
    }
    packages = ["torch", "triton"]
    if find_spec("flashinfer") is not None:
        packages.append("flashinfer-python")
    print(write_results("cascade", figures, packages, hardware=hardware), flush=True)
    del pool
    torch.cuda.empty_cache()
    # Again with the whole step, which takes longer and may be interrupted.
    step = compare_steps(row)
    print(f"{step.name} {step.value} {step.note}", flush=True)
    print(write_results("cascade", [*figures, step], packages, hardware=hardware))


if __name__ == "__main__":
    main(sys.argv[1:])
