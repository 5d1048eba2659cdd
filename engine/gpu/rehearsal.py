"""The steps of a worker on tensors without data: every kernel is launched that requests need."""

import torch

from engine.attention.triton_backend import TritonAttention
from engine.batch import SchedulerOutput
from engine.config import ModelConfig
from engine.dummy_part import dummy_part
from engine.forward_batch import build_forward_batch
from engine.gpu.decode_graphs import DecodeGraphs
from engine.gpu.model_runner import GpuModelRunner
from engine.gpu.odd_steps import odd_steps
from engine.gpu.sampler import GpuSampler, adjusted_draws
from engine.kv_cache import KvCache
from engine.models import load_model
from engine.weights.shape_checkpoint import ShapeCheckpoint

_META = torch.device("meta")
# Of a step, as the sampler has room for.
_SEQUENCES = 256


class Rehearsal:
    """A model in bfloat16 on one GPU that is not there. For ``list_launches``: nothing is computed.

    What it launches is what a GpuModelRunner does.
    """

    def __init__(self, config: ModelConfig, block_size: int) -> None:
        self._config = config
        self._model = load_model(ShapeCheckpoint(config), torch.bfloat16, device=_META)
        self._kv_cache = KvCache(
            config, num_blocks=1, block_size=block_size, dtype=torch.bfloat16, device=_META
        )
        self._attention = TritonAttention(self._kv_cache)
        self._sampler = GpuSampler(config.vocab_size, _SEQUENCES, _META)

    def warm_up(self, *, max_sequences: int, max_tokens: int) -> None:
        """Every step that warms a runner up; up to so many a step."""
        max_model_len = self._config.max_position_embeddings
        block_size = self._kv_cache.block_size
        for output in _eager_steps(max_sequences, max_tokens, max_model_len, block_size):
            self.run(output)
        self._launch_captured(max_sequences, max_model_len)

    @torch.inference_mode()
    def run(self, output: SchedulerOutput) -> None:
        """A step that is not captured, whose requests all draw."""
        batch = build_forward_batch(output, self._kv_cache.block_size).to(_META)
        self._attention.plan(batch)
        hidden = self._model.forward(batch, self._kv_cache, self._attention)
        logits = self._model.compute_logits(hidden)
        requests = [part.request for part in output.scheduled]
        token_ids = self._sampler.draw(logits, requests)
        if draws := adjusted_draws(requests):
            last_tokens = batch.token_ids[batch.logit_indices].int()
            self._sampler.redraw(logits, last_tokens, draws, token_ids)

    @torch.inference_mode()
    def _launch_captured(self, max_sequences: int, max_model_len: int) -> None:
        graphs = DecodeGraphs(
            self._model,
            self._kv_cache,
            self._attention,
            max_sequences=max_sequences,
            max_model_len=max_model_len,
            # Whatever this machine's table says, when it is measured.
            pays=lambda members, tokens: True,
        )
        graphs.launch_all()


def _eager_steps(
    max_sequences: int, max_tokens: int, max_model_len: int, block_size: int
) -> list[SchedulerOutput]:
    """Those that warm a runner up."""
    num_tokens = min(max_tokens, max_model_len)
    steps = [SchedulerOutput((dummy_part(num_tokens, 0, block_size),))]
    for number in GpuModelRunner.warm_up_batches:
        part = dummy_part(1, min(64, max_model_len - 1), block_size)
        steps.append(SchedulerOutput((part,) * min(number, max_sequences)))
    return steps + odd_steps(max_tokens, max_model_len, block_size)
