"""What prefill tells decode about a prompt, piece by piece."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from baton.v1 import kv_transfer_pb2


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks of the prefill pool that no later step will write (protocol 4.2).

    Covers tokens ``first_token .. first_token + num_tokens``; ``first_token`` is a multiple of
    the block size, and so is ``num_tokens`` except in a prompt's last chunk. ``checksums`` are
    those of the blocks, or empty.
    """

    first_token: int
    num_tokens: int
    block_ids: tuple[int, ...]
    checksums: tuple[int, ...] = ()

    @property
    def end_token(self) -> int:
        return self.first_token + self.num_tokens

    def without_cached(self, cached_tokens: int, block_size: int) -> "Chunk | None":
        """The part past the first ``cached_tokens`` (a multiple of ``block_size``), or None."""
        skip = max(0, cached_tokens - self.first_token)
        if skip >= self.num_tokens:
            return None
        first = skip // block_size
        return Chunk(
            self.first_token + skip,
            self.num_tokens - skip,
            self.block_ids[first:],
            self.checksums[first:],
        )

    def to_pb(self) -> kv_transfer_pb2.ChunkReady:
        return kv_transfer_pb2.ChunkReady(
            first_token=self.first_token,
            num_tokens=self.num_tokens,
            block_ids=self.block_ids,
            checksums=self.checksums,
        )

    @classmethod
    def from_pb(cls, message: kv_transfer_pb2.ChunkReady) -> Self:
        return cls(
            message.first_token,
            message.num_tokens,
            tuple(message.block_ids),
            tuple(message.checksums),
        )


@dataclass(frozen=True, slots=True)
class FirstSample:
    """The first token of one choice; ``finished`` where the choice ended on it."""

    choice: int
    token_id: int
    finished: bool = False

    def to_pb(self) -> kv_transfer_pb2.FirstSample:
        return kv_transfer_pb2.FirstSample(
            choice=self.choice, token_id=self.token_id, finished=self.finished
        )

    @classmethod
    def from_pb(cls, message: kv_transfer_pb2.FirstSample) -> Self:
        return cls(message.choice, message.token_id, message.finished)


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a prompt: KV exists for ``num_tokens`` tokens, and these were drawn after it.

    ``last_chunk`` holds what earlier chunks did not announce, as a rule the partial last block.
    """

    num_tokens: int
    first_samples: tuple[FirstSample, ...]
    last_chunk: Chunk | None = None

    def without_cached(self, cached_tokens: int, block_size: int) -> "Completion":
        """The same, its last chunk cut by what decode already has."""
        chunk = self.last_chunk
        if chunk is not None:
            chunk = chunk.without_cached(cached_tokens, block_size)
        return Completion(self.num_tokens, self.first_samples, chunk)

    def to_pb(self) -> kv_transfer_pb2.Complete:
        return kv_transfer_pb2.Complete(
            num_tokens=self.num_tokens,
            first_samples=[sample.to_pb() for sample in self.first_samples],
            last_chunk=self.last_chunk.to_pb() if self.last_chunk else None,
        )

    @classmethod
    def from_pb(cls, message: kv_transfer_pb2.Complete) -> Self:
        return cls(
            message.num_tokens,
            tuple(FirstSample.from_pb(sample) for sample in message.first_samples),
            Chunk.from_pb(message.last_chunk) if message.HasField("last_chunk") else None,
        )


def token_digest(token_ids: Sequence[int]) -> bytes:
    """SHA-256 (32 bytes) over the ids as little-endian uint32: both legs must agree on it."""
    return hashlib.sha256(np.asarray(token_ids, dtype="<u4").tobytes()).digest()
