"""Who owns each block of the KV pool. Pure Python over ints; not thread-safe (engine thread only).

Every block is in exactly one state, the first that applies (protocol 4.6):

    leased     a lease keeps it for a peer that may read it  lease / end_lease
    used       sequences refer to it                         allocate, acquire, activate / release
    reserved   set aside as the destination of a transfer    reserve / activate or release
    fenced     unowned, but something may still write to it  fence / lift_fence
    cached     unowned, but its content can be matched       register, then release
    free       none of these

Holds add up: a block that is used twice and leased once comes back after two releases and one
end_lease, in any order, and if it is fenced, only when the fence lifts as well.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from engine.errors import OutOfBlocks

BlockState = Literal["leased", "used", "reserved", "fenced", "cached", "free"]
STATES: tuple[BlockState, ...] = get_args(BlockState)


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks in each state; the six always sum to ``total``."""

    leased: int
    used: int
    reserved: int
    fenced: int
    cached: int
    free: int
    total: int


@dataclass(slots=True)
class _Block:
    """Holds on one block. ``content`` is its hash while the prefix cache knows it."""

    num_leases: int = 0
    num_refs: int = 0
    reserved: bool = False
    num_fences: int = 0
    content: bytes | None = None
    state: BlockState = field(default="free")

    @property
    def held(self) -> bool:
        return bool(self.num_leases or self.num_refs or self.reserved or self.num_fences)

    def derive_state(self) -> BlockState:
        if self.num_leases:
            return "leased"
        if self.num_refs:
            return "used"
        if self.reserved:
            return "reserved"
        if self.num_fences:
            return "fenced"
        return "cached" if self.content is not None else "free"


