"""Blocks between GPUs of one host: this one maps the pools of its peers, and reads from them."""

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvtransfer.errors import PeerLost, PeerUnreachable, TransferError, TransportUnavailable
from kvtransfer.transport.base import BlockPart, Ended, Transport
from kvtransfer.transport.block_runs import BlockRuns
from kvtransfer.transport.peer_memory import Done, Mapping, PeerMemory, Pieces

# What peers read to see that bytes move: three words, of which the first and last are the same
# random number.
_PROBE_WORDS = 3
_ADDRESS = struct.Struct("<QQq")


@dataclass(frozen=True, slots=True)
class _Peer:
    pool: Mapping
    probe: Mapping
    probe_value: int
    num_blocks: int
    part: BlockPart


@dataclass(frozen=True, slots=True)
class _Posted:
    """``landing`` is set where it reads a peer's probe; ``error`` where the copy did not begin."""

    peer: str
    done: Done
    landing: torch.Tensor | None = None
    error: TransferError | None = None


class CudaIpcTransport(Transport):
    """Maps each peer's pool once, until ``disconnect``; an unmapped one cannot be read by mistake.

    A peer takes no part in reads, alive, stopped or dead: mapped memory outlives its owner, so its
    death is known from the connection alone (protocol 4.8), and its GPU gets the memory back when
    it is disconnected here.
    """

    name = "cuda_ipc"

    def __init__(self, pool: torch.Tensor, memory: PeerMemory) -> None:
        super().__init__(pool)
        self._memory = memory
        self._probe = torch.zeros(_PROBE_WORDS, dtype=torch.int64, device=pool.device)
        self._probe_value = secrets.randbits(62)
        self._probe[::2] = self._probe_value
        if pool.is_cuda:
            # The probe is written on another stream than it is read on.
            torch.cuda.synchronize(pool.device)
        self._address = _ADDRESS.pack(self.num_blocks, self.block_bytes, self._probe_value)
        self._exports = (memory.export(pool), memory.export(self._probe))
        self._peers: dict[str, _Peer] = {}
        self._posted: dict[int, _Posted] = {}
        self._num_tickets = 0
        self._self_test()

    def metadata(self) -> bytes:
        return self._address + b"".join(self._exports)

    def connect(self, peer: str, metadata: bytes, part: BlockPart) -> int:
        if len(metadata) != len(self.metadata()):
            raise PeerUnreachable(f"{len(metadata)} bytes do not describe a pool on a GPU")
        num_blocks, block_bytes, probe_value = _ADDRESS.unpack_from(metadata)
        if block_bytes != part.remote_block_bytes:
            raise PeerUnreachable(
                f"{peer} has blocks of {block_bytes} bytes, not {part.remote_block_bytes}"
            )
        middle = _ADDRESS.size + len(self._exports[0])
        pool = self._memory.map(metadata[_ADDRESS.size : middle])
        try:
            probe = self._memory.map(metadata[middle:])
        except TransferError:
            self._memory.unmap(pool)
            raise
        self._peers[peer] = _Peer(pool, probe, probe_value, num_blocks, part)
        landing = self._new_landing()
        return self._post(peer, _probe_copies(probe.address, landing), landing)

    def disconnect(self, peer: str) -> None:
        waiting = [ticket for ticket, posted in self._posted.items() if posted.peer == peer]
        for ticket in waiting:
            # Only a probe may be left here: it must not read what is unmapped, nor write to a
            # landing that is gone.
            assert self._posted[ticket].landing is not None, f"{peer} is still being read"
            self._memory.finish()
            del self._posted[ticket]
        self._unmap(self._peers.pop(peer))

    def post(self, peer: str, runs: BlockRuns) -> int:
        known = self._peers[peer]
        if int((runs[:, 0] + runs[:, 2]).max()) > known.num_blocks:
            # A GPU that reads what is not mapped is of no use to its process any more.
            self._num_tickets += 1
            error = PeerLost(f"{peer} has {known.num_blocks} blocks, not all of {runs.tolist()}")
            self._posted[self._num_tickets] = _Posted(peer, lambda: True, error=error)
            return self._num_tickets
        begins = known.pool.address, self.pool.data_ptr()
        return self._post(peer, [self.byte_ranges(known.part, runs, *begins)], None)

    def poll(self) -> list[Ended]:
        ended = []
        # Copies end in order: none is over while an older one is not.
        for ticket, posted in tuple(self._posted.items()):
            if not posted.done():
                break
            del self._posted[ticket]
            ended.append(Ended(ticket, self._error_of(posted)))
        return ended

    def close(self) -> None:
        self._memory.finish()
        self._posted.clear()
        while self._peers:
            self._unmap(self._peers.popitem()[1])

    def _post(self, peer: str, copies: Sequence[Pieces], landing: torch.Tensor | None) -> int:
        self._num_tickets += 1
        error: TransferError | None = None
        try:
            for pieces in copies:
                self._memory.copy(pieces)
        except TransferError as caught:
            error = caught
        # Of what began before an error, too: the ticket ends when that is over.
        self._posted[self._num_tickets] = _Posted(peer, self._memory.mark(), landing, error)
        return self._num_tickets

    def _error_of(self, posted: _Posted) -> TransferError | None:
        if posted.error is not None or posted.landing is None:
            return posted.error
        if _has_landed(posted.landing, self._peers[posted.peer].probe_value):
            return None
        return PeerUnreachable(f"{posted.peer} was read, but the bytes are not its own")

    def _new_landing(self) -> torch.Tensor:
        """On the host, where a value is seen without asking the GPU for it."""
        landing = torch.zeros(_PROBE_WORDS, dtype=torch.int64)
        return landing.pin_memory() if self.pool.is_cuda else landing

    def _unmap(self, peer: _Peer) -> None:
        for mapping in (peer.pool, peer.probe):
            self._memory.unmap(mapping)

    def _self_test(self) -> None:
        """Reads the own probe, which also compiles what later reads need."""
        landing = self._new_landing()
        try:
            for pieces in _probe_copies(self._probe.data_ptr(), landing):
                self._memory.copy(pieces)
            self._memory.finish()
        except TransferError as error:
            raise TransportUnavailable(f"memory of this GPU cannot be copied: {error}") from error
        if not _has_landed(landing, self._probe_value):
            raise TransportUnavailable("the self-test read other bytes than were there")


def _probe_copies(source: int, landing: torch.Tensor) -> list[Pieces]:
    """Two words, and the last one by itself: memory copies what is not aligned in another way, and
    both must work."""
    target = landing.data_ptr()
    return [
        np.array([(source + first, target + first, num_bytes)], dtype=np.int64)
        for first, num_bytes in ((0, 16), (16, 8))
    ]


def _has_landed(landing: torch.Tensor, value: int) -> bool:
    return landing.tolist() == [value, 0, value]
