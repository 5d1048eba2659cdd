"""What must be equal on both sides for a block to mean the same (protocol 2.4)."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Self

from baton.v1 import kv_transfer_pb2
from engine.config import ModelConfig
from kvtransfer.errors import LayoutMismatch

PROTOCOL_VERSION = 2
POOL_ORDER = "block,head,layer,kv,token,dim"

_ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class HeadRange:
    """The KV heads that one rank holds."""

    first_head: int
    num_heads: int

    def __str__(self) -> str:
        return f"{self.first_head}..{self.first_head + self.num_heads - 1}"


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Fingerprint of a worker's pool, however many ranks its heads are divided among.

    ``memory`` is "host" or "device": the way from one to the other is so slow (0.4 GB/s) that such
    workers are no pair.
    """

    model_digest: str
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    memory: str
    protocol_version: int = PROTOCOL_VERSION
    pool_order: str = POOL_ORDER

    @classmethod
    def of_model(
        cls,
        model: ModelConfig,
        *,
        model_digest: str,
        dtype: str,
        block_size: int,
        memory: str,
    ) -> Self:
        """The layout of a model's pool; ``dtype`` as torch names it, without "torch."."""
        return cls(
            model_digest=model_digest,
            dtype=dtype,
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            block_size=block_size,
            memory=memory,
        )

    @property
    def digest(self) -> bytes:
        """SHA-256 (32 bytes) over the canonical form: equal exactly when the layouts are."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).digest()

    def block_bytes(self, num_heads: int) -> int:
        """Bytes of one block of a pool that holds ``num_heads`` of the KV heads."""
        values = self.num_layers * 2 * self.block_size * self.head_dim
        return values * num_heads * _ITEM_SIZES[self.dtype]

    def divide(self, num_ranks: int) -> tuple[HeadRange, ...]:
        """The heads of each of ``num_ranks``, which is a divisor of their number."""
        num_heads = self.num_kv_heads // num_ranks
        return tuple(HeadRange(rank * num_heads, num_heads) for rank in range(num_ranks))

    def is_divided_by(self, ranks: Sequence[HeadRange]) -> bool:
        """Whether the ranks hold every head, once and in order."""
        next_head = 0
        for rank in ranks:
            if rank.first_head != next_head:
                return False
            next_head += rank.num_heads
        return next_head == self.num_kv_heads

    def to_pb(self) -> kv_transfer_pb2.KvLayout:
        """The message form."""
        return kv_transfer_pb2.KvLayout(
            protocol_version=self.protocol_version,
            model_digest=self.model_digest,
            dtype=self.dtype,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            pool_order=self.pool_order,
            memory=self.memory,
        )

    @classmethod
    def from_pb(cls, layout: kv_transfer_pb2.KvLayout) -> Self:
        """The layout of a peer, from its message."""
        return cls(
            protocol_version=layout.protocol_version,
            model_digest=layout.model_digest,
            dtype=layout.dtype,
            num_layers=layout.num_layers,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            block_size=layout.block_size,
            pool_order=layout.pool_order,
            memory=layout.memory,
        )


def check_same_layout(*, decode: KvLayout, prefill: KvLayout) -> None:
    """Raises LayoutMismatch naming the first field that differs, and both values."""
    # The version first: with another version nothing else need mean the same.
    names = ["protocol_version", *(field.name for field in fields(KvLayout))]
    for name in names:
        ours, theirs = getattr(decode, name), getattr(prefill, name)
        if ours != theirs:
            raise LayoutMismatch(name, ours, theirs)
