"""Random walks of the block manager beside a model that keeps only the holds of each block."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_manager import BlockManager
from engine.errors import OutOfBlocks

NUM_BLOCKS = 9
CONTENTS = st.sampled_from([bytes([number]) for number in range(8)])
SIZES = st.integers(0, 4)


class BlockManagerMachine(RuleBasedStateMachine):
    """Each rule applies one operation to a group of blocks that was handed out together."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, free_list_seed=3)
        self.refs: list[list[int]] = []
        self.reservations: list[list[int]] = []
        self.leases: list[list[int]] = []
        self.fences: list[list[int]] = []
        self.contents: dict[bytes, int] = {}
        # Blocks let go with their content, in the order in which they may be evicted.
        self.evictable: list[int] = []

    def held(self) -> set[int]:
        groups = self.refs + self.reservations + self.leases + self.fences
        return {block for group in groups for block in group}

    def note_handed_out(self, blocks: list[int]) -> None:
        assert len(set(blocks)) == len(blocks)
        assert self.held().isdisjoint(blocks)
        assert all(1 <= block <= NUM_BLOCKS for block in blocks)
        if any(block in self.contents.values() for block in blocks):
            known_free = NUM_BLOCKS - len(self.held() | set(self.contents.values()))
            assert known_free <= len(blocks), "a cached block went out before a free one"
        evictable = [block for block in self.evictable if self.is_evictable(block)]
        evicted = [block for block in blocks if block in evictable]
        assert evicted == evictable[: len(evicted)], "not the least recently released"
        self.contents = {c: b for c, b in self.contents.items() if b not in blocks}

    def note_let_go(self, blocks: list[int]) -> None:
        """The later blocks of a prefix go first."""
        others = [block for block in self.evictable if block not in blocks]
        self.evictable = others + [block for block in reversed(blocks) if self.is_evictable(block)]

    def is_evictable(self, block: int) -> bool:
        return block in self.contents.values() and block not in self.held()

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        free = NUM_BLOCKS - len(self.held())
        try:
            blocks = self.manager.allocate(size)
        except OutOfBlocks:
            assert size > free
        else:
            self.note_handed_out(blocks)
            self.refs.append(blocks)

    @rule(size=SIZES)
    def reserve(self, size: int) -> None:
        free = NUM_BLOCKS - len(self.held())
        try:
            blocks = self.manager.reserve(size)
        except OutOfBlocks:
            assert size > free
        else:
            self.note_handed_out(blocks)
            self.reservations.append(blocks)

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        group = self.pick(data, self.reservations)
        self.manager.activate(group)
        self.refs.append(group)

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def drop_reservation(self, data: st.DataObject) -> None:
        self.manager.release(self.pick(data, self.reservations))

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        group = self.pick(data, self.refs)
        self.manager.release(group)
        self.note_let_go(group)

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.refs))
        self.manager.acquire(group)
        self.refs.append(list(group))

    @precondition(lambda self: self.refs or self.leases)
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.refs + self.leases))
        self.manager.lease(group)
        self.leases.append(list(group))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        group = self.pick(data, self.leases)
        self.manager.end_lease(group)
        self.note_let_go(group)

    @precondition(lambda self: self.reservations or self.refs or self.leases)
    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.reservations + self.refs + self.leases))
        self.manager.fence(group)
        self.fences.append(list(group))
        self.contents = {c: b for c, b in self.contents.items() if b not in group}

    @precondition(lambda self: self.fences)
    @rule(data=st.data())
    def lift_fence(self, data: st.DataObject) -> None:
        self.manager.lift_fence(self.pick(data, self.fences))

    @precondition(lambda self: any(self.refs + self.leases))
    @rule(data=st.data(), content=CONTENTS)
    def register(self, data: st.DataObject, content: bytes) -> None:
        groups = self.refs + self.leases
        block = data.draw(st.sampled_from(sorted({b for group in groups for b in group})))
        self.make_matchable(block, content)

    @precondition(lambda self: any(self.refs))
    @rule(data=st.data(), contents=st.lists(CONTENTS, unique=True, min_size=4, max_size=4))
    def finish(self, data: st.DataObject, contents: list[bytes]) -> None:
        """As a sequence ends: its blocks were filled, and are let go."""
        group = self.pick(data, self.refs)
        for block, content in zip(group, contents, strict=False):
            self.make_matchable(block, content)
        self.manager.release(group)
        self.note_let_go(group)

    def make_matchable(self, block: int, content: bytes) -> None:
        if block in self.contents.values() or any(block in group for group in self.fences):
            return
        self.manager.register(block, content)
        self.contents.setdefault(content, block)

    @rule(contents=st.lists(CONTENTS, unique=True, max_size=4))
    def match_and_acquire(self, contents: list[bytes]) -> None:
        matched = self.manager.match_prefix(contents)
        expected = []
        for content in contents:
            if content not in self.contents:
                break
            expected.append(self.contents[content])
        assert matched == expected
        self.manager.acquire(matched)
        self.refs.append(matched)

    @invariant()
    def states_follow_from_the_holds(self) -> None:
        self.manager.check()
        expected: Counter[str] = Counter()
        for block in range(1, NUM_BLOCKS + 1):
            for state, groups in (
                ("leased", self.leases),
                ("used", self.refs),
                ("reserved", self.reservations),
                ("fenced", self.fences),
            ):
                if any(block in group for group in groups):
                    expected[state] += 1
                    break
            else:
                expected["cached" if block in self.contents.values() else "free"] += 1
        counts = self.manager.counts()
        assert {state: getattr(counts, state) for state in expected} == dict(expected)
        assert counts.total == NUM_BLOCKS
        assert self.manager.num_available == NUM_BLOCKS - len(self.held())

    @staticmethod
    def pick(data: st.DataObject, groups: list[list[int]]) -> list[int]:
        return groups.pop(data.draw(st.integers(0, len(groups) - 1)))


TestBlockManagerMachine = BlockManagerMachine.TestCase
TestBlockManagerMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
