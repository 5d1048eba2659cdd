"""Steps of a Llama-3.1-8B-shaped model with random weights on one NVIDIA GPU.

``python -m bench.gpu`` measures a cold start, then decode steps by batch and context and prompts by
length, against floors from the copy rate and the GEMM rate that it measures in the same run. It
prints a table and writes ``bench/results/gpu.json``.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch

from bench.cold_start import cold_start
from bench.model_work import attention_flops, gemm_flops
from bench.results import Figure, write_results
from engine.config import EngineConfig
from engine.gpu.model_runner import GpuModelRunner
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams

# Batch, context, and what vLLM 0.24.0 takes on the same kind of machine, ms.
DECODES = (
    (1, 1024, 4.871),
    (8, 1024, 5.209),
    (32, 1024, 6.225),
    (128, 1024, 10.465),
    (256, 1024, 17.616),
    (32, 4096, 9.143),
    (128, 4096, 22.290),
)
PREFILLS = ((512, 16.55), (2048, 52.5), (8192, 216.7))
RIVAL = "vLLM 0.24.0, bf16, dummy weights, one H200, measured on another day"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
}
CHUNK = 8192
WARM_STEPS = 5
STEPS = 20
RUNS = 3


class Bench:
    """The unsplit engine with a loaded model, driven as a worker would drive it."""

    def __init__(
        self, folder: Path, num_ranks: int = 1, load_format: Literal["auto", "dummy"] = "dummy"
    ) -> None:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        self.engine = LLMEngine(
            EngineConfig(
                model_path=str(folder),
                device="cuda",
                load_format=load_format,
                kv_memory_bytes=0,
                max_num_batched_tokens=CHUNK,
                max_num_seqs=256,
                tensor_parallel_size=num_ranks,
                # As after hours of service: blocks of a sequence lie anywhere.
                free_list_seed=1,
            )
        )
        assert isinstance(self.engine.runner, GpuModelRunner)
        self.runner = self.engine.runner
        self.runner.warm_up()
        self._generator = torch.Generator().manual_seed(0)

    def decode(self, batch: int, context: int) -> tuple[float, float]:
        """Seconds of a step, contexts around ``context``: the median of the medians of ``RUNS``
        runs as the host sees it, and of the device alone, 0 where other ranks compute too."""
        num_prefill_steps = -(-batch * context // CHUNK) + batch
        num_steps = RUNS * STEPS + 2 * WARM_STEPS + num_prefill_steps
        for _ in range(batch):
            self._add(context - RUNS * STEPS // 2 - WARM_STEPS, num_steps)
        while self.engine.num_decoding < batch:
            self.engine.step()
        for _ in range(WARM_STEPS):
            self.engine.step()
        wall = statistics.median(self._median_step() for _ in range(RUNS))
        device = self._device_step(batch)
        while self.engine.step():
            pass
        assert len(self.engine.take_finished()) == batch
        return wall, device

    def decode_steps(self, batch: int, context: int, num_steps: int) -> Callable[[int], float]:
        """Starts ``batch`` sequences of ``context`` tokens that last ``num_steps`` steps and some.
        What it returns makes so many of them, waits for the device and gives the seconds."""
        num_prefill_steps = -(-batch * context // CHUNK) + batch
        for _ in range(batch):
            self._add(context, num_steps + num_prefill_steps + WARM_STEPS)
        while self.engine.num_decoding < batch:
            self.engine.step()

        def steps(number: int) -> float:
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(number):
                self.engine.step()
            torch.cuda.synchronize()
            return time.perf_counter() - started

        return steps

    def drain(self) -> None:
        """Lets what runs end."""
        while self.engine.step():
            pass
        self.engine.take_finished()

    def _median_step(self) -> float:
        seconds = []
        for _ in range(STEPS):
            started = time.perf_counter()
            self.engine.step()
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)

    def _device_step(self, batch: int) -> float:
        """A captured step, replayed back to back without a host in between."""
        graphs = self.runner.graphs
        assert graphs is not None
        if self.runner.rank_pids:
            return 0.0
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(STEPS):
            graphs.repeat(batch)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / STEPS

    def prefill(self, length: int) -> float:
        """Seconds from a prompt to its first token on the host."""
        torch.cuda.synchronize()
        self._add(length, 1)
        started = time.perf_counter()
        while not self.engine.take_finished():
            self.engine.step()
        return time.perf_counter() - started

    def _add(self, length: int, max_tokens: int) -> None:
        vocab_size = self.runner.model_config.vocab_size
        token_ids = torch.randint(vocab_size, (length,), generator=self._generator).tolist()
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.add_request(token_ids, params)


def copy_rate() -> float:
    """Bytes a second of a large copy on the device, read and written."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / _device_seconds(lambda: target.copy_(source))


