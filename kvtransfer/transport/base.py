"""How blocks move: one-sided reads from the pool of a peer's rank into that of a rank here."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvtransfer.checksums import head_checksums
from kvtransfer.errors import TransferError
from kvtransfer.transport.block_runs import BlockRuns, each_block


@dataclass(frozen=True, slots=True)
class BlockPart:
    """What a pool takes of each block of another one: a run of KV heads, in bytes.

    ``num_bytes`` from ``remote_offset`` on of a block of ``remote_block_bytes`` go to
    ``local_offset`` of a block here.
    """

    remote_block_bytes: int
    remote_offset: int
    local_offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A ticket after which nothing moves any more, unless ``final`` is False.

    ``error`` is None where every byte arrived. A ticket that is not final failed, but may still
    write to its destination for all the transport knows: it will not be reported again.
    """

    ticket: int
    error: TransferError | None = None
    final: bool = True


class Transport(ABC):
    """Moves blocks, or a part of each, from other pools into one rank's ``pool``.

    ``pool`` is a contiguous tensor whose first axes are the block and the KV head, on any device;
    it is registered once, at construction, and must outlive the transport. One in another process
    is described by a tensor on the device "meta". Construction raises TransportUnavailable where
    this machine cannot move blocks.

    A peer is the pool of one rank elsewhere; several may belong to one worker. Not thread-safe and
    never blocking for long: after construction the transfer thread alone calls it. Tickets are
    positive and never reused.
    """

    name: str
    """Short name for metrics, spans and the handshake: "nixl"."""

    def __init__(self, pool: torch.Tensor) -> None:
        if not pool.is_contiguous():
            raise ValueError(f"pool of shape {tuple(pool.shape)} is not contiguous")
        self.pool = pool
        self.num_blocks = int(pool.shape[0])
        # Python ints: ids times block size passes 2^31 in ordinary pools (protocol 4.7).
        self.block_bytes = math.prod(pool.shape[1:]) * pool.element_size()

    @abstractmethod
    def metadata(self) -> bytes:
        """What a peer needs for ``connect``; the same for the transport's life."""

    @abstractmethod
    def connect(self, peer: str, metadata: bytes, part: BlockPart) -> int:
        """Begins to make ``peer`` readable; the ticket ends once a byte has really moved.

        Every read from it moves ``part`` of each block. Raises PeerError where ``metadata`` is of
        no use. The peer must be unknown.
        """

    @abstractmethod
    def disconnect(self, peer: str) -> None:
        """Forgets ``peer``. All of its tickets must have ended."""

    @abstractmethod
    def post(self, peer: str, runs: BlockRuns) -> int:
        """Begins to read ``runs``, which are not empty, and gives the ticket.

        Errors of the peer are reported by ``poll``, so that a failed post has a ticket too.
        """

    @abstractmethod
    def poll(self) -> list[Ended]:
        """Makes progress in both directions, and reports every ticket that ended since."""

    def checksums(self, block_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Those of each block's KV heads here. Any thread."""
        return head_checksums(self.pool, block_ids)

    def transport_of(self, peer: str) -> str:
        """The name of what moves the bytes of ``peer``, which is connected."""
        return self.name

    def byte_ranges(
        self, part: BlockPart, runs: BlockRuns, there: int = 0, here: int = 0
    ) -> npt.NDArray[np.int64]:
        """What ``part`` of ``runs`` is in bytes: rows of its place there, its place here, and
        length, where the pools begin at ``there`` and ``here``.

        A run is one row where the part is the whole block on both sides, else a row for each block.
        """
        whole = part.num_bytes == part.remote_block_bytes == self.block_bytes
        sizes = part.remote_block_bytes, self.block_bytes, part.num_bytes
        first = there + part.remote_offset, here + part.local_offset, 0
        ranges: npt.NDArray[np.int64] = (runs if whole else each_block(runs)) * sizes + first
        return ranges

    @abstractmethod
    def close(self) -> None:
        """Lets go of the pool; nothing is written to it afterwards. Idempotent."""


def enter_device(device: torch.device) -> None:
    """Makes the device's context current on this thread.

    Without one UCX does not see that memory can be mapped, and copies it through the host.
    """
    torch.cuda.set_device(device)
    # Only a call that works on the device does; to set a device that is set already does not.
    torch.cuda.synchronize(device)
