"""How shared prefixes are cut into work, on paper."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.cascade_plan import CascadeLimits, CascadePlan, plan_cascade
from engine.attention.prefix_groups import SharedPrefix

UNIT = 128
H200 = {"tile_members": 32, "programs": 16, "unit": UNIT}


def limits(num_sequences: int) -> CascadeLimits:
    return CascadeLimits.of_batch(num_sequences, **H200)


def together(number: int, tokens: int) -> list[SharedPrefix]:
    return [SharedPrefix(tuple(range(number)), 0, tokens)]


def test_a_large_group_is_cut_so_that_every_program_has_an_item() -> None:
    """8 tiles of members, so 2 pieces for each of 16 programs a KV head."""
    plan = plan_cascade(together(256, 32768), 256, limits(256))
    assert len(plan.items) == 16
    assert {tuple(item[1:3]) for item in plan.items.tolist()} == {(0, 16384), (16384, 32768)}
    assert plan.slots[:, 1].tolist() == [2] * 256


def test_a_small_group_is_cut_into_more_pieces() -> None:
    plan = plan_cascade(together(2, 32768), 2, limits(2))
    assert len(plan.items) % 16 == 0
    assert {item[4] for item in plan.items.tolist()} == {2}


def test_a_batch_without_prefixes_has_no_items() -> None:
    plan = plan_cascade([], 3, limits(3))
    assert (plan.items.shape, plan.starts.tolist()) == ((0, 6), [0, 0, 0])
    assert plan.slots.tolist() == [[0, 0]] * 3


def test_where_too_many_nest_the_innermost_are_left_to_the_sequences() -> None:
    everyone = [SharedPrefix((0, 1, 2), level * UNIT, (level + 1) * UNIT) for level in range(5)]
    plan = plan_cascade(everyone[::-1], 3, limits(3))
    assert plan.starts.tolist() == [2 * UNIT] * 3


@st.composite
def nested(draw: st.DrawFn) -> tuple[list[SharedPrefix], int]:
    """Prefixes as a search gives them: runs of places, divided again and again."""
    number = draw(st.integers(1, 40))
    found: list[SharedPrefix] = []
    runs = [(0, number, 0)]
    while runs and len(found) < 12:
        first, end, begin = runs.pop()
        if end - first < 2:
            continue
        length = draw(st.integers(0, 60)) * UNIT
        if length:
            found.append(SharedPrefix(tuple(range(first, end)), begin, begin + length))
        middle = draw(st.integers(first + 1, end - 1))
        runs += [(first, middle, begin + length), (middle, end, begin + length)]
    return found, number


@settings(deadline=None)
@given(nested(), st.integers(1, 40), st.integers(1, 20))
def test_every_token_before_a_sequences_own_is_in_one_slot(
    case: tuple[list[SharedPrefix], int], tile_members: int, programs: int
) -> None:
    prefixes, number = case
    bounds = CascadeLimits.of_batch(number, tile_members=tile_members, programs=programs, unit=UNIT)
    plan = plan_cascade(prefixes, number, bounds)
    covered = read_back(plan, number, tile_members)
    for sequence, spans in enumerate(covered):
        assert len(spans) == plan.slots[sequence, 1]
        ends = [0, *(end for _, end in spans)]
        assert [begin for begin, _ in spans] == ends[:-1]
        assert ends[-1] == plan.starts[sequence]
    ends = plan.slots.sum(axis=1).tolist()
    assert plan.slots[1:, 0].tolist() == ends[:-1] and plan.slots[0, 0] == 0
    assert ends[-1] <= bounds.slots and len(plan.items) <= bounds.items


def read_back(plan: CascadePlan, number: int, tile_members: int) -> list[list[tuple[int, int]]]:
    """The tokens of every slot, in order of slots; each is filled once."""
    slots: list[dict[int, tuple[int, int]]] = [{} for _ in range(number)]
    for owner, begin, end, first, size, slot in plan.items.tolist():
        assert begin < end and begin % UNIT == end % UNIT == 0
        assert 0 < size <= tile_members
        members = plan.members[first : first + size].tolist()
        assert owner in members
        for member in members:
            assert slot not in slots[member]
            slots[member][slot] = (begin, end)
    for filled in slots:
        assert sorted(filled) == list(range(len(filled)))
    return [[filled[slot] for slot in sorted(filled)] for filled in slots]
