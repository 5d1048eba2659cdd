"""What is told of the grid, from times that are written down."""

import pytest

from bench.cascade import LLAMA_8B, grid_figures
from engine.attention.cascade_table import CascadeRow
from engine.gpu.cascade_measure import CascadePoint, CascadeTime


def test_choices_that_cost_too_much_are_counted_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = CascadeRow("NVIDIA X", LLAMA_8B, ((8, 1024),), "measured")
    times = [
        CascadeTime(CascadePoint(8, 1024, 16), flat=300.0, cascade=200.0),
        CascadeTime(CascadePoint(8, 2048, 16), flat=100.0, cascade=106.0),
        CascadeTime(CascadePoint(2, 4096, 256), flat=100.0, cascade=50.0),
    ]
    misses, worst, *points = grid_figures(times, row)
    assert (misses.value, misses.unit, worst.value) == (1, "of 3", 2.0)
    assert [(each.value, each.floor) for each in points] == [(200, 200), (106, 100), (100, 50)]
    assert "cascade.grid.m2.s4096.o256.us 44.0 us too long" in capsys.readouterr().out
