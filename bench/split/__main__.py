"""``python -m bench.split``: what dividing prefill from decode costs, and what it saves.

Starts a gateway, a prefill and a decode worker: an 8B Llama shape with random weights on NVIDIA
GPUs, one for each worker where there are two; without a GPU the default model on the CPU. Measures
first and second tokens of a split request against the same without a hand-off, the hand-off as the
trace tells it, a full batch, and requests that arrive like those of Azure's conversation trace.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from baton.client import BatonClient
from bench.results import FOLDER, Figure, write_results
from bench.split.answers import Answer, ask, ask_as_they_arrive, gaps_of_full_batch, prompt_of
from bench.split.hand_offs import HandOffs
from bench.split.stack import Machine, running_on
from bench.traffic import Arrival, draw_arrivals, read_arrivals

# First tokens of vLLM's come after the hand-off.
FIRST_TOKEN_RIVALS = {2048: 68.4, 8192: 234.5}
LOAD_RIVAL = 0.992
RIVAL = "vLLM 0.24.0 split over NIXL, one prefill and one decode H200, all layers of a block in one"
# The steps after the second token say what a step takes.
NUM_TOKENS = 12
SECONDS = 20.0
GPU_PACKAGES = ("triton", "flashinfer-python", "nixl-cu13")


class Report:
    """Prints each figure when it is there."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.figures: list[Figure] = []

    def add(
        self, name: str, value: float, unit: str, *, rival: float | None = None, **more: Any
    ) -> None:
        """``rival`` counts on GPUs alone, where it was measured."""
        if rival is not None and self.machine.num_gpus:
            more |= {"rival": rival, "rival_source": RIVAL}
        self.figures.append(Figure(name, round(value, 4), unit, **more))
        print(f"{name:34} {value:10.4f} {unit} {more or ''}", flush=True)


async def measure_idle(client: BatonClient, traces: Path, length: int, report: Report) -> None:
    """One request at a time, with and without a hand-off in turn."""
    alone: list[Answer] = []
    split: list[Answer] = []
    for run in range(report.machine.runs + 1):
        # Of one token prefill gives the whole answer.
        alone.append(await ask(client, prompt_of(length, 1000 * length + 2 * run), 1))
        split.append(await ask(client, prompt_of(length, 1000 * length + 2 * run + 1), NUM_TOKENS))
    del alone[0], split[0]
    first = statistics.median(answer.times[0] for answer in split)
    added = first / statistics.median(answer.times[0] for answer in alone) - 1
    second = statistics.median(answer.gaps[0] for answer in split)
    step = statistics.median(gap for answer in split for gap in answer.gaps[1:])
    rival = FIRST_TOKEN_RIVALS.get(length)
    report.add(f"split.ttft.n{length}.ms", first * 1e3, "ms", rival=rival)
    report.add(f"handoff.ttft_added.n{length}", added, "fraction", note="of prefill alone")
    note = f"{second * 1e3:.2f} ms, less a step of {step * 1e3:.2f} ms"
    name = f"{length // 1000}k" if length >= 1000 else f"n{length}"
    report.add(f"handoff.second_token_gap.{name}.ms", (second - step) * 1e3, "ms", note=note)
    hand_offs = await HandOffs.of(traces, split)
    exposed, rate = hand_offs.exposed_seconds, hand_offs.bytes_per_second
    note = f"{hand_offs.num_bytes / 1e6:.1f} MB at {rate / 1e9:.2f} GB/s over {hand_offs.transport}"
    report.add(f"handoff.exposed.n{length}.ms", statistics.median(exposed) * 1e3, "ms", note=note)


async def measure_full_batch(client: BatonClient, report: Report) -> None:
    machine = report.machine
    gaps = sorted(
        await gaps_of_full_batch(
            client, machine.streams, machine.stream_context, machine.stream_tokens
        )
    )
    name = f"split.itl.b{machine.streams}"
    report.add(f"{name}.p50.ms", statistics.median(gaps) * 1e3, "ms")
    report.add(f"{name}.p99.ms", gaps[len(gaps) * 99 // 100] * 1e3, "ms")


async def measure_load(
    client: BatonClient, traces: Path, arrivals: Sequence[Arrival], rate: float, report: Report
) -> None:
    answers = await ask_as_they_arrive(client, arrivals)
    gaps = sorted(gap for answer in answers for gap in answer.gaps)
    firsts = sorted(answer.times[0] for answer in answers)
    good = sum(answer.is_good for answer in answers) / len(answers)
    name = f"split.load{rate:g}"
    note = f"{len(answers)} requests; first token <= 500 ms, 15 ms a token, p99 of gaps <= 50 ms"
    if report.machine.num_gpus:
        rival = LOAD_RIVAL if rate == report.machine.rate else None
        report.add(f"{name}.goodput", good, "of requests", rival=rival, note=note)
    report.add(f"{name}.ttft.p50.ms", statistics.median(firsts) * 1e3, "ms")
    report.add(f"{name}.itl.p50.ms", statistics.median(gaps) * 1e3, "ms")
    report.add(f"{name}.itl.p99.ms", gaps[len(gaps) * 99 // 100] * 1e3, "ms")
    steps = sorted((await HandOffs.of(traces, answers)).steps_to_join)
    note = f"{len(steps)} hand-offs: wait for the first step over the median step of the request"
    report.add("handoff.steps_under_load.p50", statistics.median(steps), "steps", note=note)
    report.add("handoff.steps_under_load.p99", steps[len(steps) * 99 // 100], "steps", note=note)


async def measure(options: argparse.Namespace, folder: Path, report: Report) -> None:
    machine = report.machine
    rate = options.rate or machine.rate
    if options.trace is None:
        arrivals = draw_arrivals(rate, options.seconds, machine.scale, seed=1)
    else:
        arrivals = read_arrivals(options.trace, rate, options.seconds, machine.scale)
    traces = folder / "traces"
    began = time.monotonic()
    async with (
        running_on(machine, machine.write_model(folder), folder) as address,
        BatonClient(address) as client,
    ):
        await ask(client, prompt_of(16, seed=0), 2)
        start = time.monotonic() - began
        report.add("split.start.s", start, "s", note="processes to first answer")
        for length in machine.lengths:
            await measure_idle(client, traces, length, report)
        await measure_full_batch(client, report)
        await measure_load(client, traces, arrivals, rate, report)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.split", description=__doc__)
    parser.add_argument("--trace", type=Path, help="arrivals: Azure's csv or Mooncake's jsonl")
    parser.add_argument("--rate", type=float, help="requests a second (default: 24 on GPUs)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of arriving requests")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    options = parser.parse_args()
    machine = Machine.here()
    report = Report(machine)
    with tempfile.TemporaryDirectory(prefix="baton-split-") as name:
        folder = Path(name)
        try:
            asyncio.run(measure(options, folder, report))
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(log.name, *log.read_text().splitlines()[-40:], sep="\n  ")
            raise
    gpus = machine.num_gpus
    hardware = {"gpu": f"{gpus} x {torch.cuda.get_device_name()}"} if gpus else {}
    packages = ("torch", "grpcio", *(GPU_PACKAGES if gpus else ()))
    path = write_results(
        "split", report.figures, packages, options.output, hardware=hardware, file=machine.file
    )
    print(path)


if __name__ == "__main__":
    main()
