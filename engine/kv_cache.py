"""The paged KV pool of one rank."""

import math
import mmap
from typing import Self

import torch

from engine.batch import ForwardBatch
from engine.config import ModelConfig
from engine.errors import ConfigurationError

_CPU = torch.device("cpu")


class KvCache:
    """One tensor ``(block, kv head, layer, 2, token, head_dim)``; index 3 is K, then V.

    A block is one contiguous piece for all layers, and so is every run of heads of a block, so
    transfers are few and large. Block 0 is the sink that padding points to; it is not part of
    ``num_blocks``, and blocks 1 to ``num_blocks`` belong to the BlockManager. The pool starts as
    zeros and holds finite numbers ever after: attention relies on that in what it masks.
    """

    def __init__(
        self,
        model: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device = _CPU,
    ) -> None:
        shape = (
            num_blocks + 1,
            model.num_kv_heads,
            model.num_layers,
            2,
            block_size,
            model.head_dim,
        )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_layers = model.num_layers
        self.block_bytes = math.prod(shape[1:]) * dtype.itemsize
        num_bytes = self.block_bytes * shape[0]
        memory = (
            _map_zeros(num_bytes)
            if device.type == "cpu"
            else torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        )
        self.tensor = memory.view(dtype).view(shape)
        # One row per (block, kv head, layer, K or V): what gathering a sequence's blocks selects.
        self.rows = self.tensor.view(-1, block_size * model.head_dim)

    @classmethod
    def from_memory(
        cls,
        model: ModelConfig,
        *,
        memory_bytes: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device = _CPU,
    ) -> Self:
        """As many blocks as fit into ``memory_bytes``, the sink included."""
        values_a_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim
        block_bytes = values_a_token * block_size * dtype.itemsize
        num_blocks = memory_bytes // block_bytes - 1
        if num_blocks < 1:
            raise ConfigurationError(
                f"kv_memory_bytes={memory_bytes} holds no block: one takes {block_bytes} bytes and "
                f"a second is needed for padding; raise kv_memory_bytes or lower block_size"
            )
        return cls(model, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=device)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        """Writes k and v (T, kv heads, head_dim) to the slots of the batch's tokens."""
        pool = self.tensor[:, :, layer]
        pool[batch.slot_blocks, :, 0, batch.slot_offsets] = k
        pool[batch.slot_blocks, :, 1, batch.slot_offsets] = v

    def row_ids(self, block_ids: torch.Tensor) -> torch.Tensor:
        """Rows of K in layer 0 for int64 ``block_ids`` (...): (..., kv heads).

        V follows one row later, the next layer two rows later. 64-bit: a row number times its
        length passes 2**31 elements in pools of common size.
        """
        num_kv_heads = self.tensor.shape[1]
        heads = torch.arange(num_kv_heads)
        return (block_ids[..., None] * num_kv_heads + heads) * (2 * self.num_layers)

    def copy_block(self, source: int, destination: int) -> None:
        """Copies a whole block, as a fork does with the partial last block of its parent."""
        self.tensor[destination].copy_(self.tensor[source])


def _map_zeros(num_bytes: int) -> torch.Tensor:
    """Zeroed bytes whose pages take memory only once written, in huge pages where possible.

    Scattered blocks touch many pages at once; huge ones keep them within the TLB's reach.
    """
    # Private, because the same advice does nothing for memory that is shared.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
