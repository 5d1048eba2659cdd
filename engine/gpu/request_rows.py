"""What the host remembers of requests between decode steps, so that a step costs little Python."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.request import Request
from engine.sampling_params import SamplingParams

_MASK = 0xFFFFFFFF


def sampling_numbers(params: SamplingParams) -> NDArray[np.int32]:
    """What the kernels read of ``params``, as 32-bit words: temperature, top_p and min_p as
    float32, then top_k, the low and the high half of the seed."""
    words = np.empty(6, dtype=np.uint32)
    words[:3] = np.array([params.temperature, params.top_p, params.min_p], np.float32).view(
        np.uint32
    )
    words[3:] = min(params.top_k, _MASK >> 1), params.seed & _MASK, params.seed >> 32
    return words.view(np.int32)


class RequestRows:
    """A row for each request that decodes: its block table and sampling parameters as arrays.

    Rows of requests that are not in a step may be given to others in it.
    """

    def __init__(self, num_rows: int, max_blocks: int) -> None:
        self.tables: NDArray[np.int32] = np.zeros((num_rows, max_blocks), dtype=np.int32)
        self.sampling: NDArray[np.int32] = np.zeros((7, num_rows), dtype=np.int32)
        self._rows: dict[Request, int] = {}
        self._free = list(range(num_rows))
        self._known: list[tuple[list[int], int]] = [([], 0)] * num_rows

    def update(self, requests: Sequence[Request]) -> NDArray[np.int64]:
        """The row of each request, with its table as it is now; at most ``num_rows`` requests."""
        if len(self._free) < len(requests):
            self._forget_all_but(set(requests))
        return np.array([self._update(request) for request in requests], dtype=np.int64)

    def _update(self, request: Request) -> int:
        row = self._rows.get(request)
        if row is None:
            row = self._rows[request] = self._free.pop()
            self._known[row] = ([], 0)
            self.sampling[:6, row] = sampling_numbers(request.params)
            self.sampling[6, row] = request.choices[0]
        table = request.block_table
        seen, number = self._known[row]
        # A table only grows; one that was given up is another list.
        if seen is not table:
            number = 0
        if len(table) != number:
            self.tables[row, number : len(table)] = table[number:]
            self._known[row] = (table, len(table))
        return row

    def _forget_all_but(self, requests: set[Request]) -> None:
        for request in [each for each in self._rows if each not in requests]:
            self._free.append(self._rows.pop(request))
