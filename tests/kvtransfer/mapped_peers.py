"""Peers whose pools are mapped: host memory within this process, or GPUs."""

import struct

import torch

from engine.kernels.cuda.copy_pieces import copy_pieces_torch
from kvtransfer.errors import PeerUnreachable
from kvtransfer.transport.cuda_ipc import CudaIpcTransport
from kvtransfer.transport.peer_memory import Done, Mapping, PeerMemory, Pieces
from tests.kvtransfer.peers import Peer, ranks_of, shares

_ADDRESS = struct.Struct("<16xQ")


class HostMemory(PeerMemory):
    """Of this process; counts what is mapped. While ``held``, copies stay under way, unless
    somebody waits for them."""

    def __init__(self) -> None:
        self._mapped: list[int] = []
        self.held = False
        self._under_way: list[Pieces] = []

    @property
    def num_mapped(self) -> int:
        return len(self._mapped)

    def export(self, memory: torch.Tensor) -> bytes:
        return _ADDRESS.pack(memory.data_ptr())

    def map(self, exported: bytes) -> Mapping:
        (address,) = _ADDRESS.unpack(exported)
        if address < 4096:
            raise PeerUnreachable("nothing lies there")
        self._mapped.append(address)
        return Mapping(address, address)

    def unmap(self, mapping: Mapping) -> None:
        self._mapped.remove(mapping.address)
        sources = {int(source) for pieces in self._under_way for source in pieces[:, 0]}
        unread = mapping.address in self._mapped or mapping.address not in sources
        assert unread, "it may be read just now"

    def copy(self, pieces: Pieces) -> None:
        self._under_way.append(pieces)

    def mark(self) -> Done:
        return self._is_over

    def finish(self) -> None:
        for pieces in self._under_way:
            copy_pieces_torch(torch.from_numpy(pieces), int(pieces[:, 2].max()))
        self._under_way.clear()

    def _is_over(self) -> bool:
        if not self.held:
            self.finish()
        return not self._under_way


class MappedPeer(Peer):
    """In this process, on the host or a GPU. It takes no part in reads, so that it cannot be
    noticed when it is frozen or dead."""

    def __init__(self, offset: int, device: str, num_ranks: int = 1) -> None:
        self.offset = offset
        self.name = f"mapped-{offset}"
        pools = [pool.to(device) for pool in shares(offset, num_ranks)]
        self._transports = [CudaIpcTransport(pool, memory_of(pool)) for pool in pools]
        self.ranks = ranks_of([each.metadata() for each in self._transports])

    def freeze(self) -> None:
        """Of no effect on reads."""

    def thaw(self) -> None:
        """Of no effect on reads."""

    def kill(self) -> None:
        """Its memory is still mapped where it was."""


def memory_of(pool: torch.Tensor) -> PeerMemory:
    """That on which the pool lies."""
    if not pool.is_cuda:
        return HostMemory()
    from kvtransfer.transport.cuda_memory import CudaMemory

    return CudaMemory(pool.device)
