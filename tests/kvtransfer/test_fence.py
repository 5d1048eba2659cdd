"""Fences lift when the last read has ended (protocol 4.1)."""

from concurrent.futures import Future

from kvtransfer.fence import Fence


def test_a_fence_around_nothing_is_lifted() -> None:
    assert Fence.none().lifted.done()
    assert Fence.around([], []).lifted.done()


def test_a_fence_lifts_with_the_last_of_its_reads() -> None:
    reads: list[Future[None]] = [Future(), Future()]
    fence = Fence.around([3, 4], reads)
    reads[0].set_result(None)
    assert not fence.lifted.done()
    reads[1].set_result(None)
    assert fence.lifted.done()
    assert fence.block_ids == (3, 4)


def test_a_fence_around_ended_reads_is_lifted() -> None:
    ended: Future[None] = Future()
    ended.set_result(None)
    assert Fence.around([3], [ended]).lifted.done()


def test_waiters_cannot_lift_a_fence_by_cancelling() -> None:
    fence = Fence.around([3], [Future()])
    assert not fence.lifted.cancel()
    assert not fence.lifted.done()
