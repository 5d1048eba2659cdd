"""``python -m bench.step``: where the time of a decode step and of a prefill goes.

Time by kind of work, with the bytes and FLOPs that the work needs over that time, against the rates
that this machine was measured at in the same run. On a CPU it is ``--model``, in the dtype that a
worker would take; on a GPU Llama 3.1 8B with random weights, as in bench.gpu.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from bench.floor import Floor
from bench.model_work import attention_flops, gemm_flops
from bench.op_classes import OP_CLASSES, OpClass
from bench.own_engine import OwnEngine
from bench.results import FOLDER, Figure, write_results
from bench.step_profile import StepProfile, profile_steps
from chassis.model_store import resolve
from engine.model_runner import DTYPES, ModelRunner
from worker.settings import Dtype, EngineSettings

ROUNDS = 3
STEPS = 8


@dataclass(frozen=True, slots=True)
class Work:
    """What a step cannot do without: bytes from memory, and arithmetic."""

    num_bytes: float
    num_flops: float


@dataclass(frozen=True, slots=True)
class Measured:
    """``seconds``: a step without the profiler, which lengthens what it watches."""

    name: str
    seconds: float
    profile: StepProfile
    work: dict[OpClass, Work]


def work_of(
    runner: ModelRunner, sequences: int, new_tokens: int, context: float
) -> dict[OpClass, Work]:
    """Of a step of ``sequences``, each with so many new tokens that see ``context`` in the mean."""
    config = runner.model_config
    kv_token = runner.kv_cache.block_bytes / runner.kv_cache.block_size
    size = runner.kv_cache.tensor.itemsize
    weights = float(runner.resident_weight_bytes)
    if not config.tie_word_embeddings:
        weights -= config.vocab_size * config.hidden_size * size
    tokens, longest = sequences * new_tokens, max(context, new_tokens)
    return {
        "gemm": Work(weights, gemm_flops(config, tokens, sequences)),
        "attention": Work(
            sequences * longest * kv_token, attention_flops(config, tokens, sequences, context)
        ),
        "sampling": Work(4.0 * sequences * config.vocab_size, 0.0),
    }


def figures_of(measured: Measured, floor: Floor) -> list[Figure]:
    """One for the step, one for each kind of work that took time, one for the gaps."""
    head, profile = measured.name, measured.profile
    watched = f"{profile.total * 1e3:.3f} ms under the profiler, to which the parts add up"
    figures = [Figure(f"{head}.ms", round(measured.seconds * 1e3, 3), "ms", note=watched)]
    for kind in OP_CLASSES:
        seconds = profile.seconds[kind]
        if not seconds:
            continue
        notes = [f"{seconds / profile.total:.1%} of the step"]
        least = None
        if (work := measured.work.get(kind)) is not None:
            least = floor.seconds(num_bytes=work.num_bytes, num_flops=work.num_flops)
            notes.append(_rates(work, seconds, floor))
        figures.append(_figure(f"{head}.{kind}.ms", seconds, least, ", ".join(notes)))
    share = f"{profile.idle / profile.total:.1%} of the step"
    return [*figures, _figure(f"{head}.idle.ms", profile.idle, None, share)]


def _figure(name: str, seconds: float, least: float | None, note: str) -> Figure:
    floor = None if least is None else round(least * 1e3, 3)
    return Figure(name, round(seconds * 1e3, 3), "ms", floor=floor, note=note)


def _rates(work: Work, seconds: float, floor: Floor) -> str:
    rate, flops = work.num_bytes / seconds, work.num_flops / seconds
    return (
        f"{rate / 1e9:.1f} GB/s ({rate / floor.bytes_per_second:.0%}), "
        f"{flops / 1e9:.1f} GFLOP/s ({flops / floor.flops:.0%})"
    )


def _measure(
    name: str,
    run: Callable[[int], float],
    num_steps: int,
    work: dict[OpClass, Work],
    *,
    on_gpu: bool,
) -> Measured:
    """``run`` makes so many steps and returns the seconds that they took."""
    run(num_steps)
    seconds = statistics.median(run(num_steps) / num_steps for _ in range(ROUNDS))
    profile = profile_steps(lambda: run(num_steps), num_steps, on_gpu=on_gpu)
    return Measured(name, seconds, profile, work)


def _measure_cpu(options: argparse.Namespace, dtype: Dtype) -> list[Measured]:
    batch, context = options.batch, options.context
    engine = OwnEngine(
        resolve(options.model).path,
        dtype=dtype,
        quantized=False,
        num_threads=options.threads,
        num_seqs=batch,
        max_len=-(-(context + STEPS + 1) // 256) * 256,
    )
    prompt = [index * 31 % engine.runner.model_config.vocab_size for index in range(context)]
    for seq in range(batch):
        engine.prefill(prompt, context, seq)
    decode = work_of(engine.runner, batch, 1, context + STEPS / 2)
    prefill = work_of(engine.runner, 1, context, context / 2)
    return [
        _measure(
            f"step.decode.b{batch}.ctx{context}",
            partial(engine.decode, batch, context),
            STEPS,
            decode,
            on_gpu=False,
        ),
        _measure(
            f"step.prefill.n{context}",
            lambda _: engine.prefill(prompt, context),
            1,
            prefill,
            on_gpu=False,
        ),
    ]


def _measure_gpu(options: argparse.Namespace) -> list[Measured]:
    from bench.gpu import Bench

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        batch, context = options.batch, options.context
        steps = bench.decode_steps(batch, context, (ROUNDS + 2) * STEPS)
        decode = work_of(bench.runner, batch, 1, context)
        prefill = work_of(bench.runner, 1, context, context / 2)
        measured = [
            _measure(f"step.decode.b{batch}.ctx{context}", steps, STEPS, decode, on_gpu=True)
        ]
        bench.drain()
        measured.append(
            _measure(
                f"step.prefill.n{context}",
                lambda _: bench.prefill(context),
                1,
                prefill,
                on_gpu=True,
            )
        )
    return measured


def main() -> None:
    options = _parse()
    on_gpu = torch.cuda.is_available()
    hardware = {}
    packages = ["torch"]
    if on_gpu:
        from bench.gpu import copy_rate, gemm_rate

        floor = Floor(copy_rate(), gemm_rate())
        hardware["gpu"] = torch.cuda.get_device_name()
        packages += ["triton", "flashinfer-python"]
        measured = _measure_gpu(options)
    else:
        torch.set_num_threads(options.threads)
        dtype = EngineSettings().dtype_on("cpu")
        floor = Floor.of_cpu(DTYPES[dtype])
        hardware |= {"threads": str(options.threads), "model": f"{options.model}, {dtype}"}
        measured = _measure_cpu(options, dtype)
    hardware["memory_rate"] = f"{floor.bytes_per_second / 1e9:.1f} GB/s"
    hardware["gemm_rate"] = f"{floor.flops / 1e9:.1f} GFLOP/s"
    figures = [figure for each in measured for figure in figures_of(each, floor)]
    file = "step_gpu" if on_gpu else "step"
    path = write_results("step", figures, packages, options.output, hardware=hardware, file=file)
    if options.json:
        print(json.dumps(json.loads(path.read_text())))
        return
    print(f"memory {hardware['memory_rate']}, products {hardware['gemm_rate']}")
    for figure in figures:
        least = "" if figure.floor is None else f"at least {figure.floor:.3f}"
        print(f"{figure.name:36} {figure.value:10.3f} ms  {least:18} {figure.note}")
    print(path)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.step", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="on a CPU: name or path")
    parser.add_argument("--batch", type=int, default=8, help="sequences of the decode step")
    parser.add_argument(
        "--context", type=int, default=512, help="tokens before that step, and of the prompt"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
