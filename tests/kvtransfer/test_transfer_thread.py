"""The thread around a transport: what its owner sees when it stops or fails."""

import threading

import pytest
import torch

from kvtransfer.errors import TransferClosed
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Ended
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.ranked import RemoteRank

WAIT = 20.0
PEER = (RemoteRank(b"peer", block_bytes=16),)


class BrokenTransport(LocalTransport):
    """Fails in a way no transport may, once told to."""

    broken = False

    def poll(self) -> list[Ended]:
        if self.broken:
            raise RuntimeError("broken")
        return super().poll()


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
