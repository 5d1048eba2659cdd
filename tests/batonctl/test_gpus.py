"""Which GPUs workers are given."""

from pathlib import Path

import pytest

from batonctl.gpus import visible_gpus


def test_gpus_are_those_that_the_driver_lists(tmp_path: Path) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / address).mkdir()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({}, tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("2,0", ["2", "0"]), ("GPU-1a2b", ["GPU-1a2b"]), ("", []), ("-1", [])],
    ids=["some", "by name", "none", "none by number"],
)
def test_the_environment_narrows_them(tmp_path: Path, asked: str, expected: list[str]) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": asked}, tmp_path) == expected
