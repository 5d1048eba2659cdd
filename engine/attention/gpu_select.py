"""Which attention runs where on a GPU: one table, measured."""

from dataclasses import dataclass
from importlib.util import find_spec

import torch

from engine.attention.triton_backend import TritonAttention
from engine.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class GpuPrefillChoice:
    """FlashInfer's kernel family for prompts on GPUs of one compute capability, None for the rest.

    Head sizes and dtypes that FlashInfer does not cover, and machines without it, take our own.
    """

    capability: tuple[int, int] | None
    backend: str
    note: str


# Llama 3.1 8B's attention on an H200; decode has no row: our own kernel needs no plan on the host.
GPU_PREFILL_TABLE = (
    GpuPrefillChoice((9, 0), "fa3", note="4 x 2048 on 2048 cached: 837 us; fa2 1234"),
    GpuPrefillChoice(None, "fa2", note="what runs everywhere"),
)

FLASHINFER_HEAD_DIMS = (64, 128, 256)


def prefill_choice(capability: tuple[int, int]) -> GpuPrefillChoice:
    """The first row that fits."""
    return next(row for row in GPU_PREFILL_TABLE if row.capability in (capability, None))


def create_gpu_attention(kv_cache: KvCache) -> TritonAttention:
    """The fastest backend for this pool on the current GPU."""
    tensor = kv_cache.tensor
    if tensor.dtype == torch.bfloat16 and find_spec("flashinfer") is not None:
        from engine.attention.flashinfer_backend import FlashInferAttention

        if tensor.shape[-1] in FLASHINFER_HEAD_DIMS:
            capability = torch.cuda.get_device_capability(tensor.device)
            backend = prefill_choice(capability).backend
            return FlashInferAttention(kv_cache, backend=backend)
    return TritonAttention(kv_cache)
