"""Which sequences of a decode batch have their first tokens in the same blocks.

The tables are kept in order, so that those with a common start are neighbours; a sequence that
comes or goes costs a search, and a step whose sequences are those of the last one costs nothing a
token.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np

from engine.request import Request


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Tokens ``[begin, end)`` that ``members``, places in the batch, have in the same blocks."""

    members: tuple[int, ...]
    begin: int
    end: int


@dataclass(slots=True)
class _Entry:
    """A table as it was when its sequence came: as bytes that sort by common start, and the number
    of blocks that it has in common with the entry before it."""

    table: list[int]
    key: bytes
    common: int = 0


class PrefixGroups:
    """Prefixes nest: the members of one may be some of those of another, which ends where the first
    begins. All of a sequence's prefixes together are its tokens from the first one on."""

    def __init__(self, block_size: int, unit: int, pays: Callable[[int, int], bool]) -> None:
        """Prefixes end at multiples of ``unit`` tokens, which are whole blocks. ``pays(members,
        tokens)`` says whether so many should attend together to so many tokens; where they should
        not, the tokens go to those of the members that share more."""
        assert unit % block_size == 0, (unit, block_size)
        self._unit_blocks = unit // block_size
        self._block_size = block_size
        self._pays = pays
        self._entries: list[_Entry] = []
        self._known: dict[int, _Entry] = {}
        self._tables: list[list[int]] = []
        self._prefixes: tuple[SharedPrefix, ...] = ()

    def update(self, requests: Sequence[Request]) -> tuple[SharedPrefix, ...]:
        """The prefixes of these sequences, outer ones first; the same object as long as nothing
        changes.

        Only blocks that were full when a sequence came count: those it adds are its own.
        """
        tables = [request.block_table for request in requests]
        # A table only grows while its request is here; one that was given up is another list.
        if len(tables) == len(self._tables) and all(map(is_, tables, self._tables)):
            return self._prefixes
        places = {id(table): place for place, table in enumerate(tables)}
        for number in self._known.keys() - places.keys():
            self._remove(self._known.pop(number))
        for request in requests:
            if id(request.block_table) not in self._known:
                self._insert(request)
        self._tables = tables
        self._prefixes = tuple(self._find(places))
        return self._prefixes

    def _insert(self, request: Request) -> None:
        table = request.block_table
        num_full = request.num_computed_tokens // self._block_size
        entry = _Entry(table, array("i", table[:num_full]).tobytes())
        self._known[id(table)] = entry
        place = bisect_left(self._entries, entry.key, key=lambda each: each.key)
        if place:
            entry.common = _common_blocks(self._entries[place - 1].key, entry.key)
        if place < len(self._entries):
            after = self._entries[place]
            after.common = _common_blocks(entry.key, after.key)
        self._entries.insert(place, entry)

    def _remove(self, entry: _Entry) -> None:
        place = bisect_left(self._entries, entry.key, key=lambda each: each.key)
        while self._entries[place] is not entry:
            place += 1
        del self._entries[place]
        if place < len(self._entries):
            after = self._entries[place]
            after.common = min(after.common, entry.common)

    def _find(self, places: dict[int, int]) -> list[SharedPrefix]:
        order = [places[id(entry.table)] for entry in self._entries]
        commons = [entry.common // self._unit_blocks for entry in self._entries]
        unit = self._unit_blocks * self._block_size
        found = []
        # Runs of entries, and the units at their start that are taken already.
        runs = [(0, len(order), 0)]
        while runs:
            first, end, begin = runs.pop()
            if end - first < 2:
                continue
            common = min(commons[first + 1 : end])
            if common > begin and self._pays(end - first, (common - begin) * unit):
                members = tuple(sorted(order[first:end]))
                found.append(SharedPrefix(members, begin * unit, common * unit))
                begin = common
            borders = [place for place in range(first + 1, end) if commons[place] == common]
            runs += zip(
                [first, *borders], [*borders, end], [begin] * (1 + len(borders)), strict=True
            )
        return found


def _common_blocks(one: bytes, other: bytes) -> int:
    if one[:4] != other[:4]:
        return 0
    number = min(len(one), len(other)) // 4
    differ = np.frombuffer(one, np.int32, number) != np.frombuffer(other, np.int32, number)
    place = int(differ.argmax()) if number else 0
    return place if number and differ[place] else number
