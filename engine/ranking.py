"""The best tokens of a row, in one order whatever the number asked for."""

import numpy as np
import torch
from numpy.typing import NDArray

_SEGMENT = 64


def best_tokens(values: NDArray[np.float32], number: int) -> NDArray[np.int64]:
    """Ids of the ``number`` highest of ``values`` (vocabulary,), all where there are fewer.

    Best first, and the lower id among equals: logits that were computed in bfloat16 are often
    equal.
    """
    number = min(number, values.size)
    if number == 0:
        return np.empty(0, dtype=np.int64)
    ids = np.flatnonzero(values >= _floor(values, number))
    return ids[np.argsort(-values[ids], kind="stable")[:number]]


def _floor(values: NDArray[np.float32], number: int) -> np.float32:
    """At most the value of the last of the best."""
    num_segments = values.size // _SEGMENT
    pool = values
    if number <= num_segments:
        # So many segments have a value at least as high as the last of their best ones.
        segments = values[: num_segments * _SEGMENT].reshape(num_segments, _SEGMENT)
        pool = torch.from_numpy(segments).amax(dim=-1).numpy()
    floor: np.float32 = np.partition(pool, pool.size - number)[pool.size - number]
    return floor
