"""How long hand-offs wait for their first decode step, launched at once and launched late.

``python -m bench.joins`` runs a decode worker's engine, without a prefill worker, on one NVIDIA
GPU: 64 sequences of Llama-3.1-8B's shape with random weights, and 24 hand-offs a second at random
times, whose KV is said to have arrived 10 or 50 ms after their room. Each variant sees the same
hand-offs with every step launched at once, which is the rival, and as a worker does it. It takes
45 seconds and writes ``bench/results/joins.json``. Without a GPU the same runs over a device that
sleeps, to try the benchmark itself: nothing is measured, and nothing written.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bench.gpu import CONFIG
from bench.joins.decode_engine import (
    BLOCK_SIZE,
    MAX_SEQUENCES,
    MAX_STEP_TOKENS,
    Joins,
    measure,
)
from bench.joins.sleeping_device import SleepingDevice
from bench.results import FOLDER, Figure, write_results
from engine.config import EngineConfig
from engine.gpu.model_runner import CAPTURE, GpuModelRunner
from worker.switch_interval import SWITCH_INTERVAL

# Seconds from room to the last byte in the mean; None: nothing arrives.
VARIANTS = {"steady": None, "pull10": 0.01, "pull50": 0.05}
SECONDS, STEADY_SECONDS = 6.0, 2.0
NUM_BLOCKS, KV_BYTES = 20000, 40 << 30
RIVAL = "every step launched at once, same run"


def figures_of(name: str, late: Joins, at_once: Joins) -> list[Figure]:
    """Of launching late; launching at once is the rival."""
    figures = []

    def add(what: str, of: Callable[[Joins], float], unit: str, note: str) -> None:
        value, rival = (round(of(joins), 4) for joins in (late, at_once))
        figures.append(Figure(f"joins.{name}.{what}", value, unit, rival, RIVAL, note=note))

    if late.waits:
        note = f"{len(late.waits)} hand-offs: wait for the first step over the median step"
        add("steps.p50", lambda joins: joins.percentile(50), "steps", note)
        add("steps.p99", lambda joins: joins.percentile(99), "steps", note)
    note = "by the device's clock"
    add("step.ms", lambda joins: joins.step_seconds * 1e3, "ms", note)
    add("device_idle.fraction", lambda joins: joins.idle, "of the time", note)
    # Nothing is put off where steps are launched at once.
    note = f"{late.num_put_off} of {late.num_steps} were put off"
    figures.append(Figure(f"joins.{name}.device_waits", late.num_device_waits, "steps", note=note))
    return figures


def measure_all(runner: GpuModelRunner | SleepingDevice, num_blocks: int) -> list[Figure]:
    figures: list[Figure] = []
    for name, pull in VARIANTS.items():
        seconds = STEADY_SECONDS if pull is None else SECONDS
        at_once = measure(runner, num_blocks, pull, seconds, late=False)
        late = measure(runner, num_blocks, pull, seconds, late=True)
        for each in figures_of(name, late, at_once):
            rival = "" if each.rival is None else f"at once {each.rival:.4f}  "
            print(f"{each.name:34} {each.value:9.4f} {each.unit}  {rival}{each.note}", flush=True)
            figures.append(each)
    return figures


def load_runner() -> GpuModelRunner:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        runner = GpuModelRunner(
            EngineConfig(
                model_path=folder,
                device="cuda",
                load_format="dummy",
                block_size=BLOCK_SIZE,
                kv_memory_bytes=KV_BYTES,
                max_num_batched_tokens=MAX_STEP_TOKENS,
                max_num_seqs=MAX_SEQUENCES,
            )
        )
    # As another rank is told to, without shared prefixes: no prompt is computed here, so that what
    # a warm-up compiles for them is not needed.
    runner.follow(CAPTURE, [np.array([0])])
    return runner


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.joins", description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    options = parser.parse_args()
    # As in a worker.
    sys.setswitchinterval(SWITCH_INTERVAL)
    if not torch.cuda.is_available():
        print("no GPU: over a device that sleeps, so that these are no measurements", flush=True)
        measure_all(SleepingDevice(), NUM_BLOCKS)
        return
    runner = load_runner()
    figures = measure_all(runner, runner.kv_cache.num_blocks)
    hardware = {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    print(write_results("joins", figures, ("torch", "triton"), options.output, hardware=hardware))


if __name__ == "__main__":
    main()
