"""FlashInfer's kernels of a model, built by asking for them."""

import torch

from engine.attention.flashinfer_backend import FlashInferAttention
from engine.attention.gpu_select import create_gpu_attention
from engine.batch import SchedulerOutput
from engine.config import ModelConfig
from engine.dummy_part import dummy_part
from engine.forward_batch import build_forward_batch
from engine.kv_cache import KvCache


@torch.inference_mode()
def build_flashinfer(config: ModelConfig, block_size: int) -> bool:
    """Attends to a few zeros on the current GPU: a prompt from its start and the rest of one, for
    each window of the model. False where FlashInfer does not cover the model."""
    device = torch.device("cuda", torch.cuda.current_device())
    kv_cache = KvCache(
        config, num_blocks=1, block_size=block_size, dtype=torch.bfloat16, device=device
    )
    attention = create_gpu_attention(kv_cache)
    if not isinstance(attention, FlashInferAttention):
        return False
    num_all = config.num_heads + 2 * config.num_kv_heads
    for context in (0, block_size):
        output = SchedulerOutput((dummy_part(2, context, block_size),))
        attention.plan(build_forward_batch(output, block_size).to(device))
        for window in {None, config.sliding_window}:
            qkv = torch.zeros(2, num_all, config.head_dim, dtype=torch.bfloat16, device=device)
            attention.run_step(0, qkv, window)
    torch.cuda.synchronize()
    return True
