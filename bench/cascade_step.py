"""A whole decode step of 256 sequences that share 32768 tokens, Llama 3.1 8B's shape.

``python -m bench.cascade_step`` prints its milliseconds; what is known of shared prefixes it reads
where `baton kernels tune` writes it (BATON_KERNEL_DIR).
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from bench.gpu import RUNS, STEPS, WARM_STEPS, Bench
from bench.results import Figure
from engine.attention.cascade_table import CascadeRow, write_cascade
from engine.sampling_params import SamplingParams

MEMBERS, SHARED, OWN = 256, 32768, 256
NAME = "cascade.step.32k.b256.ms"
_MEASURED = RUNS * STEPS + 2 * WARM_STEPS


def compare_steps(row: CascadeRow) -> Figure:
    """A step by ``row`` and one where every sequence is by itself, each in a process of its own:
    this one should hold none of the GPU's memory."""
    together, flat = (_milliseconds(each) for each in (row, replace(row, least_tokens=())))
    note = f"every sequence by itself: {flat:.2f} ms"
    return Figure(NAME, round(together, 2), "ms", note=note)


def _milliseconds(row: CascadeRow) -> float:
    """Of a process that knows ``row`` alone."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "BATON_KERNEL_DIR": folder}
        write_cascade(row, Path(folder))
        command = [sys.executable, "-m", "bench.cascade_step"]
        run = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return float(run.stdout.splitlines()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        engine = bench.engine
        vocab_size = bench.runner.model_config.vocab_size
        generator = torch.Generator().manual_seed(1)

        def add(tokens: list[int], max_tokens: int) -> None:
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(tokens, params)

        def draw(number: int) -> list[int]:
            return torch.randint(vocab_size, (number,), generator=generator).tolist()

        shared = draw(SHARED)
        add(shared, 1)
        bench.drain()
        # Around ``OWN`` tokens while it is measured; more than a step goes by until all decode.
        for _ in range(MEMBERS):
            add(shared + draw(OWN - _MEASURED // 2), _MEASURED + MEMBERS)
        while engine.num_decoding < MEMBERS:
            engine.step()
        for _ in range(WARM_STEPS):
            engine.step()
        seconds = []
        for _ in range(RUNS * STEPS):
            started = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - started)
    print(statistics.median(seconds) * 1e3)


if __name__ == "__main__":
    main()
