import dataclasses
from collections.abc import Callable

import pytest

from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.errors import OutOfBlocks


def test_blocks_go_out_in_order_and_never_the_sink() -> None:
    manager = BlockManager(5)
    assert manager.allocate(5) == [1, 2, 3, 4, 5]
    assert manager.num_available == 0


def test_a_seed_shuffles_the_free_list_the_same_way_each_time() -> None:
    orders = [BlockManager(50, free_list_seed=seed).allocate(50) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(1, 51))


def test_allocation_takes_all_or_nothing() -> None:
    manager = BlockManager(4)
    manager.allocate(2)
    with pytest.raises(OutOfBlocks):
        manager.allocate(3)
    with pytest.raises(OutOfBlocks):
        manager.reserve(3)
    assert manager.counts().free == 2
    manager.check()


def test_each_state_is_counted() -> None:
    manager = BlockManager(12)
    leased, used, fenced, cached = (manager.allocate(2) for _ in range(4))
    manager.lease(leased)
    manager.reserve(3)
    manager.fence(fenced)
    manager.release(fenced)
    manager.register(cached[0], b"content")
    manager.release(cached)
    assert dataclasses.astuple(manager.counts()) == (2, 2, 3, 2, 1, 2, 12)
    assert used[0] not in manager.allocate(3)
    manager.check()


def test_a_shared_block_comes_back_after_the_last_release() -> None:
    manager = BlockManager(3)
    blocks = manager.allocate(2)
    manager.acquire(blocks)
    manager.release(blocks)
    assert manager.counts().used == 2
    manager.release(blocks)
    assert manager.counts().free == 3


def test_a_lease_outlives_the_release() -> None:
    manager = BlockManager(3)
    blocks = manager.allocate(2)
    manager.lease(blocks)
    manager.release(blocks)
    assert manager.counts().leased == 2
    assert manager.num_available == 1
    manager.end_lease(blocks)
    assert manager.counts().free == 3


def test_a_reservation_becomes_use_or_is_given_back() -> None:
    manager = BlockManager(4)
    kept, dropped = manager.reserve(2), manager.reserve(2)
    manager.activate(kept)
    manager.release(dropped)
    assert (manager.counts().used, manager.counts().free) == (2, 2)
    manager.release(kept)
    assert manager.counts().free == 4


def test_a_released_fenced_block_comes_back_when_the_fence_lifts() -> None:
    manager = BlockManager(4)
    blocks = manager.reserve(2)
    manager.fence(blocks)
    manager.release(blocks)
    assert (manager.counts().fenced, manager.num_available) == (2, 2)
    manager.lift_fence(blocks)
    assert manager.counts().free == 4


def test_fences_add_up() -> None:
    manager = BlockManager(2)
    blocks = manager.reserve(1)
    manager.fence(blocks)
    manager.fence(blocks)
    manager.release(blocks)
    manager.lift_fence(blocks)
    assert manager.counts().fenced == 1
    manager.lift_fence(blocks)
    assert manager.counts().fenced == 0


def test_a_fenced_block_is_never_matched() -> None:
    manager = BlockManager(2)
    (block,) = manager.allocate(1)
    manager.register(block, b"content")
    manager.fence([block])
    assert manager.match_prefix([b"content"]) == []
    manager.release([block])
    manager.lift_fence([block])
    assert manager.counts().free == 2
    manager.check()


def test_match_prefix_finds_the_longest_known_prefix() -> None:
    manager = BlockManager(8)
    hashes = hash_blocks(list(range(64)), 16)
    blocks = manager.allocate(3)
    for block, content in zip(blocks, hashes, strict=False):
        manager.register(block, content)
    manager.release(blocks)
    assert manager.match_prefix(hashes) == blocks
    assert manager.match_prefix([b"other", *hashes]) == []
    manager.acquire(blocks[:2])
    assert (manager.counts().used, manager.counts().cached) == (2, 1)


def test_the_first_holder_of_a_content_stays_the_one_to_match() -> None:
    manager = BlockManager(4)
    first, second = manager.allocate(2)
    manager.register(first, b"content")
    manager.register(second, b"content")
    manager.release([second])
    assert manager.match_prefix([b"content"]) == [first]
    assert manager.counts().free == 3


def test_free_blocks_go_before_cached_ones_and_old_cached_before_new() -> None:
    manager = BlockManager(5)
    old, new = manager.allocate(2), manager.allocate(1)
    for block in old + new:
        manager.register(block, bytes([block]))
    manager.release(old)
    manager.release(new)
    assert set(manager.allocate(2)).isdisjoint(old + new)
    # Of one released prefix the tail goes first, then its head, then what was released later.
    assert manager.allocate(3) == [old[1], old[0], new[0]]
    assert manager.match_prefix([bytes([old[0]])]) == []
    manager.check()


def test_using_a_cached_block_makes_it_young_again() -> None:
    manager = BlockManager(2)
    blocks = manager.allocate(2)
    for block in blocks:
        manager.register(block, bytes([block]))
        manager.release([block])
    manager.acquire(blocks[:1])
    manager.release(blocks[:1])
    assert manager.allocate(1) == blocks[1:]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda manager: manager.release([1]),
        lambda manager: manager.acquire([1]),
        lambda manager: manager.activate([1]),
        lambda manager: manager.lease([1]),
        lambda manager: manager.end_lease([1]),
        lambda manager: manager.fence([1]),
        lambda manager: manager.lift_fence([1]),
        lambda manager: manager.register(1, b"content"),
    ],
    ids=["release", "acquire", "activate", "lease", "end_lease", "fence", "lift_fence", "register"],
)
def test_a_free_block_allows_nothing(misuse: Callable[[BlockManager], None]) -> None:
    with pytest.raises(AssertionError):
        misuse(BlockManager(2))


def test_a_fenced_block_cannot_be_registered() -> None:
    manager = BlockManager(2)
    blocks = manager.allocate(1)
    manager.fence(blocks)
    with pytest.raises(AssertionError):
        manager.register(blocks[0], b"content")


@pytest.mark.parametrize(
    "damage",
    [
        lambda manager: manager._blocks[1].__setattr__("num_refs", 0),
        lambda manager: manager._free.pop(3),
        lambda manager: manager._counts.__setitem__("free", 9),
        lambda manager: manager._by_content.pop(b"content"),
        lambda manager: manager._blocks[3].__setattr__("content", b"x"),
    ],
    ids=["lost reference", "lost free block", "wrong count", "lost content", "stray content"],
)
def test_check_finds_damage(damage: Callable[[BlockManager], None]) -> None:
    manager = BlockManager(4)
    manager.register(manager.allocate(2)[0], b"content")
    manager.check()
    damage(manager)
    with pytest.raises(AssertionError):
        manager.check()
