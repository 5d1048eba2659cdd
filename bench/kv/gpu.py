"""The KV of an 8k prompt of Llama-3.1-8B from one GPU to another, and decode steps meanwhile."""

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import pairwise
from pathlib import Path

import torch

from batonctl.doctor.block_reading import Reading, connected, pool_blocks_for, seconds_in_turn
from batonctl.doctor.pool_process import new_pool, running_pool, transport_over
from bench.gpu import Bench
from bench.results import Figure
from engine.kernels.cuda.copy_pieces import NUM_PROGRAMS
from kvtransfer.transport.base import Transport
from kvtransfer.transport.choosing import ChoosingTransport
from kvtransfer.transport.cuda_ipc import CudaIpcTransport
from kvtransfer.transport.cuda_memory import ENGINE_BYTES, CudaMemory

READER = "cuda:0"
PROMPT_BYTES = 1 << 30
BLOCK_BYTES = 2 << 20
# Of blocks of every size, who copies them; NIXL besides, where it is compared.
WAYS = {
    BLOCK_BYTES: ("kernel", "engines", "nixl"),
    256 << 10: ("kernel", "engines"),
    32 << 10: ("kernel-16", "kernel-32", "kernel", "engines", "nixl"),
}
CHOSEN = "engines" if BLOCK_BYTES >= ENGINE_BYTES else "kernel"
BATCH, CONTEXT = 32, 1024
STEPS, ROUNDS = 40, 3
# Prompts on their way at once, where what a read costs on the host hides behind others.
SUSTAINED = 4

Show = Callable[[Sequence[Figure]], None]


def gpu_name() -> str:
    return str(torch.cuda.get_device_name(READER))


def measure_gpu(num_gpus: int, show: Show, *, with_decode: bool) -> list[Figure]:
    """``show`` gets figures as soon as they are there."""
    figures: list[Figure] = []

    def add(new: Sequence[Figure]) -> None:
        show(new)
        figures.extend(new)

    with ExitStack() as entered:
        readings: dict[str, Reading] = {
            name: entered.enter_context(each)
            for size in WAYS
            for name, each in _readings(entered, size)
        }
        copy = PeerCopy(num_gpus)
        add(_rates(copy, readings))
        if with_decode:
            # The engine takes what is left of the GPU's memory.
            copy.free()
            add(_slowdowns({way: readings[f"2mib.{way}"] for way in ("kernel", "engines")}))
    return figures


class PeerCopy:
    """One contiguous copy of as many bytes, between the same GPUs, from within one process."""

    def __init__(self, num_gpus: int) -> None:
        there = torch.device("cuda", num_gpus - 1)
        self._source = torch.empty(PROMPT_BYTES, dtype=torch.uint8, device=there).random_()
        self._target = torch.empty(PROMPT_BYTES, dtype=torch.uint8, device=READER)

    def __call__(self) -> None:
        self._target.copy_(self._source)
        torch.cuda.synchronize(self._source.device)
        torch.cuda.synchronize(self._target.device)

    def free(self) -> None:
        del self._source, self._target
        torch.cuda.empty_cache()


def _readings(
    entered: ExitStack, block_bytes: int
) -> Iterator[tuple[str, AbstractContextManager[Reading]]]:
    """Over every transport, all from one peer; named by size and transport."""
    size = f"{block_bytes >> 20}mib" if block_bytes >> 20 else f"{block_bytes >> 10}kib"
    num_blocks = PROMPT_BYTES // block_bytes
    pool_blocks = pool_blocks_for(num_blocks)
    gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[-1]
    pool = new_pool(READER, pool_blocks, block_bytes)
    metadata = entered.enter_context(
        running_pool("auto", "cuda:0", pool_blocks, block_bytes, CUDA_VISIBLE_DEVICES=gpu)
    )
    for name in WAYS[block_bytes]:
        yield f"{size}.{name}", connected(_open(name, pool), metadata, num_blocks)


