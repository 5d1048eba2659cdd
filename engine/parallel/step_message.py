"""A step on its way to the other ranks: a few arrays of integers as bytes, nothing pickled."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))


def encode(kind: int, arrays: Sequence[Array]) -> bytes:
    """``kind`` says what the arrays mean; they are int32 or int64."""
    parts = [struct.pack("<II", kind, len(arrays))]
    for array in arrays:
        head = struct.pack(
            f"<II{array.ndim}I", _DTYPES.index(array.dtype), array.ndim, *array.shape
        )
        parts += [head, np.ascontiguousarray(array).tobytes()]
    return b"".join(parts)


def decode(message: bytes) -> tuple[int, list[Array]]:
    """Arrays share memory with the message and cannot be written."""
    kind, count = struct.unpack_from("<II", message)
    place, arrays = 8, []
    for _ in range(count):
        number, ndim = struct.unpack_from("<II", message, place)
        shape = struct.unpack_from(f"<{ndim}I", message, place + 8)
        place += 8 + 4 * ndim
        size = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(message, _DTYPES[number], size, place).reshape(shape)
        place += array.nbytes
        arrays.append(array)
    return kind, arrays
