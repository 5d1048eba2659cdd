"""A read is complete when it is on every rank, and fails where it fails on one (protocol 4.3)."""

import multiprocessing
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from threading import Thread

import pytest
import torch

from kvtransfer.checksums import block_checksums, head_checksums
from kvtransfer.errors import (
    BlocksCorrupt,
    PeerLost,
    PeerUnreachable,
    TransferClosed,
    TransportUnavailable,
)
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Transport
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.ranked import RemoteRank
from kvtransfer.transport.remote import RemoteTransport
from kvtransfer.transport.server import serve_transport
from tests.kvtransfer.machine.faulty_transport import FaultyTransport
from tests.kvtransfer.peers import WAIT, wait_until
from tests.kvtransfer.remote_rank import served

NUM_BLOCKS = 8
SIZES = (1, 2, 3, 6)
PEER = "peer"
RANKS = (RemoteRank(b"peer-0", 16), RemoteRank(b"peer-1", 16))


class House:
    """Two ranks that read from the two of a peer; reads of the second end when the test says."""

    def __init__(self) -> None:
        self.fabric = LocalFabric()
        self.sources = [torch.randn(NUM_BLOCKS, 4), torch.randn(NUM_BLOCKS, 4)]
        for number, pool in enumerate(self.sources):
            LocalTransport(pool, f"peer-{number}", self.fabric)
        self.pools = [torch.zeros(NUM_BLOCKS, 4), torch.zeros(NUM_BLOCKS, 4)]
        self.second = FaultyTransport(self.pools[1], "us-1", self.fabric)
        own = LocalTransport(self.pools[0], "us-0", self.fabric)
        self.transfers = TransferThread([own, served(lambda name: self.second, "us-1")])
        self.transfers.start()

    def ticket(self) -> int:
        """Of the second rank's only read, once it is there."""
        wait_until(lambda: bool(self.second.posted))
        (ticket,) = self.second.posted
        return ticket


@pytest.fixture
def house() -> Iterator[House]:
    torch.manual_seed(0)
    house = House()
    house.transfers.connect(PEER, RANKS).result(WAIT)
    yield house
    house.transfers.stop()


def test_every_rank_reads_its_part_from_its_like(house: House) -> None:
    read = house.transfers.read(PEER, [1, 2, 5], [4, 3, 6])
    ticket = house.ticket()
    wait_until(lambda: bool(house.pools[0].any()))
    assert not read.done.done()
    house.second.complete(ticket)
    read.done.result(WAIT)
    for source, pool in zip(house.sources, house.pools, strict=True):
        assert torch.equal(pool[[4, 3, 6]], source[[1, 2, 5]])


