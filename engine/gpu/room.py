"""Makes sure that a GPU has room for a model before any of it is loaded, or says what would fit."""

from collections.abc import Iterator

import torch

from engine.config import EngineConfig, ModelConfig
from engine.errors import ConfigurationError
from engine.gpu.memory import GIB, GpuMemory, MemoryNeed, await_memory
from engine.weights.weight_bytes import weight_bytes

_MOST_RANKS = 8
_BYTES = {"float32": 4, "bfloat16": 2}


def read_memory(device: torch.device) -> GpuMemory:
    """What the driver says of a GPU."""
    return GpuMemory(*torch.cuda.mem_get_info(device))


def make_room(config: EngineConfig, model: ModelConfig, device: torch.device) -> None:
    """Waits for memory that is being given back; ConfigurationError where the model does not fit
    into what there is then."""
    need = memory_need(config, model)
    check_fits(config, model, await_memory(need, lambda: read_memory(device)))


def memory_need(config: EngineConfig, model: ModelConfig) -> MemoryNeed:
    """Of one rank."""
    return _need(config, model, config.dtype, config.tensor_parallel_size, config.workers_on_device)


def check_fits(config: EngineConfig, model: ModelConfig, memory: GpuMemory) -> None:
    """Raises ConfigurationError for a model that does not fit; it says what would."""
    need = memory_need(config, model)
    part = need.part_of(memory.total)
    if need.least <= min(memory.free, part):
        return
    pool = f"{_gib(need.pool)} of kv_memory_bytes" if need.pool else "activations and a KV pool"
    shared = f" for each of its {need.num_processes} workers" if part < memory.total else ""
    ways = list(_ways(config, model, memory)) or ["a smaller model, or a larger GPU"]
    raise ConfigurationError(
        f"the model needs {_gib(need.least)} of a GPU, {_gib(need.weights)} of weights, the rest "
        f"{pool}; this one has {_gib(part)}{shared}, and {_gib(memory.free)} are free. What would "
        f"fit: {'; '.join(ways)}"
    )


def _ways(config: EngineConfig, model: ModelConfig, memory: GpuMemory) -> Iterator[str]:
    """Single changes after which it fits, the least first."""
    need = memory_need(config, model)
    if need.least <= need.part_of(memory.total):
        yield f"the same when {_gib(need.least - memory.free)} more are free: stop what holds them"
    smaller = memory.free - need.weights
    if need.pool and smaller >= need.least_pool:
        yield f"kv_memory_bytes of at most {smaller}"
    if config.dtype == "float32" and _fits(config, model, memory, dtype="bfloat16"):
        yield "dtype bfloat16"
    if config.workers_on_device > 1 and _fits(config, model, memory, num_processes=1):
        yield "this worker alone on its GPU"
    for num_ranks in range(config.tensor_parallel_size + 1, _MOST_RANKS + 1):
        try:
            fits = _fits(config, model, memory, num_ranks=num_ranks)
        except ConfigurationError:
            continue
        if fits:
            yield f"tensor_parallel_size {num_ranks}, on as many GPUs like this one"
            return


def _fits(
    config: EngineConfig,
    model: ModelConfig,
    memory: GpuMemory,
    *,
    dtype: str | None = None,
    num_ranks: int | None = None,
    num_processes: int | None = None,
) -> bool:
    """On a GPU of the same size that nobody else uses."""
    need = _need(
        config,
        model,
        dtype or config.dtype,
        num_ranks or config.tensor_parallel_size,
        num_processes or config.workers_on_device,
    )
    return need.least <= need.part_of(memory.total)


def _need(
    config: EngineConfig, model: ModelConfig, dtype: str, num_ranks: int, num_processes: int
) -> MemoryNeed:
    item_bytes = _BYTES[dtype]
    values_a_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim // num_ranks
    # The sink, and one block to compute in.
    least_pool = 2 * values_a_token * config.block_size * item_bytes
    weights = weight_bytes(model, item_bytes, num_ranks)
    return MemoryNeed(weights, config.kv_memory_bytes, least_pool, num_processes)


def _gib(number: int) -> str:
    return f"{number / GIB:.1f} GiB"
