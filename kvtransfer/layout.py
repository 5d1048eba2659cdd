"""What must be equal on both sides for a block to mean the same (protocol 2.4)."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Self

from baton.v1 import kv_transfer_pb2
from engine.config import ModelConfig
from kvtransfer.errors import LayoutMismatch

PROTOCOL_VERSION = 1
POOL_ORDER = "block,head,layer,kv,token,dim"

_ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class HeadRange:
    """The KV heads that one rank holds."""

    first_head: int
    num_heads: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Fingerprint of a worker's pool; ``ranks`` is indexed by tensor-parallel rank.

    ``memory`` is "host" or "device": the way from one to the other is so slow (0.4 GB/s) that such
    workers are no pair.
    """

    model_digest: str
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    ranks: tuple[HeadRange, ...]
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
        num_ranks: int = 1,
    ) -> Self:
        """The layout of a pool that is divided among ``num_ranks``; ``dtype`` as torch names it,
        without "torch."."""
        num_heads = model.num_kv_heads // num_ranks
        return cls(
            model_digest=model_digest,
            dtype=dtype,
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            block_size=block_size,
            ranks=tuple(HeadRange(rank * num_heads, num_heads) for rank in range(num_ranks)),
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

    def to_pb(self) -> kv_transfer_pb2.KvLayout:
        """The message form; the ranks travel beside it, as KvRank."""
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
    def from_pb(
        cls, layout: kv_transfer_pb2.KvLayout, ranks: Iterable[kv_transfer_pb2.KvRank]
    ) -> Self:
        """The layout of a peer, from its message and its ranks in order."""
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
            ranks=tuple(HeadRange(rank.first_head, rank.num_heads) for rank in ranks),
        )


def check_same_layout(*, decode: KvLayout, prefill: KvLayout) -> None:
    """Raises LayoutMismatch naming the first field that differs, and both values."""
    # The version first: with another version nothing else need mean the same.
    names = ["protocol_version", *(field.name for field in fields(KvLayout))]
    for name in names:
        ours, theirs = getattr(decode, name), getattr(prefill, name)
        if ours != theirs:
            raise LayoutMismatch(name, _shown(ours), _shown(theirs))


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        heads = [f"heads {r.first_head}..{r.first_head + r.num_heads - 1}" for r in value]
        return f"{len(heads)}: {', '.join(heads)}"
    return value
