"""Steps of a Llama-3.1-8B-shaped model with random weights on two NVIDIA GPUs of one host.

``python -m bench.tp`` measures them as ``bench.gpu`` does, and the sums over the two ranks against
NCCL's, and writes ``bench/results/tp.json``.
"""

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import multiprocessing

from batonctl.ports import find_free_ports
from bench.gpu import Bench, copy_rate, decode_bytes, print_figure
from bench.results import Figure, write_results
from engine.gpu.group import GpuGroup
from engine.parallel.group import Group

NUM_RANKS = 2
# Batch, context, and what vLLM 0.24.0 takes on the same kind of machine, ms.
DECODES = ((1, 1024, 3.545), (32, 1024, 4.303), (128, 1024, 6.549))
PREFILLS = ((8192, 130.0),)
RIVAL = "vLLM 0.24.0, bf16, dummy weights, two H200, measured on another day"
SUM_KIB = (8, 16, 32, 64, 128, 256, 512, 1024)
SUMS_A_GRAPH = 20


def measure_steps(copy: float) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), NUM_RANKS)
        for batch, context, rival in DECODES:
            wall, _ = bench.decode(batch, context)
            floor = decode_bytes(bench.runner, batch, context) / copy
            name = f"tp2.decode.b{batch}.ctx{context}.ms"
            figures.append(_step(name, wall, rival, floor))
        for length, rival in PREFILLS:
            bench.prefill(length)
            seconds = statistics.median(bench.prefill(length) for _ in range(5))
            figures.append(_step(f"tp2.prefill.n{length}.ms", seconds, rival, None))
        bench.runner.close()
    return figures


def _step(name: str, seconds: float, rival: float, floor: float | None) -> Figure:
    figure = Figure(
        name,
        round(seconds * 1e3, 3),
        "ms",
        rival=rival,
        rival_source=RIVAL,
        floor=None if floor is None else round(floor * 1e3, 3),
    )
    print_figure(figure)
    return figure


def measure_sums() -> list[Figure]:
    """How many times NCCL's time a sum of so many bytes takes, inverted."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=_sum_rank, args=(rank, port, results))
        for port in find_free_ports(1)
        for rank in range(NUM_RANKS)
    ]
    for process in processes:
        process.start()
    times = results.get()
    for process in processes:
        process.join()
    figures = []
    for kib, (ours, nccl) in times.items():
        note = f"{ours * 1e6:.1f} us, NCCL {nccl * 1e6:.1f}, in a graph"
        figures.append(
            Figure(f"allreduce.{kib}kib.over_nccl", round(nccl / ours, 2), "x", note=note)
        )
        print(f"{figures[-1].name:28} {figures[-1].value:6.2f} x  {note}", flush=True)
    return figures


def _sum_rank(rank: int, port: int, results: "multiprocessing.SimpleQueue") -> None:  # type: ignore[type-arg]
    torch.cuda.set_device(rank)
    group = GpuGroup(rank, NUM_RANKS, port)
    times = {}
    for kib in SUM_KIB:
        x = torch.randn(kib * 512, device="cuda").bfloat16()
        summed = [Group.all_reduce(group, x.clone()), group.all_reduce(x.clone())]
        torch.testing.assert_close(*summed, rtol=1e-2, atol=1e-2)
        # Sums of sums would not stay finite.
        x.zero_()
        ours = _graph_seconds(partial(group.all_reduce, x))
        nccl = _graph_seconds(partial(Group.all_reduce, group, x))
        times[kib] = (ours, nccl)
    if rank == 0:
        results.put(times)
    group.close(broken=False)


def _graph_seconds(function: Callable[[], object]) -> float:
    """Seconds of one call, of many in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(SUMS_A_GRAPH):
            function()
    seconds: list[float] = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3 / SUMS_A_GRAPH)
    return statistics.median(seconds[2:])


def main() -> None:
    copy = copy_rate()
    torch.cuda.empty_cache()
    figures = [*measure_sums(), *measure_steps(copy)]
    hardware = {
        "gpu": f"{NUM_RANKS} x {torch.cuda.get_device_name()}",
        "gpu_copy": f"{copy / 1e12:.2f} TB/s, read and written",
        "cuda": str(torch.version.cuda),
    }
    packages = ("torch", "triton", "flashinfer-python")
    print(write_results("tp", figures, packages, hardware=hardware))


if __name__ == "__main__":
    main()
