"""From when on sequences attend together: what was measured, and nothing else."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from engine.attention import cascade_table
from engine.attention.cascade_table import (
    CASCADE_TABLE,
    CascadeHeads,
    CascadeRow,
    find_cascade,
    write_cascade,
)
from tests.engine.attention_cases import make_model

MODEL = make_model()
ROW = CascadeRow("NVIDIA X", CascadeHeads.of_model(MODEL), ((4, 1024), (32, 256)), "measured")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_KERNEL_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("members", "tokens", "pays"),
    [(3, 1 << 20, False), (4, 1024, True), (31, 1023, False), (32, 256, True), (500, 255, False)],
)
def test_it_pays_from_the_tokens_that_were_measured(members: int, tokens: int, pays: bool) -> None:
    assert ROW.pays(members, tokens) is pays


def test_nothing_is_shared_where_nothing_was_measured() -> None:
    assert find_cascade(MODEL, "NVIDIA X") is None


def test_what_is_written_is_found_for_this_gpu_and_these_heads_alone() -> None:
    write_cascade(ROW)
    assert find_cascade(MODEL, "NVIDIA X") == ROW
    assert find_cascade(MODEL, "NVIDIA Y") is None
    assert find_cascade(replace(MODEL, num_kv_heads=1), "NVIDIA X") is None


def test_a_model_all_of_whose_layers_have_windows_shares_nothing() -> None:
    write_cascade(ROW)
    assert find_cascade(replace(MODEL, sliding_window=64), "NVIDIA X") is None
    some = replace(MODEL, sliding_window=64, sliding_window_layers=(0,))
    assert find_cascade(some, "NVIDIA X") == ROW


def test_a_measurement_that_found_no_gain_stands_before_what_ships(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cascade_table, "CASCADE_TABLE", (ROW,))
    assert find_cascade(MODEL, "NVIDIA X") == ROW
    write_cascade(replace(ROW, least_tokens=()))
    assert find_cascade(MODEL, "NVIDIA X") is None


@pytest.mark.parametrize("change", [{"torch": "0"}, {"least_tokens": "none"}, {"heads": {}}])
def test_a_file_that_is_broken_or_of_other_versions_is_ignored(
    change: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    path = write_cascade(ROW)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with caplog.at_level(logging.WARNING):
        assert find_cascade(MODEL, "NVIDIA X") is None
    assert "is ignored" in caplog.text


def test_rows_that_ship_name_the_gpu_that_they_were_measured_on() -> None:
    for row in CASCADE_TABLE:
        counts = [count for count, _ in row.least_tokens]
        assert row.gpu and row.note and counts == sorted(set(counts))
