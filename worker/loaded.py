"""A model in memory, ready to compute, with what a worker says about it."""

from dataclasses import dataclass

from chassis.errors import FailedPrecondition, ServiceError
from chassis.lifecycle import CannotStart
from chassis.model_store import resolve
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.model_runner import ModelRunner
from engine.weights.checkpoint import open_checkpoint
from kvtransfer.layout import KvLayout
from modelfiles.errors import ModelFileError
from modelfiles.vocabulary_digest import vocabulary_digest
from worker.leg import Limits
from worker.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """``limits`` are the model's own; ``max_context_tokens`` also fit into the pool."""

    name: str
    runner: ModelRunner
    layout: KvLayout
    limits: Limits
    checkpoint_digest: bytes
    vocabulary_digest: bytes

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


def load_model(settings: EngineSettings, *, max_num_seqs: int) -> LoadedModel:
    """Loads what ``settings`` name. Raises CannotStart naming the file, tensor or setting."""
    try:
        local = resolve(settings.model)
        config = EngineConfig(
            model_path=str(local.path),
            dtype=settings.resolved_dtype,
            quantization=settings.quantization,
            block_size=settings.block_size,
            kv_memory_bytes=settings.kv_memory_bytes,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            num_threads=settings.num_threads,
        )
        checkpoint = open_checkpoint(config.model_path)
        vocabulary = vocabulary_digest(local.path)
        runner = ModelRunner(config, checkpoint)
    except (EngineError, ModelFileError, ServiceError) as error:
        raise CannotStart(str(error)) from error
    model = runner.model_config
    layout = KvLayout.of_model(
        model,
        model_digest=checkpoint.digest.hex(),
        dtype=config.dtype,
        block_size=config.block_size,
    )
    limits = Limits(model.vocab_size, model.max_position_embeddings, config.block_size)
    return LoadedModel(local.name, runner, layout, limits, checkpoint.digest, vocabulary)