class BlockManager:
    """Hands out the blocks 1 to ``num_blocks``; block 0 is the padding sink and never handed out.

    Free blocks go out before cached ones are evicted, and of these the least recently released
    goes first. ``free_list_seed`` shuffles the order of the free blocks, for tests.
    """

    def __init__(self, num_blocks: int, *, free_list_seed: int | None = None) -> None:
        self.num_blocks = num_blocks
        self._blocks = {block_id: _Block() for block_id in range(1, num_blocks + 1)}
        free = list(range(num_blocks, 0, -1))
        if free_list_seed is not None:
            random.Random(free_list_seed).shuffle(free)
        # Ordered sets. Free blocks leave at the end where they came in (their memory is warm),
        # cached ones at the start.
        self._free: dict[int, None] = dict.fromkeys(free)
        self._cached: dict[int, None] = {}
        self._by_content: dict[bytes, int] = {}
        self._counts: dict[BlockState, int] = dict.fromkeys(STATES, 0)
        self._counts["free"] = num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` or ``reserve`` could hand out now."""
        return len(self._free) + len(self._cached)

    def counts(self) -> BlockCounts:
        return BlockCounts(**self._counts, total=self.num_blocks)

    def match_prefix(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest known prefix of these contents; ``acquire`` pins them."""
        matched = []
        for content in block_hashes:
            block_id = self._by_content.get(content)
            if block_id is None:
                break
            matched.append(block_id)
        return matched

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Adds a reference to each block; they must be used, leased or cached."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            assert block.state in ("leased", "used", "cached"), (block_id, block)
            block.num_refs += 1
            self._settle(block_id)

    def allocate(self, num_blocks: int) -> list[int]:
        """Takes blocks with one reference each, or raises OutOfBlocks and takes none."""
        block_ids = self._take(num_blocks)
        for block_id in block_ids:
            self._blocks[block_id].num_refs = 1
            self._settle(block_id)
        return block_ids

    def reserve(self, num_blocks: int) -> list[int]:
        """Sets blocks aside for a transfer, or raises OutOfBlocks and takes none."""
        block_ids = self._take(num_blocks)
        for block_id in block_ids:
            self._blocks[block_id].reserved = True
            self._settle(block_id)
        return block_ids

    def activate(self, block_ids: Sequence[int]) -> None:
        """Turns reserved blocks into used ones with one reference.

        A first step waits for this: what ``_settle`` would find out is known.
        """
        for block_id in block_ids:
            block = self._blocks[block_id]
            assert block.state == "reserved", (block_id, block)
            block.reserved = False
            block.num_refs = 1
            block.state = "used"
        self._counts["reserved"] -= len(block_ids)
        self._counts["used"] += len(block_ids)

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops one reference of each block, or its reservation.

        Of the blocks that become cached the last is evicted first: a prefix is worth more.
        """
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            assert block.num_refs or block.reserved, (block_id, block)
            if block.num_refs:
                block.num_refs -= 1
            else:
                block.reserved = False
            self._settle(block_id)

    def lease(self, block_ids: Iterable[int]) -> None:
        """Keeps used blocks for a peer that may read them, beyond their release."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            assert block.num_refs or block.num_leases, (block_id, block)
            block.num_leases += 1
            self._settle(block_id)

    def end_lease(self, block_ids: Sequence[int]) -> None:
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            assert block.num_leases, (block_id, block)
            block.num_leases -= 1
            self._settle(block_id)

    def fence(self, block_ids: Iterable[int]) -> None:
        """Keeps held blocks from being reused, whoever releases them, until ``lift_fence``.

        What may be written to cannot be matched any more.
        """
        for block_id in block_ids:
            block = self._blocks[block_id]
            assert block.held, (block_id, block)
            self._forget(block)
            block.num_fences += 1
            self._settle(block_id)

    def lift_fence(self, block_ids: Sequence[int]) -> None:
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            assert block.num_fences, (block_id, block)
            block.num_fences -= 1
            self._settle(block_id)

    def register(self, block_id: int, content: bytes) -> None:
        """Makes a full block matchable. Only when its KV is final on every rank (protocol 4.2).

        Where another block holds the same content already, that one stays the one to match.
        """
        block = self._blocks[block_id]
        assert block.num_refs or block.num_leases, (block_id, block)
        assert not block.num_fences, (block_id, block)
        if block.content is not None:
            assert block.content == content, (block_id, block)
        elif content not in self._by_content:
            block.content = content
            self._by_content[content] = block_id

    def check(self) -> None:
        """Verifies all bookkeeping against the blocks; AssertionError names the fault."""
        self.check_blocks(self._blocks)
        recount = dict.fromkeys(STATES, 0)
        for block in self._blocks.values():
            recount[block.state] += 1
        assert recount == self._counts, (recount, self._counts)
        num_known = sum(block.content is not None for block in self._blocks.values())
        assert num_known == len(self._by_content), (num_known, len(self._by_content))

    def check_blocks(self, block_ids: Iterable[int]) -> None:
        """Verifies the sums, and some of the blocks: takes time by their number alone."""
        counts = self._counts
        assert sum(counts.values()) == self.num_blocks, (counts, self.num_blocks)
        assert len(self._free) == counts["free"], (len(self._free), counts)
        assert len(self._cached) == counts["cached"], (len(self._cached), counts)
        for block_id in block_ids:
            block = self._blocks[block_id]
            assert block.state == block.derive_state(), (block_id, block)
            assert not (block.reserved and (block.num_refs or block.num_leases)), (block_id, block)
            assert (block_id in self._free) == (block.state == "free"), (block_id, block)
            assert (block_id in self._cached) == (block.state == "cached"), (block_id, block)
            if block.content is not None:
                assert self._by_content.get(block.content) == block_id, (block_id, block)

    def _take(self, num_blocks: int) -> list[int]:
        if num_blocks > self.num_available:
            raise OutOfBlocks(f"{num_blocks} blocks wanted, {self.num_available} available")
        return [self._pop() for _ in range(num_blocks)]

    def _pop(self) -> int:
        if self._free:
            return self._free.popitem()[0]
        block_id = next(iter(self._cached))
        del self._cached[block_id]
        self._forget(self._blocks[block_id])
        return block_id

    def _forget(self, block: _Block) -> None:
        if block.content is not None:
            del self._by_content[block.content]
            block.content = None

    def _settle(self, block_id: int) -> None:
        """Brings state, counts and the lists in line with the holds on a block."""
        block = self._blocks[block_id]
        state = block.derive_state()
        if state == block.state:
            return
        if block.state == "free":
            self._free.pop(block_id, None)
        elif block.state == "cached":
            self._cached.pop(block_id, None)
        if state == "free":
            self._free[block_id] = None
        elif state == "cached":
            self._cached[block_id] = None
        self._counts[block.state] -= 1
        self._counts[state] += 1
        block.state = state
