"""Cuts the shared prefixes of a decode batch into items of work that fill a GPU: arrays of ints."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.attention.prefix_groups import SharedPrefix

# Of an item: the place whose table is read, first token and the one after the last, where its
# members begin and how many they are, and which of their slots it fills.
ITEM_FIELDS = 6
# So often the processors may be filled; more pieces even out what is left over at the end.
_MOST_ROUNDS = 4
# What an item costs beside its tokens, in units: queries come and results go.
_ITEM_COST = 1.0


@dataclass(frozen=True, slots=True)
class CascadeLimits:
    """``tile_members``: how many attend together in one program; ``programs`` run at the same time
    for each KV head; prefixes are cut at multiples of ``unit`` tokens. A plan has at most so many
    items, members of items, and slots."""

    tile_members: int
    programs: int
    unit: int
    items: int
    members: int
    slots: int

    @classmethod
    def of_batch(
        cls, num_sequences: int, *, tile_members: int, programs: int, unit: int
    ) -> "CascadeLimits":
        """Room for what ``plan_cascade`` makes of so many sequences, in two prefixes each on an
        average."""
        members, most_pieces = 2 * num_sequences, _MOST_ROUNDS * programs
        # A prefix has as many pieces as its share of the most, and one that is not whole.
        slots = members + most_pieces * min(tile_members, num_sequences)
        return cls(tile_members, programs, unit, members + most_pieces, members, slots)


@dataclass(frozen=True, slots=True)
class CascadePlan:
    """``items`` (N, 6) int32, see ITEM_FIELDS, the longest first; ``members`` (M,) int32 places;
    ``starts`` (S,) int32, each sequence's first own token; ``slots`` (S, 2) int32, its first slot
    and their number."""

    items: NDArray[np.int32]
    members: NDArray[np.int32]
    starts: NDArray[np.int32]
    slots: NDArray[np.int32]


def plan_cascade(
    prefixes: Sequence[SharedPrefix], num_sequences: int, limits: CascadeLimits
) -> CascadePlan:
    """``prefixes`` as PrefixGroups gives them. Where there are too many within each other, the
    innermost are left to the sequences' own parts."""
    kept: list[SharedPrefix] = []
    room = limits.members
    for prefix in sorted(prefixes, key=lambda each: each.begin):
        room -= len(prefix.members)
        if room < 0:
            break
        kept.append(prefix)
    plan = _plan(kept, num_sequences, _piece_units(kept, limits), limits)
    assert len(plan.items) <= limits.items, (len(plan.items), limits)
    assert int(plan.slots[:, 1].sum()) <= limits.slots, (plan.slots[:, 1].sum(), limits)
    return plan


def _piece_units(prefixes: Sequence[SharedPrefix], limits: CascadeLimits) -> int:
    """Units of a piece for which the last program ends soonest."""
    sizes = [
        ((prefix.end - prefix.begin) // limits.unit, _num_tiles(prefix, limits))
        for prefix in prefixes
    ]
    total = sum(units * tiles for units, tiles in sizes)
    best, best_cost = 1, float("inf")
    for rounds in range(1, _MOST_ROUNDS + 1):
        longest = max(-(-total // (rounds * limits.programs)), 1)
        items = sum(-(-units // longest) * tiles for units, tiles in sizes)
        share = max((-(-units // -(-units // longest)) for units, _ in sizes), default=1)
        cost = -(-items // limits.programs) * (share + _ITEM_COST)
        if cost < best_cost:
            best, best_cost = longest, cost
    return best


def _num_tiles(prefix: SharedPrefix, limits: CascadeLimits) -> int:
    return -(-len(prefix.members) // limits.tile_members)


def _plan(
    prefixes: Sequence[SharedPrefix], num_sequences: int, longest: int, limits: CascadeLimits
) -> CascadePlan:
    starts = np.zeros(num_sequences, dtype=np.int32)
    slots = np.zeros((num_sequences, 2), dtype=np.int32)
    items: list[tuple[int, int, int, int, int, int]] = []
    members: list[int] = []
    for prefix in prefixes:
        units = (prefix.end - prefix.begin) // limits.unit
        number = -(-units // longest)
        share = -(-units // number) * limits.unit
        number = -(-units * limits.unit // share)
        num_tiles = _num_tiles(prefix, limits)
        width = -(-len(prefix.members) // num_tiles)
        taken = int(slots[prefix.members[0], 1])
        for tile in range(num_tiles):
            inside = prefix.members[tile * width : (tile + 1) * width]
            for piece in range(number):
                begin = prefix.begin + piece * share
                end = min(begin + share, prefix.end)
                items.append((inside[0], begin, end, len(members), len(inside), taken + piece))
            members += inside
        places = list(prefix.members)
        starts[places] = prefix.end
        slots[places, 1] += number
    slots[1:, 0] = np.cumsum(slots[:-1, 1])
    items.sort(key=lambda item: item[1] - item[2])
    return CascadePlan(
        items=np.array(items, dtype=np.int32).reshape(-1, ITEM_FIELDS),
        members=np.array(members, dtype=np.int32),
        starts=starts,
        slots=slots,
    )
