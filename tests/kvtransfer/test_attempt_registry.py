"""Attempts and their tombstones (protocol 1.2, 3.2)."""

import pytest

from kvtransfer.attempt_registry import AttemptRegistry
from kvtransfer.errors import DuplicateAttempt
from kvtransfer.lease import Lease
from kvtransfer.tombstones import Tombstones


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(name: str) -> Lease:
    return Lease(name.encode(), b"", num_tokens=4, block_size=4)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(clock: Clock) -> AttemptRegistry:
    return AttemptRegistry(clock=clock)


def test_a_known_attempt_is_refused_a_second_time(registry: AttemptRegistry) -> None:
    registry.add(lease("a"))
    with pytest.raises(DuplicateAttempt):
        registry.add(lease("a"))


def test_an_ended_attempt_is_refused_while_its_tombstone_stands(
    registry: AttemptRegistry, clock: Clock
) -> None:
    registry.add(lease("a"))
    clock.now += 100.0
    registry.bury(b"a")
    assert registry.find(b"a") is None
    clock.now += 59.9
    assert registry.is_buried(b"a")
    with pytest.raises(DuplicateAttempt):
        registry.add(lease("a"))


def test_a_tombstone_falls_after_its_time(registry: AttemptRegistry, clock: Clock) -> None:
    registry.bury(b"a")
    clock.now += 60.0
    assert not registry.is_buried(b"a")
    registry.add(lease("a"))


def test_an_attempt_that_never_came_can_be_buried(registry: AttemptRegistry) -> None:
    registry.bury(b"a")
    assert registry.is_buried(b"a")


def test_burying_twice_keeps_the_first_time(registry: AttemptRegistry, clock: Clock) -> None:
    registry.bury(b"a")
    clock.now += 59.0
    registry.bury(b"a")
    clock.now += 1.0
    assert not registry.is_buried(b"a")


def test_the_oldest_tombstones_give_way(clock: Clock) -> None:
    ended = Tombstones(clock=clock, most=3)
    for name in (b"a", b"b", b"c", b"d"):
        ended.add(name)
    assert [name for name in (b"a", b"b", b"c", b"d") if name in ended] == [b"b", b"c", b"d"]
