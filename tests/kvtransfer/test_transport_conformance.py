"""What every transport must do, read through a transfer thread as the services do.

"nixl" uses what UCX chooses between two processes of a host, which copies while a read is posted;
"nixl-tcp" is the path on which a read moves only while both sides poll. "mapped" is "cuda-ipc" on
host memory. Of several ranks here the second is at the other end of a pipe, where they are local.
Numbers are ranks here and of the peer. Where there are GPUs, the peer is on the first, the reader
on the last.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kvtransfer.errors import PeerError, PeerLost, PeerUnknown, PeerUnreachable, ReadCancelled
from kvtransfer.transport.local import LocalFabric
from tests.kvtransfer.mapped_peers import MappedPeer
from tests.kvtransfer.peers import (
    BLOCK_VALUES,
    NUM_BLOCKS,
    WAIT,
    LocalPeer,
    Peer,
    ProcessPeer,
    ranks_of,
    wait_until,
)
from tests.kvtransfer.transport_kinds import (
    KINDS,
    UNTOUCHED,
    Kind,
    Reader,
    kinds,
    notices_death,
    open_reader,
    stays_in_flight,
)

_names = (f"reader-{os.getpid()}-{number}" for number in itertools.count())


@pytest.fixture(params=kinds(lambda kind: True))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    kind = KINDS[request.param]
    if kind.transport == "nixl-tcp":
        monkeypatch.setenv("UCX_TLS", "tcp")
    return kind


@pytest.fixture(scope="module")
def peer_processes() -> Iterator[dict[tuple[str, int], ProcessPeer]]:
    """Started once for all tests, because importing torch takes its time."""
    processes: dict[tuple[str, int], ProcessPeer] = {}
    yield processes
    for process in processes.values():
        process.kill()


@pytest.fixture
def make_peer(
    kind: Kind, fabric: LocalFabric, peer_processes: dict[tuple[str, int], ProcessPeer]
) -> Iterator[Callable[[int], Peer]]:
    made: list[Peer] = []

    def make(offset: int) -> Peer:
        if kind.transport == "local":
            peer: Peer = LocalPeer(offset, fabric, kind.num_peer_ranks)
        elif kind.transport in ("mapped", "cuda-ipc-one-process"):
            peer = MappedPeer(offset, "cuda:0" if kind.on_gpu else "cpu", kind.num_peer_ranks)
        else:
            place = f"{kind.transport}-{kind.num_peer_ranks}", offset
            known = peer_processes.get(place)
            if known is None or not known.alive:
                peer_processes[place] = ProcessPeer(offset, kind.num_peer_ranks, kind.transport)
            peer = peer_processes[place]
        made.append(peer)
        return peer

    yield make
    for peer in made:
        peer.thaw()


@pytest.fixture
def make_reader(kind: Kind, fabric: LocalFabric) -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(**settings: Any) -> Reader:
        made.append(open_reader(kind, next(_names), fabric, **settings))
        made[-1].start()
        return made[-1]

    yield make
    for thread in made:
        thread.stop()


@pytest.fixture
def reader(make_reader: Callable[..., Reader]) -> Reader:
    return make_reader()


@pytest.fixture
def peer(make_peer: Callable[[int], Peer], reader: Reader) -> Peer:
    """One that the reader is connected to."""
    peer = make_peer(1000)
    reader.connect(peer.name, peer.ranks).result(WAIT)
    return peer


def untouched(reader: Reader, but: list[int]) -> bool:
    others = [block for block in range(NUM_BLOCKS) if block not in but]
    return bool((reader.blocks(others) == UNTOUCHED).all())


def test_blocks_go_where_they_are_told_whatever_the_order(reader: Reader, peer: Peer) -> None:
    remote, local = [7, 3, 150, 4, 5, 90], [60, 61, 2, 100, 101, 59]
    reader.read(peer.name, remote, local).done.result(WAIT)
    assert torch.equal(reader.blocks(local), peer.blocks(remote))


def test_a_partial_list_touches_no_other_block(reader: Reader, peer: Peer) -> None:
    reader.read(peer.name, [10, 11, 12], [20, 22, 21]).done.result(WAIT)
    assert untouched(reader, but=[20, 21, 22])


def test_the_highest_ids_of_a_full_pool_are_read(reader: Reader, peer: Peer) -> None:
    last = NUM_BLOCKS - 1
    reader.read(peer.name, [last, 1], [1, last]).done.result(WAIT)
    assert torch.equal(reader.blocks([1, last]), peer.blocks([last, 1]))


def test_an_empty_list_is_done_at_once(reader: Reader, peer: Peer) -> None:
    read = reader.read(peer.name, [], [])
    read.done.result(WAIT)
    read.ended.result(WAIT)
    assert untouched(reader, but=[])
    assert reader.num_bytes_read == 0


def test_an_odd_number_of_blocks_fills_the_last_piece_in_part(
    make_reader: Callable[..., Reader], make_peer: Callable[[int], Peer]
) -> None:
    reader, peer = make_reader(max_piece_bytes=4 * BLOCK_VALUES * 4), make_peer(1000)
    reader.connect(peer.name, peer.ranks).result(WAIT)
    remote, local = list(range(1, 12)), list(range(101, 112))
    read = reader.read(peer.name, remote, local)
    read.done.result(WAIT)
    assert torch.equal(reader.blocks(local), peer.blocks(remote))
    assert untouched(reader, but=local)


def test_bytes_are_counted_as_blocks_times_block_size(reader: Reader, peer: Peer) -> None:
    reader.read(peer.name, [1, 2, 3, 9], [1, 2, 3, 50]).done.result(WAIT)
    reader.read(peer.name, [5], [5]).done.result(WAIT)
    assert reader.block_bytes == BLOCK_VALUES * 4
    assert reader.num_bytes_read == 5 * reader.block_bytes


def test_two_readers_share_a_peer(
    make_reader: Callable[..., Reader], make_peer: Callable[[int], Peer]
) -> None:
    peer, readers = make_peer(1000), [make_reader(), make_reader()]
    ids = list(range(1, NUM_BLOCKS))
    for reader in readers:
        reader.connect(peer.name, peer.ranks).result(WAIT)
    for read in [reader.read(peer.name, ids, ids) for reader in readers]:
        read.done.result(WAIT)
    assert all(torch.equal(reader.blocks(ids), peer.blocks(ids)) for reader in readers)


def test_one_reader_keeps_two_peers_apart(reader: Reader, make_peer: Callable[[int], Peer]) -> None:
    peers = [make_peer(1000), make_peer(5000)]
    for peer in peers:
        reader.connect(peer.name, peer.ranks).result(WAIT)
    reads = [
        reader.read(peer.name, [3, 4], [10 + 2 * index, 11 + 2 * index])
        for index, peer in enumerate(peers)
    ]
    for read in reads:
        read.done.result(WAIT)
    expected = torch.cat([peer.blocks([3, 4]) for peer in peers])
    assert torch.equal(reader.blocks([10, 11, 12, 13]), expected)


def test_a_cancelled_read_fails_at_once_and_ends_when_nothing_writes_any_more(
    reader: Reader, peer: Peer
) -> None:
    ids = list(range(1, NUM_BLOCKS))
    peer.freeze()
    read = reader.read(peer.name, ids, ids)
    read.cancel()
    error = read.done.exception(WAIT)
    peer.thaw()
    read.ended.result(WAIT)
    # What UCX copies while posting may be over before the cancel comes; nothing else may pass.
    assert isinstance(error, ReadCancelled | None)
    reader.wipe()
    reader.read(peer.name, [1], [1]).done.result(WAIT)
    assert untouched(reader, but=[1])


@stays_in_flight
def test_the_fence_of_a_frozen_peer_stays_until_it_moves_again(reader: Reader, peer: Peer) -> None:
    peer.freeze()
    read = reader.read(peer.name, [1, 2], [1, 2])
    wait_until(lambda: reader.num_blocks_in_flight == 2)
    read.cancel()
    assert isinstance(read.done.exception(WAIT), ReadCancelled)
    assert not read.ended.done()
    wait_until(lambda: "fenced" in (reader.trouble(0.0) or ""))
    peer.thaw()
    read.ended.result(WAIT)
    wait_until(lambda: reader.trouble(0.0) is None)


@stays_in_flight
def test_a_removed_peer_is_gone_only_when_its_reads_have_ended(reader: Reader, peer: Peer) -> None:
    peer.freeze()
    read = reader.read(peer.name, [1, 2], [1, 2])
    wait_until(lambda: reader.num_blocks_in_flight == 2)
    removed = reader.disconnect(peer.name)
    assert isinstance(read.done.exception(WAIT), PeerLost)
    assert not removed.done()
    peer.thaw()
    removed.result(WAIT)
    assert read.ended.done()


@notices_death
def test_reads_in_flight_from_a_killed_peer_fail_and_end(reader: Reader, peer: Peer) -> None:
    ids = list(range(1, NUM_BLOCKS))
    peer.freeze()
    first = reader.read(peer.name, ids, ids)
    peer.kill()
    first.done.exception(WAIT)
    first.ended.result(WAIT)
    second = reader.read(peer.name, [1], [1])
    assert isinstance(second.done.exception(WAIT), PeerLost)
    second.ended.result(WAIT)
    reader.disconnect(peer.name).result(WAIT)


def test_another_peer_takes_the_place_of_a_killed_one(
    reader: Reader, peer: Peer, make_peer: Callable[[int], Peer]
) -> None:
    peer.kill()
    reader.disconnect(peer.name).result(WAIT)
    restarted = make_peer(5000)
    reader.connect(restarted.name, restarted.ranks).result(WAIT)
    reader.read(restarted.name, [6], [6]).done.result(WAIT)
    assert torch.equal(reader.blocks([6]), restarted.blocks([6]))


def test_a_removed_peer_can_be_connected_again(reader: Reader, peer: Peer) -> None:
    reader.disconnect(peer.name).result(WAIT)
    reader.connect(peer.name, peer.ranks).result(WAIT)
    reader.read(peer.name, [6], [6]).done.result(WAIT)
    assert torch.equal(reader.blocks([6]), peer.blocks([6]))


def test_connecting_twice_is_refused(reader: Reader, peer: Peer) -> None:
    error = reader.connect(peer.name, peer.ranks).exception(WAIT)
    assert isinstance(error, PeerUnreachable)


def test_a_removed_or_unknown_peer_cannot_be_read(reader: Reader, peer: Peer) -> None:
    reader.disconnect(peer.name).result(WAIT)
    for name in (peer.name, "nobody"):
        read = reader.read(name, [1], [1])
        assert isinstance(read.done.exception(WAIT), PeerUnknown)
        read.ended.result(WAIT)
    reader.disconnect("nobody").result(WAIT)


def test_metadata_that_means_nothing_is_refused(reader: Reader) -> None:
    for metadata in (b"", b"x", b"x" * 400):
        ranks = ranks_of([metadata])
        assert isinstance(reader.connect("nobody", ranks).exception(WAIT), PeerError)


def test_stopping_ends_every_read(reader: Reader, peer: Peer) -> None:
    peer.freeze()
    ids = list(range(1, NUM_BLOCKS))
    read = reader.read(peer.name, ids, ids)
    reader.stop()
    read.done.exception(WAIT)
    read.ended.result(WAIT)
    reader.wipe()
    peer.thaw()
    assert untouched(reader, but=[])
