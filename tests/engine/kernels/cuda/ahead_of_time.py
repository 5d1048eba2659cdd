"""What the tests of compiling ahead of time run in processes of their own: Triton's interpreter,
which the others use, cannot compile.

``build 80 90``: compiles the launches of a model that has every branch, and prints each kernel.
``missing 90``: prints what prompts of many lengths launch and a warm-up does not.
``launch 90``: makes the same launches for real, but for the loading onto a GPU.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from bench.gpu import CONFIG
from engine.attention.cascade import Cascade
from engine.batch import SchedulerOutput
from engine.dummy_part import dummy_part
from engine.gpu.rehearsal import Rehearsal
from engine.kernels.cuda.compilation import compile_all, list_launches
from engine.kernels.cuda.copy_pieces import rehearse_copy
from engine.kernels.cuda.launch import Gpu, assuming
from engine.kernels.cuda.small_gemm import SmallGemmShape, small_gemm
from engine.kv_cache import KvCache
from engine.sampling_params import SamplingParams
from engine.weights.hf_config import config_from_hf

PROCESSORS = 132
LAUNCHED_FOR = 90


def steps(*, qk_norm: bool) -> None:
    """Two layers of Llama 3.1 8B, one with a window."""
    shape = CONFIG | {"num_hidden_layers": 2, "max_position_embeddings": 1024}
    if qk_norm:
        shape |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    config = config_from_hf("shapes", shape)
    Rehearsal(config, 16).warm_up(max_sequences=2, max_tokens=256)


def gemms() -> None:
    """Those of the table, which other GPUs have no rows in."""
    weight = torch.empty(8192, 4096, dtype=torch.bfloat16, device="meta")
    for num_tokens in (1, 8):
        x = torch.empty(num_tokens, 4096, dtype=torch.bfloat16, device="meta")
        for silu in (False, True):
            small_gemm(x, weight, SmallGemmShape(32, 256, 4, 3), silu=silu)


def prefixes() -> None:
    """In a shape that the kernel for Hopper does not cover, so that both are compiled there."""
    config = config_from_hf("shapes", CONFIG | {"num_hidden_layers": 1, "head_dim": 256})
    meta = torch.device("meta")
    pool = KvCache(config, num_blocks=1, block_size=16, dtype=torch.bfloat16, device=meta)
    query = torch.empty(2, 32, 256, dtype=torch.bfloat16, device=meta)
    tables = torch.empty(16, dtype=torch.int32, device=meta)
    Cascade(pool, 32, 2).attend(query, pool.tensor[:, :, 0], tables, tables[:1])


def gpu_of(architecture: int) -> Gpu:
    major, minor = divmod(architecture, 10)
    return Gpu((major, minor), PROCESSORS)


def work_of(architecture: int) -> list[Callable[[], None]]:
    """All branches, once for each architecture."""
    work: list[Callable[[], None]] = [partial(steps, qk_norm=True), gemms, prefixes, rehearse_copy]
    return [*work, partial(steps, qk_norm=False)] if architecture == LAUNCHED_FOR else work


def build(architectures: list[int]) -> None:
    compilations = [
        each
        for architecture in architectures
        for function in work_of(architecture)
        for each in list_launches(gpu_of(architecture), function)
    ]
    for done in compile_all(list(dict.fromkeys(compilations)), 2):
        print(f"{done.kernel} sm_{done.architecture}")


class PaperGpu:
    """A driver that loads and launches nothing."""

    utils: "PaperGpu"

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture
        self.utils = self
        self.num_launches = 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._architecture, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 30}

    def load_binary(self, *_: Any) -> tuple[int, int, int, int, int]:
        return 0, 0, 0, 0, 1024

    def launcher_cls(self, *_: Any) -> Callable[..., None]:
        def launch(*_: Any) -> None:
            self.num_launches += 1

        return launch


def launch(architecture: int) -> None:
    paper = PaperGpu(architecture)
    driver.set_active(paper)
    with assuming(gpu_of(architecture)):
        for function in work_of(architecture):
            function()
    print(paper.num_launches)


def print_missing(architecture: int) -> None:
    rehearsal = Rehearsal(config_from_hf("shapes", CONFIG | {"num_hidden_layers": 2}), 16)
    gpu = gpu_of(architecture)
    warm = list_launches(gpu, lambda: rehearsal.warm_up(max_sequences=256, max_tokens=2048))

    adjusted = SamplingParams(repetition_penalty=0.9, logit_bias={3: 1.0, 4: -1.0}, logprobs=20)

    def requests() -> None:
        for context in (0, 5, 16, 31, 240):
            for num_tokens in (*range(2, 50), 64, 100, 256):
                rehearsal.run(SchedulerOutput((dummy_part(num_tokens, context, 16),)))
        for number in range(2, 20):
            parts = [dummy_part(2 + place, 0, 16) for place in range(number)]
            rehearsal.run(SchedulerOutput(tuple(parts)))
            parts = [dummy_part(16 * place + 1, 0, 16, adjusted) for place in range(number)]
            rehearsal.run(SchedulerOutput(tuple(parts)))
        for params in (adjusted, replace(adjusted, logprobs=0), replace(adjusted, logprobs=None)):
            part = dummy_part(17, 0, 16, params, choices=tuple(range(16)))
            rehearsal.run(SchedulerOutput((part,)))

    for each in list_launches(gpu, requests):
        if each not in warm:
            print(each.kernel, each.specialization)


if __name__ == "__main__":
    command, *numbers = sys.argv[1:]
    if command == "build":
        build([int(number) for number in numbers])
    elif command == "missing":
        print_missing(int(numbers[0]))
    else:
        launch(int(numbers[0]))