def _open(name: str, pool: torch.Tensor) -> Transport:
    """ "nixl", "engines", "kernel", or "kernel-32", of so many programs."""
    if name == "nixl":
        return transport_over(pool, "nixl")
    way, _, programs = name.partition("-")
    engine_bytes = 0 if way == "engines" else PROMPT_BYTES
    memory = CudaMemory(pool.device, engine_bytes, int(programs or NUM_PROGRAMS))
    return ChoosingTransport([CudaIpcTransport(pool, memory)])


def _rates(copy: PeerCopy, readings: dict[str, Reading]) -> list[Figure]:
    chosen_reading = readings[f"2mib.{CHOSEN}"]
    seconds = seconds_in_turn(copy, lambda: chosen_reading(SUSTAINED), *readings.values())
    peer_copy, sustained, *others = (PROMPT_BYTES / each / 1e9 for each in seconds)
    sustained *= SUSTAINED
    rates = dict(zip(readings, others, strict=True))
    chosen, source = rates[f"2mib.{CHOSEN}"], "a contiguous copy between the GPUs, in the same run"
    figures = [Figure("kv.8k.peer_copy.gbps", round(peer_copy, 1), "GB/s")]
    figures += [
        Figure(f"kv.8k.{name}.gbps", round(rate, 1), "GB/s", round(peer_copy, 1), source)
        for name, rate in rates.items()
    ]
    rival = "NIXL in the same run"
    note = f"{CHOSEN}: {chosen:.0f} GB/s"
    for name, value, unit, against in (
        ("of_peer_copy", chosen / peer_copy, "fraction", None),
        (f"of_peer_copy.{SUSTAINED}_at_once", sustained / peer_copy, "fraction", None),
        ("over_nixl_32kib", chosen / rates["32kib.nixl"], "x", rates["32kib.nixl"]),
        ("over_nixl_2mib", chosen / rates["2mib.nixl"], "x", rates["2mib.nixl"]),
    ):
        compared = f"{note}, {rival}: {against:.1f} GB/s" if against is not None else note
        figures.append(Figure(f"kv.8k.{name}", round(value, 3), unit, note=compared))
    return figures


class Arriving:
    """Reads without a pause while entered, asked for by a thread that computes nothing."""

    def __init__(self, read: Reading) -> None:
        self._read = read
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.num_bytes = 0

    def __enter__(self) -> "Arriving":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._read()
            self.num_bytes += self._read.num_bytes


def _slowdowns(readings: dict[str, Reading]) -> list[Figure]:
    """Of decode steps of an 8B model while blocks arrive all the time, against those just before
    and after: contexts grow, and steps with them."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
    bench.decode_steps(BATCH, CONTEXT, (2 * len(readings) * ROUNDS + 2) * STEPS)

    def step_seconds() -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            bench.engine.step()
        return (time.perf_counter() - began) / STEPS

    step_seconds()
    alone = [step_seconds()]
    during: list[tuple[str, float, float]] = []
    for _ in range(ROUNDS):
        for way, read in readings.items():
            began = time.perf_counter()
            with Arriving(read) as arriving:
                seconds = step_seconds()
            rate = arriving.num_bytes / (time.perf_counter() - began)
            during.append((way, seconds, rate))
            alone.append(step_seconds())
    bench.drain()
    slowdowns: dict[str, list[float]] = {way: [] for way in readings}
    for (way, seconds, _), (before, after) in zip(during, pairwise(alone), strict=True):
        slowdowns[way].append(2 * seconds / (before + after) - 1)
    figures = []
    for way, values in slowdowns.items():
        rate = statistics.median(rate for other, _, rate in during if other == way)
        note = f"{BATCH} x {CONTEXT}, {alone[0] * 1e3:.2f} ms alone; {rate / 1e9:.0f} GB/s arrive"
        value = round(statistics.median(values), 4)
        name = "decode.slowdown_in_transfer"
        figures.append(Figure(f"{name}.{way}", value, "fraction", note=note))
        if way == CHOSEN:
            figures.append(Figure(name, value, "fraction", note=f"{way}: {note}"))
    return figures
