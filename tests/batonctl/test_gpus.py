"""Which GPUs workers are given."""

from pathlib import Path

import pytest

from batonctl.gpus import share_gpus, visible_gpus


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


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 1, 1), [("a", 1), ("b", 1), ("c", 1)]),
        ((2, 2, 2), [("a,b", 2), ("c,d", 1), ("a,b", 2)]),
        ((3, 3, 3), [("a,b,c", 3), ("a,b,c", 3), ("a,b,c", 3)]),
        ((5, 5, 5), [("a,b,c,d", 3)] * 3),
        ((1, 2), [("a", 1), ("b,c", 1)]),
        ((3, 2, 1), [("a,b,c", 2), ("a,b", 2), ("c", 2)]),
    ],
    ids=["one each", "two each", "one left over", "too few", "two sizes", "some shared"],
)
def test_workers_take_turns_on_as_many_gpus_as_they_need(
    sizes: tuple[int, ...], expected: list[tuple[str, int]]
) -> None:
    assert share_gpus(["a", "b", "c", "d"], sizes) == expected