def gemm_rate() -> float:
    """FLOPs a second of the largest GEMM of a long prompt."""
    x, weight = (torch.randn(rows, 4096, device="cuda").bfloat16() for rows in (8192, 28672))
    return 2 * 8192 * 28672 * 4096 / _device_seconds(lambda: x @ weight.t())


def _device_seconds(function: Callable[[], object]) -> float:
    """The least of many: a floor is what the device can do, with nothing beside it."""
    seconds = []
    for _ in range(40):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return min(seconds)


def decode_bytes(runner: GpuModelRunner, batch: int, context: int) -> int:
    """What a step must read: every weight but the embedding, and the KV of the batch."""
    config = runner.model_config
    embedding = config.vocab_size * config.hidden_size * 2
    token = runner.kv_cache.block_bytes // runner.kv_cache.block_size
    return runner.resident_weight_bytes - embedding + batch * context * token


def measure(bench: Bench, copy: float, gemm: float) -> list[Figure]:
    figures = []
    for batch, context, rival in DECODES:
        wall, device = bench.decode(batch, context)
        floor = decode_bytes(bench.runner, batch, context) / copy
        figures.append(
            Figure(
                name=f"decode.b{batch}.ctx{context}.ms",
                value=round(wall * 1e3, 3),
                unit="ms",
                rival=rival,
                rival_source=RIVAL,
                floor=round(floor * 1e3, 3),
                note=f"the device alone: {device * 1e3:.3f} ms",
            )
        )
        print_figure(figures[-1])
        if (batch, context) == (1, 1024):
            exposed = round(max(wall - device, 0.0) / wall, 4)
            note = "of decode.b1.ctx1024"
            figures.append(Figure("host.exposed.fraction", exposed, "of the step", note=note))
            print(f"host.exposed.fraction {exposed}", flush=True)
    config = bench.runner.model_config
    for length, rival in PREFILLS:
        flops = gemm_flops(config, length, 1) + attention_flops(config, length, 1, length / 2)
        bench.prefill(length)
        seconds = statistics.median(bench.prefill(length) for _ in range(5))
        figures.append(
            Figure(
                name=f"prefill.n{length}.ms",
                value=round(seconds * 1e3, 2),
                unit="ms",
                rival=rival,
                rival_source=RIVAL,
                floor=round(flops / gemm * 1e3, 2),
            )
        )
        print_figure(figures[-1])
    return figures


def print_figure(figure: Figure) -> None:
    floor, rival = figure.floor or 0.0, figure.rival or 0.0
    print(
        f"{figure.name:24} {figure.value:9.3f} {figure.unit}  floor {floor:8.3f} "
        f"({floor / figure.value:.2f})  vLLM {rival:8.3f} ({figure.value / rival:.2f}x)  "
        f"{figure.note or ''}",
        flush=True,
    )


def main(packages: Sequence[str] = ("torch", "triton", "flashinfer-python")) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # While this process holds none of the GPU's memory.
        cold = cold_start(Path(folder))
    print(f"{cold.name} {cold.value} {cold.note}", flush=True)
    copy, gemm = copy_rate(), gemm_rate()
    print(f"copy {copy / 1e12:.2f} TB/s, GEMM {gemm / 1e12:.0f} TFLOP/s", flush=True)
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        figures = [cold, *measure(bench, copy, gemm)]
    hardware = {
        "gpu": torch.cuda.get_device_name(),
        "gpu_copy": f"{copy / 1e12:.2f} TB/s, read and written",
        "gpu_gemm": f"{gemm / 1e12:.0f} TFLOP/s, bfloat16, 8192 x 28672 x 4096",
        "cuda": str(torch.version.cuda),
    }
    print(write_results("gpu", figures, packages, hardware=hardware))


if __name__ == "__main__":
    main()
