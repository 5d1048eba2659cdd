"""A lease and its story (protocol 2.5, 3.3 to 3.7), without a network."""

import threading

import pytest

from chassis.errors import Aborted
from kvtransfer.errors import DuplicateAttempt, MessageOutOfOrder, UnknownAttempt
from kvtransfer.handoff import Chunk, Completion, FirstSample
from kvtransfer.lease import Computing, Lease, LeaseEnd, Revocation

NUM_TOKENS = 10
FIRST = Chunk(0, 4, (5,))
SECOND = Chunk(4, 4, (9,))
END = Completion(NUM_TOKENS, (FirstSample(0, 7),), Chunk(8, 2, (3,)))
ERROR = Aborted("room is needed", reason="LEASE_REVOKED")


@pytest.fixture
def lease() -> Lease:
    return Lease(b"attempt", b"digest", num_tokens=NUM_TOKENS, block_size=4)


def ignore() -> None:
    """A Pull that needs no waking."""


def finish(lease: Lease) -> None:
    lease.computing()
    for progress in (FIRST, SECOND, END):
        lease.tell(progress)


def pulled(lease: Lease) -> Lease:
    lease.open_pull(ignore)
    lease.take_events()
    lease.start(0)
    lease.take_events()
    return lease


def test_computing_is_told_before_start_and_chunks_after_it(lease: Lease) -> None:
    finish(lease)
    lease.open_pull(ignore)
    assert lease.take_events() == [Computing()]
    assert lease.take_events() == []
    lease.start(0)
    assert lease.take_events() == [FIRST, SECOND, END]


def test_a_pull_that_comes_first_hears_each_step_once(lease: Lease) -> None:
    woken = []
    lease.open_pull(lambda: woken.append(True))
    assert lease.take_events() == []
    lease.computing()
    assert lease.take_events() == [Computing()]
    lease.start(0)
    lease.tell(FIRST)
    assert lease.take_events() == [FIRST]
    lease.tell(SECOND)
    assert lease.take_events() == [SECOND]
    assert len(woken) == 4


@pytest.mark.parametrize(
    ("cached_tokens", "told"),
    [
        (4, [SECOND, END]),
        (8, [END]),
    ],
)
def test_cached_blocks_are_not_announced(
    lease: Lease, cached_tokens: int, told: list[object]
) -> None:
    finish(lease)
    lease.open_pull(ignore)
    lease.take_events()
    lease.start(cached_tokens)
    assert lease.take_events() == told


def test_a_chunk_that_is_cached_in_part_is_cut() -> None:
    assert Chunk(0, 12, (5, 6, 7)).without_cached(8, 4) == Chunk(8, 4, (7,))
    assert Chunk(0, 10, (5, 6, 7)).without_cached(8, 4) == Chunk(8, 2, (7,))


def test_start_before_computing_is_out_of_order(lease: Lease) -> None:
    lease.open_pull(ignore)
    with pytest.raises(MessageOutOfOrder):
        lease.start(0)


def test_a_second_start_is_out_of_order(lease: Lease) -> None:
    finish(lease)
    with pytest.raises(MessageOutOfOrder):
        pulled(lease).start(0)


@pytest.mark.parametrize("cached_tokens", [3, 12], ids=["within a block", "past the prompt"])
def test_cached_tokens_that_cannot_be_are_out_of_order(lease: Lease, cached_tokens: int) -> None:
    lease.computing()
    lease.open_pull(ignore)
    lease.take_events()
    with pytest.raises(MessageOutOfOrder):
        lease.start(cached_tokens)


def test_done_before_complete_is_out_of_order(lease: Lease) -> None:
    lease.computing()
    lease.tell(FIRST)
    pulled(lease)
    with pytest.raises(MessageOutOfOrder):
        lease.done()
    assert lease.ended is None


def test_done_ends_the_lease_alive(lease: Lease) -> None:
    finish(lease)
    pulled(lease)
    assert lease.done()
    assert lease.ended is LeaseEnd.RELEASED
    assert not lease.close_pull()


def test_done_after_a_revocation_is_not_alive(lease: Lease) -> None:
    finish(lease)
    pulled(lease)
    assert lease.end(LeaseEnd.REVOKED, ERROR)
    assert not lease.done()
    assert lease.ended is LeaseEnd.REVOKED


def test_a_revocation_after_done_changes_nothing(lease: Lease) -> None:
    finish(lease)
    pulled(lease).done()
    assert not lease.end(LeaseEnd.REVOKED, ERROR)
    assert lease.take_events() == []


def test_a_revoked_pull_hears_why_and_nothing_else(lease: Lease) -> None:
    lease.computing()
    pulled(lease)
    lease.tell(FIRST)
    lease.end(LeaseEnd.REVOKED, ERROR)
    assert lease.take_events() == [Revocation(ERROR)]


def test_a_broken_pull_that_had_started_ends_the_lease(lease: Lease) -> None:
    finish(lease)
    assert pulled(lease).close_pull()
    assert lease.ended is LeaseEnd.PULL_BROKEN


def test_a_broken_pull_that_had_not_started_leaves_the_lease_for_another(lease: Lease) -> None:
    finish(lease)
    lease.open_pull(ignore)
    assert lease.take_events() == [Computing()]
    assert not lease.close_pull()
    assert lease.ended is None
    lease.open_pull(ignore)
    assert lease.take_events() == [Computing()]


def test_a_second_pull_at_a_time_is_refused(lease: Lease) -> None:
    lease.open_pull(ignore)
    with pytest.raises(DuplicateAttempt):
        lease.open_pull(ignore)


def test_an_ended_lease_cannot_be_pulled(lease: Lease) -> None:
    lease.end(LeaseEnd.HANDOFF_TIMEOUT)
    with pytest.raises(UnknownAttempt):
        lease.open_pull(ignore)


def test_an_attempt_that_stays_on_prefill_cannot_be_pulled() -> None:
    lease = Lease(b"a", b"", num_tokens=4, block_size=4, hand_off=False)
    with pytest.raises(UnknownAttempt):
        lease.open_pull(ignore)


def test_chunks_that_leave_a_gap_are_our_own_bug(lease: Lease) -> None:
    lease.computing()
    with pytest.raises(AssertionError):
        lease.tell(SECOND)
    with pytest.raises(AssertionError):
        lease.tell(END)


def test_exactly_one_of_many_threads_ends_a_lease(lease: Lease) -> None:
    finish(lease)
    pulled(lease)
    barrier = threading.Barrier(8)
    won: list[bool] = []

    def race(number: int) -> None:
        barrier.wait()
        won.append(lease.done() if number % 2 else lease.end(LeaseEnd.REVOKED, ERROR))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1
