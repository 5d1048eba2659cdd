"""Runs a step: SchedulerOutput to tensors, through the model, to samples."""

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import ClassVar

import numpy as np
import torch

from engine.attention.base import AttentionBackend
from engine.attention.select import create_attention
from engine.batch import ForwardBatch, ModelRunnerOutput, SchedulerOutput
from engine.config import EngineConfig, ModelConfig
from engine.devices import check_device_count, choose_device
from engine.dummy_part import dummy_part
from engine.errors import ConfigurationError, RankLost
from engine.forward_batch import build_forward_batch
from engine.kv_cache import KvCache
from engine.models import DecoderModel, load_model
from engine.parallel.group import Group
from engine.parallel.ranks import MODULE, Ranks
from engine.parallel.sharding import shard_config
from engine.parallel.step_message import Array, decode
from engine.sampler import Sampler
from engine.weights.checkpoint import Checkpoint, open_checkpoint
from engine.weights.dummy_checkpoint import DummyCheckpoint

# Of the messages to other ranks: compute a batch, copy blocks.
COMPUTE, COPY = 0, 1
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelRunner:
    """Owns the model, the KV pool and the sampler. After construction, engine thread only."""

    # What warms up: tokens of a prompt, 0 for the whole budget, and sequences of decode steps. The
    # kernels of a CPU are those of more tokens by then, and the budget takes seconds.
    warm_up_tokens: ClassVar[int] = 64
    warm_up_batches: ClassVar[tuple[int, ...]] = (1, 8)

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint | None = None,
        *,
        group: Group | None = None,
        ranks: Ranks | None = None,
        make_attention: Callable[[KvCache], AttentionBackend] = create_attention,
    ) -> None:
        """Loads ``checkpoint``, or the one at ``config.model_path``; of several ranks, each its
        share of it in ``group``, and rank 0 leads the others by ``ranks``.

        Raises CheckpointError for weights that cannot be used and ConfigurationError for memory
        that holds no block.
        """
        torch.set_num_threads(config.num_threads)
        if checkpoint is None:
            checkpoint = open_checkpoint(config.model_path)
        self._config = config
        self._group = group
        self._ranks = ranks
        self.model_config = checkpoint.config
        self._model = self._load(checkpoint)
        self.kv_cache = self._make_kv_cache()
        self._attention = make_attention(self.kv_cache)
        self._sampler = Sampler()

    def _load(self, checkpoint: Checkpoint) -> DecoderModel:
        dtype = DTYPES[self._config.dtype]
        return load_model(checkpoint, dtype, self._config.quantization, group=self._group)

    @property
    def _rank_config(self) -> ModelConfig:
        """The shape of this rank's share."""
        config = self.model_config
        return config if self._group is None else shard_config(config, self._group.size)

    def _make_kv_cache(self) -> KvCache:
        return KvCache.from_memory(
            self._rank_config,
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
        if self._ranks is None:
            logits = self._compute(batch)
        else:
            with self._ranks.in_step():
                self._ranks.send(COMPUTE, batch.arrays())
                logits = self._compute(batch)
        sampling = [part.request for part in output.scheduled if part.samples]
        samples = self._sampler.sample(logits, sampling) if logits is not None else []
        drawn = iter(samples)
        return ModelRunnerOutput(
            tuple(next(drawn) if part.samples else () for part in output.scheduled)
        )

    def _compute(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Logits of the sequences that draw; None where none does."""
        self._attention.plan(batch)
        hidden = self._model.forward(batch, self.kv_cache, self._attention)
        if not batch.logit_indices.numel():
            return None
        return self._model.compute_logits(hidden)

    @torch.inference_mode()
    def follow(self, kind: int, arrays: Sequence[Array]) -> None:
        """Computes what rank 0 said, on another rank."""
        if kind == COPY:
            self.copy_blocks(arrays[0].tolist())
        else:
            self._compute(ForwardBatch.from_arrays(arrays))

    @property
    def num_ranks(self) -> int:
        return self._config.tensor_parallel_size

    @property
    def second_pipes(self) -> tuple[Connection, ...]:
        """To what the other ranks do beside computing."""
        return () if self._ranks is None else self._ranks.second_pipes

    @property
    def rank_pids(self) -> tuple[int, ...]:
        """Of the other ranks' processes."""
        return () if self._ranks is None else self._ranks.pids

    def close(self) -> None:
        """Ends the other ranks, if there are any."""
        if self._ranks is not None:
            self._ranks.close()

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        """Starts a step; what it returns waits for the end and gives what ``run`` does.

        At most two steps may be under way, and are waited for in order.
        """
        result = self.run(output)
        return lambda: result

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        """Whether the next step may be launched before the tokens of ``output`` are known."""
        return False

    def runs_apart(self, output: SchedulerOutput) -> bool:
        """Whether ``launch`` returns at once, and what it returns waits for nothing else."""
        return False

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, as (source, destination), which no step under way may write.

        The copies are there when it returns, on every rank.
        """
        if self._ranks is not None and copies:
            self._ranks.send(COPY, [np.array(copies)])
        for source, destination in copies:
            self.kv_cache.copy_block(source, destination)
        if self._ranks is not None and copies:
            # The blocks may be given back, and read into, at once.
            self._ranks.await_word()

    def warm_up(self) -> float:
        """Runs the shapes that requests will have, over the sink block; the pool stays as it is.

        The first call of a shape chooses and prepares its kernels. Returns the seconds that a step
        of the whole token budget takes, or about that.
        """
        budget = min(self._config.max_num_batched_tokens, self.max_model_len)
        num_tokens = min(budget, self.warm_up_tokens or budget)
        block_size = self.kv_cache.block_size
        began = time.monotonic()
        self.run(SchedulerOutput((dummy_part(num_tokens, 0, block_size),)))
        seconds = (time.monotonic() - began) * budget / num_tokens
        part = dummy_part(1, min(64, self.max_model_len - 1), block_size)
        for num_sequences in self.warm_up_batches:
            num_sequences = min(num_sequences, self._config.max_num_seqs)
            self.run(SchedulerOutput((part,) * num_sequences))
        return seconds


def open_runner(
    config: EngineConfig,
    checkpoint: Checkpoint | None = None,
    *,
    rank_module: str = MODULE,
    on_rank_lost: Callable[[RankLost], None] = lambda lost: None,
) -> ModelRunner:
    """The runner of ``config.device``; raises what the ModelRunner's construction raises.

    Of several ranks it is the first, which starts the others, as processes of ``rank_module``;
    RankLost where one of them fails. ``on_rank_lost`` hears at once, on a thread of its own, of one
    that ends at any time before ``close``.
    """
    if config.tensor_parallel_size == 1:
        return _make_runner(config, checkpoint)
    if config.quantization != "none":
        raise ConfigurationError('quantised weights cannot be divided among ranks: choose "none"')
    # Before any process is started for what cannot be divided.
    shard_config(_shape(config, checkpoint), config.tensor_parallel_size)
    check_device_count(config.device, config.tensor_parallel_size)
    ranks = Ranks(config, rank_module, on_rank_lost)
    try:
        return _make_runner(config, checkpoint, ranks.group, ranks)
    except BaseException:
        ranks.close()
        raise


def _shape(config: EngineConfig, checkpoint: Checkpoint | None) -> ModelConfig:
    if checkpoint is not None:
        return checkpoint.config
    if config.load_format == "dummy":
        return DummyCheckpoint(config.model_path, torch.device("cpu")).config
    return open_checkpoint(config.model_path).config


def follow_steps(
    config: EngineConfig,
    group: Group,
    pipe: Connection,
    on_loaded: Callable[[ModelRunner], None],
) -> None:
    """What a rank other than the first does, until rank 0 lets go of the pipe."""
    runner = _make_runner(config, None, group)
    on_loaded(runner)
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            return
        kind, arrays = decode(message)
        runner.follow(kind, arrays)
        if kind == COPY:
            pipe.send_bytes(b"done")


def _make_runner(
    config: EngineConfig,
    checkpoint: Checkpoint | None,
    group: Group | None = None,
    ranks: Ranks | None = None,
) -> ModelRunner:
    if choose_device(config.device) == "cuda":
        if config.quantization != "none":
            raise ConfigurationError(
                'device "cuda" runs no quantised weights: choose "none", or "cpu"'
            )
        from engine.gpu.model_runner import GpuModelRunner

        return GpuModelRunner(config, checkpoint, group=group, ranks=ranks)
    if config.load_format != "auto":
        raise ConfigurationError('load_format "dummy" is for device "cuda" alone')
    return ModelRunner(config, checkpoint, group=group, ranks=ranks)
