"""Runs a step: SchedulerOutput to tensors, through the model, to samples."""

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from engine.attention.base import AttentionBackend
from engine.attention.select import create_attention
from engine.batch import ModelRunnerOutput, Sample, ScheduledRequest, SchedulerOutput
from engine.config import EngineConfig
from engine.devices import choose_device
from engine.errors import ConfigurationError
from engine.forward_batch import build_forward_batch
from engine.kv_cache import KvCache
from engine.models import DecoderModel, load_model
from engine.request import Request
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.weights.checkpoint import Checkpoint, open_checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelRunner:
    """Owns the model, the KV pool and the sampler. After construction, engine thread only."""

    # Tokens of the prompt that warms up, 0: the whole budget. The kernels of a CPU are those of
    # more tokens by then, and the budget takes seconds.
    warm_up_tokens: ClassVar[int] = 64

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint | None = None,
        *,
        make_attention: Callable[[KvCache], AttentionBackend] = create_attention,
    ) -> None:
        """Loads ``checkpoint``, or the one at ``config.model_path``.

        Raises CheckpointError for weights that cannot be used and ConfigurationError for memory
        that holds no block.
        """
        torch.set_num_threads(config.num_threads)
        if checkpoint is None:
            checkpoint = open_checkpoint(config.model_path)
        self._config = config
        self.model_config = checkpoint.config
        self._model = self._load(checkpoint)
        self.kv_cache = self._make_kv_cache()
        self._attention = make_attention(self.kv_cache)
        self._sampler = Sampler()

    def _load(self, checkpoint: Checkpoint) -> DecoderModel:
        return load_model(checkpoint, DTYPES[self._config.dtype], self._config.quantization)

    def _make_kv_cache(self) -> KvCache:
        return KvCache.from_memory(
            self.model_config,
            memory_bytes=self._config.kv_memory_bytes,
            block_size=self._config.block_size,
            dtype=DTYPES[self._config.dtype],
        )

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and output together."""
        capacity = self.kv_cache.num_blocks * self.kv_cache.block_size
        return min(self.model_config.max_position_embeddings, capacity)

    @property
    def resident_weight_bytes(self) -> int:
        return self._model.resident_bytes()

    @torch.inference_mode()
    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Computes the step and draws for the requests it brings to their last known token.

        Changes the KV pool and nothing else: the caller advances the requests.
        """
        batch = build_forward_batch(output, self.kv_cache.block_size)
        self._attention.plan(batch)
        hidden = self._model.forward(batch, self.kv_cache, self._attention)
        sampling = [part.request for part in output.scheduled if part.samples]
        samples: list[tuple[Sample, ...]] = []
        if sampling:
            logits = self._model.compute_logits(hidden[batch.logit_indices])
            samples = self._sampler.sample(logits, sampling)
        drawn = iter(samples)
        return ModelRunnerOutput(
            tuple(next(drawn) if part.samples else () for part in output.scheduled)
        )

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        """Starts a step; what it returns waits for the end and gives what ``run`` does.

        At most two steps may be under way, and are waited for in order.
        """
        result = self.run(output)
        return lambda: result

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        """Whether the next step may be launched before the tokens of ``output`` are known."""
        return False

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, as (source, destination), which no step under way may write.

        The copies are there when it returns.
        """
        for source, destination in copies:
            self.kv_cache.copy_block(source, destination)

    def warm_up(self) -> float:
        """Runs the shapes that requests will have, over the sink block; the pool stays as it is.

        The first call of a shape chooses and prepares its kernels. Returns the seconds that a step
        of the whole token budget takes, or about that.
        """
        budget = min(self._config.max_num_batched_tokens, self.max_model_len)
        num_tokens = min(budget, self.warm_up_tokens or budget)
        began = time.monotonic()
        self.run(SchedulerOutput((self._dummy(num_tokens, 0),)))
        seconds = (time.monotonic() - began) * budget / num_tokens
        for num_sequences in (1, 8, 32):
            if num_sequences <= self._config.max_num_seqs:
                context = min(64, self.max_model_len - 1)
                part = self._dummy(1, context)
                self.run(SchedulerOutput((part,) * num_sequences))
        return seconds

    def _dummy(self, num_new_tokens: int, num_computed_tokens: int) -> ScheduledRequest:
        num_tokens = num_new_tokens + num_computed_tokens
        request = Request(
            request_id="warm-up",
            token_ids=[0] * num_tokens,
            num_prompt_tokens=num_tokens,
            params=SamplingParams(),
            block_table=[0] * -(-num_tokens // self.kv_cache.block_size),
            num_computed_tokens=num_computed_tokens,
        )
        return ScheduledRequest(request, num_new_tokens)


def open_runner(config: EngineConfig, checkpoint: Checkpoint | None = None) -> ModelRunner:
    """The runner of ``config.device``; raises what the ModelRunner's construction raises."""
    if choose_device(config.device) == "cuda":
        if config.quantization != "none":
            raise ConfigurationError(
                'device "cuda" runs no quantised weights: choose "none", or "cpu"'
            )
        from engine.gpu.model_runner import GpuModelRunner

        return GpuModelRunner(config, checkpoint)
    if config.load_format != "auto":
        raise ConfigurationError('load_format "dummy" is for device "cuda" alone')
    return ModelRunner(config, checkpoint)
