"""Where a pool lies in its owner's memory."""

import struct
from dataclasses import dataclass
from typing import Self

from kvtransfer.errors import PeerUnreachable

_FORMAT = struct.Struct("<QQQQQ4s")


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """Travels in front of NIXL's own metadata. ``memory`` is "DRAM" or "VRAM".

    ``probe_address`` is a word of host memory that peers read to see that bytes move.
    """

    address: int
    device: int
    num_blocks: int
    block_bytes: int
    probe_address: int
    memory: str

    def pack(self) -> bytes:
        return _FORMAT.pack(
            self.address,
            self.device,
            self.num_blocks,
            self.block_bytes,
            self.probe_address,
            self.memory.encode(),
        )

    @classmethod
    def unpack(cls, metadata: bytes) -> tuple[Self, bytes]:
        """The address, and what follows it. Raises PeerUnreachable."""
        if len(metadata) <= _FORMAT.size:
            raise PeerUnreachable(f"{len(metadata)} bytes of metadata are too few")
        address, device, num_blocks, block_bytes, probe, memory = _FORMAT.unpack_from(metadata)
        pool = cls(address, device, num_blocks, block_bytes, probe, memory.decode("latin-1"))
        return pool, metadata[_FORMAT.size :]
