"""Settings that prefill and decode workers share."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chassis.settings import setting

Dtype = Literal["float32", "bfloat16"]
Device = Literal["cpu", "cuda"]
TransportChoice = Literal["auto", "cuda_ipc", "nixl"]

CPU_KV_MEMORY_BYTES = 1 << 30
# Tokens of a step: on a CPU what it computes in a fraction of a second.
CPU_STEP_TOKENS, GPU_STEP_TOKENS = 256, 2048


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a worker computes with; meant to be nested with ``group``."""

    model: str = setting(
        "smollm2-135m",
        help="name in the model store, path of a GGUF file, or of a Hugging Face folder",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", help="what to compute on; auto is the NVIDIA GPU where there is one"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        help="type of activations and KV; auto is bfloat16 where the device multiplies it",
    )
    quantization: Literal["none", "q4"] = setting("none", help="q4 keeps 4-bit weights 4-bit")
    load_format: Literal["auto", "dummy"] = setting(
        "auto", help="dummy draws random weights in the model's shape, for measuring a GPU"
    )
    kv_memory_bytes: int = setting(
        0,
        help="bytes of the KV pool, in each process of a worker; 0: 1 GiB, on a GPU nine tenths of "
        "what the weights leave free",
        minimum=0,
    )
    block_size: int = setting(16, help="tokens a KV block", minimum=1, maximum=1024)
    max_num_batched_tokens: int = setting(
        0, help="tokens that one step computes; 0: 256, on a GPU 2048", minimum=0
    )
    tensor_parallel_size: int = setting(
        1,
        help="processes that divide the model's heads, on a GPU each; for each role its own",
        minimum=1,
    )
    transport: TransportChoice = setting(
        "auto",
        help="what moves KV blocks; auto is cuda_ipc between GPUs of one host, else nixl, as each "
        "pair of workers finds out",
    )
    threads: int = setting(
        0,
        help="CPU threads of the engine in each process; 0: cores / workers_on_host, divided "
        "among those of a worker",
        minimum=0,
    )
    workers_on_host: int = setting(2, help="workers that share this host's cores", minimum=1)
    workers_on_device: int = setting(1, help="workers that share the GPU", minimum=1)
    max_queue: int = setting(256, help="requests that may wait to be admitted", minimum=1)
    stuck_seconds: float = setting(
        10.0,
        help="seconds that one step may take (ten times what the longest should, if that is more) "
        "before the engine counts as stuck and the process ends",
        minimum=0.1,
    )
    max_request_seconds: float = setting(
        600.0, help="seconds of a request that has no deadline", minimum=0.001
    )

    @property
    def num_threads(self) -> int:
        """CPU threads of the engine, at least 1."""
        processes = self.workers_on_host * self.tensor_parallel_size
        return self.threads or max(1, len(os.sched_getaffinity(0)) // processes)

    def dtype_on(self, device: Device) -> Dtype:
        """``dtype``, with auto decided for this machine."""
        if self.dtype != "auto":
            return self.dtype
        fast = device == "cuda" or multiplies_bfloat16(Path("/proc/cpuinfo"))
        return "bfloat16" if fast else "float32"

    def kv_memory_on(self, device: Device) -> int:
        """Bytes of the KV pool; 0 where the GPU is to say how many it has."""
        return self.kv_memory_bytes or (0 if device == "cuda" else CPU_KV_MEMORY_BYTES)

    def step_tokens_on(self, device: Device) -> int:
        """Tokens that one step computes."""
        default = GPU_STEP_TOKENS if device == "cuda" else CPU_STEP_TOKENS
        return self.max_num_batched_tokens or default


def multiplies_bfloat16(cpuinfo: Path) -> bool:
    """Whether the CPU has instructions that multiply bfloat16, by the kernel's own list."""
    try:
        lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)
