"""``python -m bench.cpu``: this engine against llama.cpp on the same GGUF, threads and machine.

Prefill of 512 tokens, and decode at a context of 512 for batches of 1, 8 and 32, in bf16 and with
4-bit weights. Where the CPU multiplies no bf16, ours computes in float32, as a worker would. They
take turns; a ratio is of the medians, in tok/s, ours over the rival's. The rival runs with and
without flash attention, and what is faster counts.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from bench.floor import Floor
from bench.llama_rival import LlamaRival, silence, write_bf16
from bench.model_work import attention_flops, gemm_flops
from bench.own_engine import BLOCK_SIZE, OwnEngine, block_bytes
from bench.results import FOLDER, Figure, write_results
from chassis.model_store import resolve
from engine.config import ModelConfig
from engine.model_runner import DTYPES
from worker.settings import Dtype, EngineSettings

CONTEXT = 512
RIVAL = "llama-cpp-python, low-level API, all sequences in one llama_decode"


@dataclass(frozen=True, slots=True)
class Settings:
    model: Path
    threads: int
    rounds: int
    steps: int
    batches: tuple[int, ...]
    forms: tuple[str, ...]
    dtype: Dtype
    chunk: int
    output: Path


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians in seconds for ``num_tokens`` tokens; ``attention`` is a share of ours."""

    name: str
    num_tokens: int
    ours: float
    rival: float
    attention: float
    floor: float
    dtype: Dtype

    def figures(self) -> list[Figure]:
        ours, rival = self.num_tokens / self.ours, self.num_tokens / self.rival
        head, _, form = self.name.rpartition(".")
        return [
            Figure(
                name=f"{head}.ratio.{form}",
                value=round(self.rival / self.ours, 3),
                unit="ours / rival, tok/s",
                rival=round(rival, 1),
                rival_source=RIVAL,
                floor=round(self.rival / self.floor, 3),
                note=f"ours {ours:.1f} tok/s in {self.dtype}, rival {rival:.1f} tok/s; "
                f"attention takes {self.attention:.0%} of ours; "
                f"floor: the ratio if we only read and multiplied",
            ),
            Figure(
                name=f"{head}.attention_share.{form}",
                value=round(self.attention, 3),
                unit="share of our time",
            ),
        ]


def main() -> None:
    settings = _parse()
    silence()
    torch.set_num_threads(settings.threads)
    floor = Floor.of_cpu(DTYPES[settings.dtype])
    print(
        f"reads {floor.bytes_per_second / 1e9:.1f} GB/s, "
        f"{floor.flops / 1e9:.0f} GFLOP/s in {settings.dtype}",
        flush=True,
    )
    figures = []
    for form in settings.forms:
        for comparison in _compare(form, settings, floor):
            figures += comparison.figures()
            print(
                f"{figures[-2].name:28} {figures[-2].value:6.3f}   {figures[-2].note}", flush=True
            )
    versions = ("torch", "llama-cpp-python", "baton-serve")
    print(write_results("cpu", figures, versions, settings.output))


def _parse() -> Settings:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name or path of a GGUF")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5, help="turns each engine takes")
    parser.add_argument("--steps", type=int, default=128, help="decode steps a turn")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--forms", nargs="+", default=["bf16", "q4"], choices=["bf16", "q4"])
    parser.add_argument("--chunk", type=int, default=512, help="prompt tokens a step of ours")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    arguments = parser.parse_args()
    return Settings(
        model=resolve(arguments.model).path,
        threads=arguments.threads,
        rounds=arguments.rounds,
        steps=arguments.steps,
        batches=tuple(arguments.batches),
        forms=tuple(arguments.forms),
        dtype=EngineSettings().dtype_on("cpu"),
        chunk=arguments.chunk,
        output=arguments.output,
    )


def _compare(form: str, settings: Settings, floor: Floor) -> list[Comparison]:
    num_seqs = max(settings.batches)
    max_len = -(-(CONTEXT + settings.steps + 1) // 256) * 256
    ours = OwnEngine(
        settings.model,
        dtype=settings.dtype,
        quantized=form == "q4",
        num_threads=settings.threads,
        num_seqs=num_seqs,
        max_len=max_len,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = settings.model
        if form == "bf16":
            path = Path(folder) / "bf16.gguf"
            write_bf16(settings.model, path)
        rivals = [
            LlamaRival(
                path,
                flash=flash,
                num_threads=settings.threads,
                num_seqs=num_seqs,
                max_len=max_len,
            )
            for flash in (False, True)
        ]
    try:
        return _measure(form, settings, floor, ours, rivals)
    finally:
        for rival in rivals:
            rival.close()


def _measure(
    form: str, settings: Settings, floor: Floor, ours: OwnEngine, rivals: Sequence[LlamaRival]
) -> list[Comparison]:
    model = ours.runner.model_config
    weights = ours.runner.resident_weight_bytes
    prompts = [_prompt(model, seq) for seq in range(max(settings.batches))]
    for seq, prompt in enumerate(prompts):
        ours.prefill(prompt, settings.chunk, seq)
        for rival in rivals:
            rival.prefill(prompt, seq)
    comparisons = [
        _take_turns(
            f"cpu.prefill{CONTEXT}.{form}",
            CONTEXT,
            settings.rounds,
            ours,
            partial(ours.prefill, prompts[0], settings.chunk),
            [partial(rival.prefill, prompts[0]) for rival in rivals],
            floor.seconds(
                num_bytes=weights,
                num_flops=gemm_flops(model, CONTEXT, 1)
                + attention_flops(model, CONTEXT, 1, CONTEXT / 2),
            ),
            settings.dtype,
        )
    ]
    for batch in settings.batches:
        context = CONTEXT + settings.steps / 2
        step_floor = floor.seconds(
            num_bytes=weights + batch * context * block_bytes(model, settings.dtype) / BLOCK_SIZE,
            num_flops=gemm_flops(model, batch, batch)
            + attention_flops(model, batch, batch, context),
        )
        comparisons.append(
            _take_turns(
                f"cpu.decode.b{batch}.{form}",
                batch * settings.steps,
                settings.rounds,
                ours,
                partial(ours.decode, batch, CONTEXT, settings.steps),
                [partial(rival.decode, batch, CONTEXT, settings.steps) for rival in rivals],
                step_floor * settings.steps,
                settings.dtype,
            )
        )
    return comparisons


def _take_turns(
    name: str,
    num_tokens: int,
    rounds: int,
    engine: OwnEngine,
    run_ours: Callable[[], float],
    run_rivals: Sequence[Callable[[], float]],
    floor: float,
    dtype: Dtype,
) -> Comparison:
    ours, attention = [], []
    rivals: list[list[float]] = [[] for _ in run_rivals]
    for _ in range(rounds):
        before = engine.attention_seconds
        ours.append(run_ours())
        attention.append((engine.attention_seconds - before) / ours[-1])
        for times, run_rival in zip(rivals, run_rivals, strict=True):
            times.append(run_rival())
    return Comparison(
        name=name,
        num_tokens=num_tokens,
        ours=statistics.median(ours),
        rival=min(statistics.median(times) for times in rivals),
        attention=statistics.median(attention),
        floor=floor,
        dtype=dtype,
    )


def _prompt(model: ModelConfig, seq: int) -> list[int]:
    return [
        1000 + (seq * 7919 + 31 * index) % (model.vocab_size - 1000) for index in range(CONTEXT)
    ]


if __name__ == "__main__":
    main()
