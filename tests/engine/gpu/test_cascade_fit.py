"""The row that is made of measured times."""

from engine.attention.cascade_table import NEVER, CascadeHeads, CascadeRow
from engine.gpu.cascade_measure import CascadePoint, CascadeTime, fit_row

HEADS = CascadeHeads(32, 8, 128)
FLAT = CascadeRow("NVIDIA X", HEADS, (), "never together")


def times(members: int, gains: dict[int, float]) -> list[CascadeTime]:
    """``gains``: by shared tokens, microseconds that attending together saves of a thousand."""
    return [
        CascadeTime(CascadePoint(members, shared, own), 1000.0, 1000.0 - gain)
        for shared, gain in gains.items()
        for own in (16, 256)
    ]


def test_sequences_attend_together_from_where_it_pays() -> None:
    measured = [
        *times(2, {64: 0, 256: -90, 1024: -50, 4096: -20}),
        *times(8, {64: 0, 256: -90, 1024: -50, 4096: 200}),
        *times(32, {64: 0, 256: -60, 1024: 90, 4096: 600}),
        *times(64, {64: 0, 256: -60, 1024: 90, 4096: 600}),
    ]
    row = fit_row(measured, HEADS, "NVIDIA X", "measured")
    assert row.least_tokens == ((8, 4096), (32, 1024))
    assert all(each.excess(row) == 0 for each in measured)
    assert {each.chosen(row) for each in measured if each.point.members == 2} == {1000.0}


def test_what_stops_paying_for_more_sequences_is_said() -> None:
    measured = [*times(2, {256: 50}), *times(4, {256: -50})]
    row = fit_row(measured, HEADS, "NVIDIA X", "measured")
    assert row.least_tokens == ((2, 256), (4, NEVER))


def test_where_it_never_pays_the_row_is_empty() -> None:
    row = fit_row(times(2, {256: -1, 1024: -300}), HEADS, "NVIDIA X", "measured")
    assert row.least_tokens == ()


def test_one_time_that_is_off_does_not_move_the_border_to_it() -> None:
    measured = times(8, {256: 30, 1024: -200, 4096: -200, 8192: 400, 16384: 500})
    row = fit_row(measured, HEADS, "NVIDIA X", "measured")
    assert row.least_tokens == ((8, 8192),)
    (missed,) = {each.point.shared for each in measured if each.excess(row) > 0}
    assert missed == 256


def test_a_choice_may_cost_two_percent_and_five_microseconds() -> None:
    near = CascadeTime(CascadePoint(8, 1024, 16), flat=100.0, cascade=93.5)
    assert near.excess(FLAT) == 0
    assert CascadeTime(CascadePoint(8, 1024, 16), flat=100.0, cascade=90.0).excess(FLAT) > 3
