"""A safetensors file.

The header is read here, and not by the ``safetensors`` library, so that an error can name the
tensor that is cut off.
"""

import json
import math
from typing import Any

from modelfiles.errors import ModelFileError
from modelfiles.tensor_file import TensorEntry, TensorFile

_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_LENGTH_BYTES = 8


class SafetensorsFile(TensorFile):
    """An 8-byte header length, a JSON header with offsets, and the tensors' bytes."""

    def __init__(self, path: str) -> None:
        """Raises ModelFileError naming the file, and the tensor that is cut off or malformed."""
        super().__init__(path)
        try:
            self._read_header()
        except ValueError as error:
            raise ModelFileError(f"{path} is not a usable safetensors file: {error}") from error

    def _read_header(self) -> None:
        data = self._data
        data_start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        if len(data) < max(data_start, _LENGTH_BYTES):
            raise ValueError("it ends inside its header (truncated?)")
        header = json.loads(data[_LENGTH_BYTES:data_start])
        if not isinstance(header, dict):
            raise ValueError("its header holds no JSON object")
        for name, value in header.items():
            if name != "__metadata__":
                self._add(_read_entry(name, value, data_start))


def _read_entry(name: str, value: Any, data_start: int) -> TensorEntry:
    try:
        kind = str(value["dtype"])
        shape = tuple(int(size) for size in value["shape"])
        begin, end = (int(offset) for offset in value["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tensor {name} has no type, shape or offsets") from error
    if not 0 <= begin <= end:
        raise ValueError(f"tensor {name} has offsets {begin} to {end}")
    size = _ITEM_SIZES.get(kind)
    if size is not None and end - begin != math.prod(shape) * size:
        raise ValueError(f"tensor {name} of shape {shape} has {end - begin} bytes")
    return TensorEntry(name, kind, shape, data_start + begin, end - begin)
