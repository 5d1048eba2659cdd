"""Connections and reads that come, fall back, fail and go in any order, over ranks that choose."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from baton.v1 import kv_transfer_pb2
from kvtransfer.errors import TransferError
from kvtransfer.transport.choosing import ChoosingTransport
from kvtransfer.transport.cuda_ipc import CudaIpcTransport
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.ranked import RankedTransport, RemoteRank
from tests.kvtransfer.mapped_peers import HostMemory

NUM_HEADS, NUM_BLOCKS = 12, 8
RUNS = np.array([(1, 2, 2), (5, 6, 1)])
PEERS = ("a", "b", "c")


@dataclass(slots=True)
class Asked:
    """Of the tickets that are open, the peer; and the peers that can be read."""

    connecting: dict[int, str] = field(default_factory=dict)
    reading: dict[int, str] = field(default_factory=dict)
    readable: set[str] = field(default_factory=set)

    def knows(self, peer: str) -> bool:
        return peer in self.readable or peer in self.connecting.values()


class Story:
    """Ranks that map memory or, where that fails, go over a fabric; another number on each side."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        num_here, num_there = (self.random.choice([1, 2, 3, 4]) for _ in range(2))
        self.fabric = LocalFabric()
        self.memories: list[HostMemory] = []
        self.source = torch.randn(NUM_BLOCKS, NUM_HEADS, 4)
        theirs = [share.contiguous() for share in self.source.chunk(num_there, dim=1)]
        # Both sides' pools live as long as the story.
        self.there = [self.choosing(pool, f"there-{n}") for n, pool in enumerate(theirs)]
        self.pools = [torch.zeros(NUM_BLOCKS, NUM_HEADS // num_here, 4) for _ in range(num_here)]
        self.here = [self.choosing(pool, f"here-{n}") for n, pool in enumerate(self.pools)]
        self.reader = RankedTransport(self.here)
        self.asked = Asked()
        self.lost: dict[str, torch.Tensor] = {}

    def choosing(self, pool: torch.Tensor, name: str) -> ChoosingTransport:
        self.memories.append(HostMemory())
        mapped = CudaIpcTransport(pool, self.memories[-1])
        return ChoosingTransport([mapped, LocalTransport(pool, name, self.fabric)])

    def connect(self, peer: str) -> None:
        if self.asked.knows(peer):
            return
        ranks = [RemoteRank(self.spoilt(each.metadata()), each.block_bytes) for each in self.there]
        try:
            self.asked.connecting[self.reader.connect(peer, ranks)] = peer
        except TransferError:
            assert self.lost, "all of it could be reached"

    def spoilt(self, metadata: bytes) -> bytes:
        """Half of the ranks say of their mapped memory what it does not hold."""
        offers = kv_transfer_pb2.TransportOffers.FromString(metadata)
        if self.random.random() < 0.5:
            first = bytearray(offers.offers[0].metadata)
            first[16] ^= 1
            offers.offers[0].metadata = bytes(first)
        return offers.SerializeToString()

    def disconnect(self, peer: str) -> None:
        asked = self.asked
        if not asked.knows(peer) or peer in asked.reading.values():
            return
        self.reader.disconnect(peer)
        asked.readable.discard(peer)
        asked.connecting = {
            ticket: name for ticket, name in asked.connecting.items() if name != peer
        }

    def read(self, peer: str) -> None:
        if peer in self.asked.readable:
            self.asked.reading[self.reader.post(peer, RUNS)] = peer

    def poll(self, _: str) -> None:
        for end in self.reader.poll():
            # KeyError: reported twice, or given up.
            if end.ticket in self.asked.reading:
                del self.asked.reading[end.ticket]
                continue
            peer = self.asked.connecting.pop(end.ticket)
            if end.error is None:
                self.asked.readable.add(peer)
            else:
                self.reader.disconnect(peer)

    def hold(self, _: str) -> None:
        self.fabric.held = self.random.random() < 0.5
        self.random.choice(self.memories).held = self.random.random() < 0.5

    def lose(self, _: str) -> None:
        """A pool of the peer on the fabric, or all come back."""
        name = f"there-{self.random.randrange(len(self.there))}"
        if name in self.fabric.pools and self.random.random() < 0.5:
            self.lost[name] = self.fabric.pools.pop(name)
        else:
            self.fabric.pools.update(self.lost)
            self.lost.clear()

    def settle(self) -> None:
        """Everything goes well from now on; all that is open must end."""
        self.fabric.pools.update(self.lost)
        self.fabric.held = False
        for memory in self.memories:
            memory.held = False
        for _ in range(5):
            self.poll("")
        assert not self.asked.connecting and not self.asked.reading

    def check_bytes(self, peer: str) -> None:
        for pool in self.pools:
            pool.zero_()
        self.read(peer)
        self.settle()
        expected = torch.zeros_like(self.source)
        expected[[2, 3, 6]] = self.source[[1, 2, 5]]
        assert torch.equal(torch.cat(self.pools, dim=1), expected)


@pytest.mark.parametrize("seed", range(25))
def test_every_ticket_ends_once_the_bytes_are_right_and_nothing_stays_mapped(seed: int) -> None:
    torch.manual_seed(seed)
    story = Story(seed)
    chances: dict[Callable[[str], None], int] = {
        story.connect: 8,
        story.disconnect: 4,
        story.read: 8,
        story.poll: 12,
        story.hold: 4,
        story.lose: 2,
    }
    for act in story.random.choices(list(chances), list(chances.values()), k=300):
        act(story.random.choice(PEERS))
    story.settle()
    for peer in sorted(story.asked.readable):
        story.check_bytes(peer)
    for peer in PEERS:
        story.disconnect(peer)
    assert sum(memory.num_mapped for memory in story.memories) == 0
