"""A rank's share of a model.

Heads and the inner size of the feed-forward are divided: q, k, v, gate and up by rows, o and down
by columns, so that a layer needs two sums over the ranks. The head is divided by tokens, and its
logits are gathered; embedding and norms are on every rank.
"""

from dataclasses import replace

import torch

from engine.config import ModelConfig
from engine.errors import ConfigurationError
from engine.layers.linear import Linear
from engine.parallel.group import Group
from engine.weights.checkpoint import Checkpoint
from engine.weights.stored_tensor import StoredTensor

_BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_COLUMNS = ("o_proj", "down_proj")


def shard_config(config: ModelConfig, size: int) -> ModelConfig:
    """The shape of one of ``size`` ranks. Raises ConfigurationError for what cannot be divided."""
    for name, what in (
        ("num_kv_heads", "KV heads"),
        ("num_heads", "query heads"),
        ("intermediate_size", "columns of the feed-forward"),
    ):
        number = getattr(config, name)
        if number % size:
            raise ConfigurationError(
                f"{number} {what} cannot be divided among {size} ranks: choose a "
                f"tensor_parallel_size that divides them"
            )
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=config.num_kv_heads // size,
        intermediate_size=config.intermediate_size // size,
    )


class ShardedCheckpoint(Checkpoint):
    """Another checkpoint, as one rank sees it: its shapes are those of ``shard_config``."""

    def __init__(self, whole: Checkpoint, rank: int, size: int) -> None:
        self.path = whole.path
        self.files = whole.files
        self.config = shard_config(whole.config, size)
        self._whole = whole
        self._rank = rank
        self._size = size

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        module, kind = name.split(".")[-2:]
        axis = self._axis(module, kind)
        if axis is None:
            return self._whole.tensor(name, shape)
        full = list(shape)
        full[axis] *= self._size
        stored = self._whole.tensor(name, tuple(full))
        if not isinstance(stored, torch.Tensor):
            stored = stored.dequantize(torch.float32)
        return stored.chunk(self._size, dim=axis)[self._rank]

    def _axis(self, module: str, kind: str) -> int | None:
        if module in _BY_ROWS:
            return 0
        return 1 if module in _BY_COLUMNS and kind == "weight" else None


class SummedLinear(Linear):
    """A layer divided by columns: what the ranks computed is added up."""

    __slots__ = ("_group", "_linear")

    def __init__(self, linear: Linear, group: Group) -> None:
        self._linear = linear
        self._group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.all_reduce(self._linear(x))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self._linear.tensors()


class GatheredLinear(Linear):
    """A layer divided by rows: what the ranks computed is put side by side."""

    __slots__ = ("_group", "_linear")

    def __init__(self, linear: Linear, group: Group) -> None:
        self._linear = linear
        self._group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.gather_columns(self._linear(x))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self._linear.tensors()
