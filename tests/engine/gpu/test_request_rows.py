"""The host's memory of requests, against what it must say after each change of their tables."""

from dataclasses import replace

import numpy as np

from engine.gpu.request_rows import RequestRows, sampling_numbers
from engine.request import Request
from engine.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0.5, top_p=0.9, min_p=0.1, top_k=7, seed=(3 << 32) + 5)


def make_request(table: list[int], choice: int = 0) -> Request:
    return Request("r", [1, 2], 2, PARAMS, choices=(choice,), block_table=table)


def test_parameters_become_words() -> None:
    words = sampling_numbers(PARAMS)
    assert words[:3].view(np.float32).tolist() == [0.5, np.float32(0.9), np.float32(0.1)]
    assert words[3:].tolist() == [7, 5, 3]
    assert sampling_numbers(replace(PARAMS, seed=(1 << 64) - 1))[4:].tolist() == [-1, -1]


def test_a_table_that_grows_or_is_replaced_is_followed() -> None:
    rows = RequestRows(4, 8)
    first, second = make_request([3, 4]), make_request([9], choice=2)
    places = rows.update([first, second])
    assert rows.tables[places, :2].tolist() == [[3, 4], [9, 0]]
    assert rows.sampling[6, places].tolist() == [0, 2]
    first.block_table += [5]
    second.block_table = [6, 7]
    assert (rows.update([second, first]) == places[::-1]).all()
    assert rows.tables[places, :3].tolist() == [[3, 4, 5], [6, 7, 0]]


def test_rows_are_taken_from_requests_that_are_gone() -> None:
    rows = RequestRows(2, 4)
    kept = make_request([1])
    for block in range(2, 12):
        places = rows.update([kept, make_request([block])])
        assert rows.tables[places, 0].tolist() == [1, block]
