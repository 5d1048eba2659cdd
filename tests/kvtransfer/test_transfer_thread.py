"""The thread around a transport: what its owner sees when it stops or fails."""

import threading
from queue import SimpleQueue

import pytest
import torch

from kvtransfer.errors import TransferClosed
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Ended
from kvtransfer.transport.block_runs import BlockRuns
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.ranked import RemoteRank

WAIT = 20.0
PEER = (RemoteRank(b"peer", block_bytes=16),)


class BrokenTransport(LocalTransport):
    """Fails in a way no transport may, once told to."""

    broken = False
    broken_for_good = False

    def __init__(self, pool: torch.Tensor, pool_name: str, fabric: LocalFabric) -> None:
        super().__init__(pool, pool_name, fabric)
        self.has_posted = threading.Event()

    def post(self, peer: str, runs: BlockRuns) -> int:
        ticket = super().post(peer, runs)
        self.has_posted.set()
        return ticket

    def poll(self) -> list[Ended]:
        if self.broken:
            raise RuntimeError("broken")
        return super().poll()

    def close(self) -> None:
        if self.broken_for_good:
            raise RuntimeError("cannot be closed either")
        super().close()


@pytest.fixture
def fabric() -> LocalFabric:
    fabric = LocalFabric()
    LocalTransport(torch.ones(8, 4), "peer", fabric)
    return fabric


def test_a_stopped_thread_refuses_work_and_fences_nothing(fabric: LocalFabric) -> None:
    thread = TransferThread([LocalTransport(torch.zeros(8, 4), "us", fabric)])
    thread.start()
    thread.connect("peer", PEER).result(WAIT)
    thread.stop()
    thread.stop()
    read = thread.read("peer", [1], [1])
    assert isinstance(read.done.exception(WAIT), TransferClosed)
    read.ended.result(WAIT)
    assert isinstance(thread.connect("peer", PEER).exception(WAIT), TransferClosed)
    thread.disconnect("peer").result(WAIT)
    assert not thread.alive


def test_a_thread_that_never_started_can_be_stopped(fabric: LocalFabric) -> None:
    thread = TransferThread([LocalTransport(torch.zeros(8, 4), "us", fabric)])
    thread.stop()
    assert "us" not in fabric.pools


def test_a_failure_fails_every_read_and_is_told(fabric: LocalFabric) -> None:
    transport = BrokenTransport(torch.zeros(8, 4), "us", fabric)
    failures: list[BaseException] = []
    told = threading.Event()

    def on_failure(failure: BaseException) -> None:
        failures.append(failure)
        told.set()

    thread = TransferThread([transport], on_failure=on_failure)
    thread.start()
    thread.connect("peer", PEER).result(WAIT)
    fabric.held = True
    read = thread.read("peer", [1], [1])
    transport.broken = True
    assert isinstance(read.done.exception(WAIT), TransferClosed)
    assert told.wait(WAIT)
    assert [str(failure) for failure in failures] == ["broken"]
    read.ended.result(WAIT)
    assert not thread.alive
    thread.stop()


def test_a_failure_after_which_nothing_can_be_closed_is_told_too(fabric: LocalFabric) -> None:
    """As of a GPU that has failed: every call on it does from then on."""
    transport = BrokenTransport(torch.zeros(8, 4), "us", fabric)
    transport.broken_for_good = True
    failures: SimpleQueue[BaseException] = SimpleQueue()
    thread = TransferThread([transport], on_failure=failures.put)
    thread.start()
    thread.connect("peer", PEER).result(WAIT)
    fabric.held = True
    read = thread.read("peer", [1], [1])
    assert transport.has_posted.wait(WAIT)
    removed = thread.disconnect("peer")
    transport.broken = True
    assert str(failures.get(timeout=WAIT)) == "broken"
    assert read.done.exception(WAIT) is not None
    removed.result(WAIT)
    assert not read.ended.done()
    thread.stop()


def test_a_pull_cannot_starve_another(fabric: LocalFabric) -> None:
    """Pieces of reads are posted in turn: a short read overtakes a long one."""
    block_bytes = 16
    thread = TransferThread(
        [LocalTransport(torch.zeros(8, 4), "us", fabric)],
        max_piece_bytes=block_bytes,
        max_bytes_in_flight=block_bytes,
    )
    order: list[str] = []
    connected = thread.connect("peer", PEER)
    long = thread.read("peer", [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    short = thread.read("peer", [7], [7])
    long.done.add_done_callback(lambda _: order.append("long"))
    short.done.add_done_callback(lambda _: order.append("short"))
    thread.start()
    connected.result(WAIT)
    long.ended.result(WAIT)
    short.ended.result(WAIT)
    thread.stop()
    assert order == ["short", "long"]


def test_local_blocks_outside_the_pool_are_our_own_bug(fabric: LocalFabric) -> None:
    thread = TransferThread([LocalTransport(torch.zeros(8, 4), "us", fabric)])
    with pytest.raises(ValueError, match="not all in a pool of 8"):
        thread.read("peer", [1], [8])
    thread.stop()


def test_a_pool_that_is_not_contiguous_is_refused(fabric: LocalFabric) -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        LocalTransport(torch.zeros(4, 8).t(), "us", fabric)
