"""What a step looks like on its way to the other ranks."""

import numpy as np

from engine.parallel.step_message import Array, decode, encode


def test_arrays_arrive_as_they_were_sent() -> None:
    arrays: list[Array] = [
        np.arange(12, dtype=np.int64).reshape(3, 4),
        np.array([-1, 1 << 30], dtype=np.int32),
        np.zeros((0, 2), dtype=np.int64),
        np.arange(10, dtype=np.int32)[::2],
    ]
    kind, arrived = decode(encode(7, arrays))
    assert kind == 7
    for sent, got in zip(arrays, arrived, strict=True):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert got.tolist() == sent.tolist()
