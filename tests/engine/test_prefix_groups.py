"""Shared prefixes of a decode batch, against what a search through all tables finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.prefix_groups import PrefixGroups, SharedPrefix
from engine.request import Request
from engine.sampling_params import SamplingParams

BLOCK = 4


def request(table: list[int], num_computed: int | None = None) -> Request:
    tokens = BLOCK * len(table) if num_computed is None else num_computed
    return Request(
        request_id="r",
        token_ids=[0] * (tokens + 1),
        num_prompt_tokens=1,
        params=SamplingParams(),
        block_table=table,
        num_computed_tokens=tokens,
    )


def always(members: int, tokens: int) -> bool:
    return True


def groups(unit: int = BLOCK) -> PrefixGroups:
    return PrefixGroups(BLOCK, unit, always)


def test_sequences_that_share_nothing_have_no_prefix() -> None:
    assert groups().update([request([1, 2]), request([3, 2]), request([4])]) == ()


def test_the_shared_length_is_in_whole_units() -> None:
    sequences = [request([9, 8, 7, 1]), request([5]), request([9, 8, 7, 2])]
    assert groups().update(sequences) == (SharedPrefix((0, 2), 0, 12),)
    assert groups(unit=8).update(sequences) == (SharedPrefix((0, 2), 0, 8),)
    assert groups(unit=16).update(sequences) == ()


def test_several_groups_lie_in_one_batch() -> None:
    sequences = [request([1, 2, 3]), request([4, 5]), request([1, 2, 6]), request([4, 5, 7])]
    found = groups().update(sequences)
    assert set(found) == {SharedPrefix((0, 2), 0, 8), SharedPrefix((1, 3), 0, 8)}


def test_prefixes_nest_outer_ones_first() -> None:
    sequences = [request([1, 2, 3]), request([1, 4, 5]), request([1, 2, 6]), request([1, 4, 7])]
    found = groups().update(sequences)
    assert found[0] == SharedPrefix((0, 1, 2, 3), 0, 4)
    assert set(found[1:]) == {SharedPrefix((0, 2), 4, 8), SharedPrefix((1, 3), 4, 8)}


def test_what_does_not_pay_for_all_goes_to_those_that_share_more() -> None:
    several = PrefixGroups(BLOCK, BLOCK, lambda members, tokens: tokens >= 8)
    sequences = [request([1, 2, 3]), request([1, 4, 5]), request([1, 2, 6])]
    assert several.update(sequences) == (SharedPrefix((0, 2), 0, 8),)


def test_a_block_that_is_not_full_is_not_shared() -> None:
    """The next token goes there."""
    sequences = [request([1, 2], num_computed=7), request([1, 2], num_computed=8)]
    assert groups().update(sequences) == (SharedPrefix((0, 1), 0, 4),)


def test_the_same_sequences_get_the_same_answer_while_they_grow() -> None:
    tables = [[1, 2, 3], [1, 2, 4]]
    sequences = [request(table) for table in tables]
    search = groups()
    found = search.update(sequences)
    tables[0].append(7)
    sequences[0].num_computed_tokens += BLOCK
    assert search.update(sequences) is found


def test_a_request_that_lost_its_blocks_is_looked_at_again() -> None:
    sequences = [request([1, 2, 3]), request([1, 2, 4])]
    search = groups()
    search.update(sequences)
    sequences[0].block_table = [5, 6, 7]
    assert search.update(sequences) == ()


def test_places_follow_the_order_of_the_batch() -> None:
    one, two, three = request([1, 2]), request([1, 3]), request([4])
    search = groups()
    assert search.update([one, two, three]) == (SharedPrefix((0, 1), 0, 4),)
    assert search.update([three, two, one]) == (SharedPrefix((1, 2), 0, 4),)


TABLES = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=7), min_size=1, max_size=9)


def pays_for_some(members: int, tokens: int) -> bool:
    return members * tokens >= 24


def check(found: tuple[SharedPrefix, ...], sequences: list[Request]) -> list[int]:
    """Chains from the first token on, of equal blocks; returns where each sequence's own begin."""
    ends = [0] * len(sequences)
    for prefix in found:
        assert len(prefix.members) > 1 and prefix.begin < prefix.end
        shared = {tuple(sequences[m].block_table[: prefix.end // BLOCK]) for m in prefix.members}
        assert len(shared) == 1
        for member in prefix.members:
            assert ends[member] == prefix.begin
            ends[member] = prefix.end
            assert prefix.end <= sequences[member].num_computed_tokens
    return ends


@settings(deadline=None)
@given(TABLES, st.sampled_from([BLOCK, 2 * BLOCK]))
def test_every_block_that_two_share_is_attended_to_together(
    tables: list[list[int]], unit: int
) -> None:
    sequences = [request(table) for table in tables]
    ends = check(groups(unit).update(sequences), sequences)
    for place, table in enumerate(tables):
        most = max(
            (common(table, other) for at, other in enumerate(tables) if at != place), default=0
        )
        assert ends[place] == most * BLOCK // unit * unit


def common(one: list[int], other: list[int]) -> int:
    number = 0
    while number < min(len(one), len(other)) and one[number] == other[number]:
        number += 1
    return number


@settings(deadline=None)
@given(TABLES, st.lists(st.lists(st.integers(0, 8), max_size=9), max_size=6))
def test_a_search_that_follows_a_batch_finds_what_a_new_one_does(
    tables: list[list[int]], batches: list[list[int]]
) -> None:
    """Each batch is some of the sequences, in any order."""
    sequences = [request(table) for table in tables]
    search = PrefixGroups(BLOCK, BLOCK, pays_for_some)
    for batch in batches:
        now = [sequences[place] for place in dict.fromkeys(batch) if place < len(sequences)]
        found = search.update(now)
        check(found, now)
        assert set(found) == set(PrefixGroups(BLOCK, BLOCK, pays_for_some).update(now))
        assert all(pays_for_some(len(each.members), each.end - each.begin) for each in found)