@pytest.mark.parametrize("num_here", SIZES)
@pytest.mark.parametrize("num_there", SIZES)
def test_every_rank_reads_its_heads_from_whatever_ranks_hold_them(
    num_here: int, num_there: int, fabric: LocalFabric
) -> None:
    source, target = torch.randn(NUM_BLOCKS, 6, 4), torch.zeros(NUM_BLOCKS, 6, 4)
    theirs = [share.contiguous() for share in source.chunk(num_there, dim=1)]
    ours = [share.contiguous() for share in target.chunk(num_here, dim=1)]
    for rank, pool in enumerate(theirs):
        LocalTransport(pool, f"peer-{rank}", fabric)
    transfers = TransferThread(
        [LocalTransport(pool, f"us-{rank}", fabric) for rank, pool in enumerate(ours)]
    )
    transfers.start()
    ranks = [RemoteRank(f"peer-{rank}".encode(), 96 // num_there) for rank in range(num_there)]
    transfers.connect(PEER, ranks).result(WAIT)
    transfers.read(PEER, [1, 2, 5], [4, 5, 3]).done.result(WAIT)
    target[[4, 5, 3]] = source[[1, 2, 5]]
    assert torch.equal(torch.cat(ours, dim=1), target)
    assert transfers.num_bytes_read == 3 * 96
    transfers.stop()


def test_blocks_of_another_size_are_refused(house: House) -> None:
    ranks = [*RANKS, RemoteRank(b"peer-0", 16)]
    error = house.transfers.connect("another", ranks).exception(WAIT)
    assert isinstance(error, PeerUnreachable)
    assert "48 bytes, here they have 32" in str(error)


def test_where_one_rank_of_a_peer_is_refused_the_others_are_let_go(fabric: LocalFabric) -> None:
    for rank in range(2):
        LocalTransport(torch.ones(NUM_BLOCKS, 2), f"peer-{rank}", fabric)
    transfers = TransferThread([LocalTransport(torch.zeros(NUM_BLOCKS, 4), "us", fabric)])
    transfers.start()
    good = [RemoteRank(f"peer-{rank}".encode(), 8) for rank in range(2)]
    error = transfers.connect(PEER, [good[0], RemoteRank(b"nobody", 8)]).exception(WAIT)
    assert isinstance(error, PeerUnreachable)
    transfers.connect(PEER, good).result(WAIT)
    transfers.read(PEER, [1], [1]).done.result(WAIT)
    transfers.stop()


def test_a_read_that_fails_on_one_rank_has_failed(house: House) -> None:
    read = house.transfers.read(PEER, [1], [1])
    house.second.fail(house.ticket(), final=True)
    assert isinstance(read.done.exception(WAIT), PeerLost)
    read.ended.result(WAIT)


def test_a_read_that_one_rank_may_still_write_stays_fenced(house: House) -> None:
    read = house.transfers.read(PEER, [1], [1])
    house.second.fail(house.ticket(), final=False)
    assert isinstance(read.done.exception(WAIT), PeerLost)
    wait_until(lambda: "fenced" in (house.transfers.trouble(0.0) or ""))
    assert not read.ended.done()


@pytest.mark.parametrize("lose", [True, False], ids=["lost", "changed"])
def test_a_block_that_arrives_wrong_on_one_rank_is_noticed(house: House, lose: bool) -> None:
    sums = block_checksums([head_checksums(pool, [1]) for pool in house.sources])
    good = house.transfers.read(PEER, [1], [1], sums)
    house.second.complete(house.ticket())
    good.done.result(WAIT)
    bad = house.transfers.read(PEER, [1], [2], sums)
    house.second.spoil(house.ticket(), lose=lose)
    assert isinstance(bad.done.exception(WAIT), BlocksCorrupt)


def test_a_peer_that_one_rank_cannot_reach_can_be_connected_once_it_does(house: House) -> None:
    house.transfers.disconnect(PEER).result(WAIT)
    error = house.transfers.connect(PEER, (RANKS[0], RemoteRank(b"nobody", 16))).exception(WAIT)
    assert isinstance(error, PeerUnreachable)
    house.transfers.connect(PEER, RANKS).result(WAIT)


def test_reads_fail_and_end_when_the_process_of_a_rank_does(fabric: LocalFabric) -> None:
    LocalTransport(torch.ones(NUM_BLOCKS, 4), PEER, fabric)
    own, other = (
        LocalTransport(torch.zeros(NUM_BLOCKS, 4), name, fabric) for name in ("us-0", "us-1")
    )
    ours, theirs = socket.socketpair()
    pipes = Connection(ours.dup().detach()), Connection(theirs.detach())
    serving = Thread(target=serve_transport, args=(pipes[1], lambda *_: other), daemon=True)
    serving.start()
    transfers = TransferThread([own, RemoteTransport(pipes[0], "us-1", "local")])
    transfers.start()
    transfers.connect(PEER, [RemoteRank(PEER.encode(), 16)] * 2).result(WAIT)
    fabric.held = True
    read = transfers.read(PEER, [1], [1])
    wait_until(lambda: transfers.num_blocks_in_flight == 1)
    with ours:
        ours.shutdown(socket.SHUT_RDWR)
    serving.join(WAIT)
    # Rank 0's own part is read to the end.
    fabric.held = False
    assert isinstance(read.done.exception(WAIT), TransferClosed)
    read.ended.result(WAIT)
    with pytest.raises(TransferClosed):
        transfers.checksums([1])
    transfers.stop()


def test_what_goes_wrong_in_a_transport_is_not_taken_for_the_end_of_its_pipe() -> None:
    def fail(*_: str) -> Transport:
        raise ConnectionResetError("of its own")

    ours, theirs = multiprocessing.Pipe()
    ours.send_bytes(b'["open", "us-1", "local"]')
    with ours, theirs, pytest.raises(ConnectionResetError, match="of its own"):
        serve_transport(theirs, fail)


def test_a_rank_without_a_transport_says_why() -> None:
    def refuse(name: str) -> Transport:
        raise TransportUnavailable(f"no UCX for {name}")

    with pytest.raises(TransportUnavailable, match="no UCX for us-1"):
        served(refuse, "us-1")
