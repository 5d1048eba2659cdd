"""Gaps between steps, by nearest rank."""

from decode_svc.pace import Pace


def test_percentiles_are_gaps_that_really_occurred() -> None:
    pace = Pace()
    for ended in (1.0, 2.0, 4.0, 8.0):
        pace.observe(ended - 0.5, ended)
    assert pace.num_steps == 4
    assert pace.began_at == 0.5
    assert pace.percentiles() == {"p50": 2.0, "p90": 2.0, "p99": 2.0}


def test_a_single_step_has_no_gap() -> None:
    pace = Pace()
    pace.observe(0.5, 1.0)
    assert pace.percentiles() == {}
