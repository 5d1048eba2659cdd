"""A model in memory, ready to compute, with what a worker says about it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from chassis.errors import FailedPrecondition, ServiceError
from chassis.lifecycle import CannotStart
from chassis.model_store import resolve
from engine.config import EngineConfig
from engine.devices import choose_device
from engine.errors import EngineError
from engine.model_runner import ModelRunner, open_runner
from engine.weights.checkpoint import Checkpoint, open_checkpoint
from engine.weights.dummy_checkpoint import DummyCheckpoint
from kvtransfer.layout import KvLayout
from modelfiles.errors import ModelFileError
from modelfiles.vocabulary_digest import vocabulary_digest
from worker.leg import Limits
from worker.settings import EngineSettings

RANK_MODULE = "worker.rank"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """``limits`` are the model's own; ``max_context_tokens`` also fit into the pool. A step
    computes up to ``step_tokens``."""

    name: str
    runner: ModelRunner
    layout: KvLayout
    limits: Limits
    checkpoint_digest: bytes
    vocabulary_digest: bytes
    step_tokens: int

    @property
    def num_blocks(self) -> int:
        return self.runner.kv_cache.num_blocks

    @property
    def max_context_tokens(self) -> int:
        return min(self.limits.max_context_tokens, self.num_blocks * self.limits.block_size)

    def check_fits(self, num_tokens: int, num_choices: int) -> None:
        """Raises FailedPrecondition where the empty pool is too small.

        Choices share the prompt's full blocks, and each needs one more to go on in.
        """
        block_size = self.limits.block_size
        num_full = num_tokens // block_size
        num_needed = num_full + (num_choices if num_tokens % block_size or num_choices > 1 else 0)
        if num_needed > self.num_blocks:
            raise FailedPrecondition(
                f"{num_tokens} tokens and {num_choices} choices need {num_needed} KV blocks of "
                f"{block_size} tokens, the pool has {self.num_blocks}",
                reason="POOL_TOO_SMALL",
            )


def load_model(
    settings: EngineSettings,
    *,
    max_decode_batch: int | None,
    on_failure: Callable[[BaseException], None],
) -> LoadedModel:
    """Loads what ``settings`` name, None: for a worker that computes prompts alone.

    ``on_failure`` hears, from any thread, of another rank that ends before it is told to. Raises
    CannotStart naming the file, tensor or setting.
    """
    try:
        local = resolve(settings.model)
        config = _engine_config(settings, str(local.path), max_decode_batch)
        checkpoint = _open(config)
        vocabulary = vocabulary_digest(local.path)
        runner = open_runner(config, checkpoint, rank_module=RANK_MODULE, on_rank_lost=on_failure)
    except (EngineError, ModelFileError, ServiceError) as error:
        raise CannotStart(str(error)) from error
    model = runner.model_config
    layout = KvLayout.of_model(
        model,
        model_digest=checkpoint.digest.hex(),
        dtype=config.dtype,
        block_size=config.block_size,
        memory="device" if config.device == "cuda" else "host",
    )
    limits = Limits(model.vocab_size, model.max_position_embeddings, config.block_size)
    return LoadedModel(
        local.name,
        runner,
        layout,
        limits,
        checkpoint.digest,
        vocabulary,
        config.max_num_batched_tokens,
    )


def _engine_config(
    settings: EngineSettings, path: str, max_decode_batch: int | None
) -> EngineConfig:
    device = choose_device(settings.device)
    step_tokens = settings.step_tokens_on(device)
    return EngineConfig(
        model_path=path,
        dtype=settings.dtype_on(device),
        quantization=settings.quantization,
        block_size=settings.block_size,
        kv_memory_bytes=settings.kv_memory_on(device),
        max_num_batched_tokens=step_tokens,
        # Every sequence of a step brings at least one token.
        max_num_seqs=max_decode_batch or step_tokens,
        num_threads=settings.num_threads,
        device=device,
        workers_on_device=settings.workers_on_device,
        tensor_parallel_size=settings.tensor_parallel_size,
        captures_decode=max_decode_batch is not None,
        load_format=settings.load_format,
    )


def _open(config: EngineConfig) -> Checkpoint:
    if config.load_format == "dummy" and config.device == "cuda":
        return DummyCheckpoint(config.model_path, torch.device(config.device))
    return open_checkpoint(config.model_path)
