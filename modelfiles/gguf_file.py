"""A GGUF file.

``gguf.GGUFReader`` makes several numpy views per array element, which takes seconds for a
vocabulary; this reads the same format (with the library's constants) in some 50 ms.
"""

import math
import mmap
import struct
import sys
from array import array
from typing import Any

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGUF_VERSION,
    GGMLQuantizationType,
    GGUFValueType,
    Keys,
)

from modelfiles.errors import ModelFileError
from modelfiles.tensor_file import TensorEntry, TensorFile

_READABLE_VERSIONS = (2, GGUF_VERSION)
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
# struct and array agree on these codes; the sizes are the format's own.
_SCALAR_CODES = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "?",
}


class GgufFile(TensorFile):
    """``metadata``: plain Python values by key, arrays as lists."""

    def __init__(self, path: str) -> None:
        """Raises ModelFileError naming the file, and the tensor that is cut off or malformed."""
        super().__init__(path)
        self.metadata: dict[str, Any] = {}
        try:
            self._read_header(_Cursor(self._data))
        except (struct.error, ValueError) as error:
            raise ModelFileError(f"{path} is not a usable GGUF file: {error}") from error

    def _read_header(self, cursor: "_Cursor") -> None:
        if cursor.read(_UINT32) != GGUF_MAGIC:
            raise ValueError("it does not begin with the letters GGUF")
        version = cursor.read(_UINT32)
        if version not in _READABLE_VERSIONS:
            raise ValueError(f"version {version} in this byte order is not supported")
        num_tensors, num_values = cursor.read(_UINT64), cursor.read(_UINT64)
        for _ in range(num_values):
            key = cursor.read_string()
            self.metadata[key] = cursor.read_value(cursor.read(_UINT32))
        # Offsets count from where the data begins, which is known only behind the last entry.
        entries = [_read_entry(cursor) for _ in range(num_tensors)]
        alignment = self.metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"{Keys.General.ALIGNMENT} is {alignment!r}")
        data_start = -(-cursor.position // alignment) * alignment
        for name, kind, shape, offset, num_bytes in entries:
            self._add(TensorEntry(name, kind, shape, data_start + offset, num_bytes))


def _read_entry(cursor: "_Cursor") -> tuple[str, str, tuple[int, ...], int, int]:
    """Name, type, shape, offset within the data, and length in bytes."""
    name = cursor.read_string()
    dims = [cursor.read(_UINT64) for _ in range(cursor.read(_UINT32))]
    try:
        kind = GGMLQuantizationType(cursor.read(_UINT32))
    except ValueError as error:
        raise ValueError(f"tensor {name}: {error}") from error
    block_size, type_size = GGML_QUANT_SIZES[kind]
    row = dims[0] if dims else 1
    if row % block_size:
        raise ValueError(f"tensor {name} has rows of {row} values, no multiple of {block_size}")
    num_bytes = math.prod(dims) // block_size * type_size
    return name, kind.name, tuple(reversed(dims)), cursor.read(_UINT64), num_bytes


class _Cursor:
    """A place in the file that moves forward as values are read."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def read(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self._data, self.position)
        self.position += layout.size
        return value

    def read_string(self) -> str:
        return self._take(self.read(_UINT64)).decode()

    def read_value(self, kind: int) -> Any:
        value_type = GGUFValueType(kind)
        if value_type == GGUFValueType.STRING:
            return self.read_string()
        if value_type == GGUFValueType.ARRAY:
            return self._read_array(self.read(_UINT32), self.read(_UINT64))
        return self.read(struct.Struct("<" + _SCALAR_CODES[value_type]))

    def _read_array(self, kind: int, length: int) -> list[Any]:
        element_type = GGUFValueType(kind)
        if element_type == GGUFValueType.STRING:
            return self._read_strings(length)
        if element_type == GGUFValueType.ARRAY:
            return [self.read_value(kind) for _ in range(length)]
        code = _SCALAR_CODES[element_type]
        if element_type == GGUFValueType.BOOL:
            return [byte != 0 for byte in self._take(length)]
        values = array(code, self._take(length * struct.calcsize("<" + code)))
        if sys.byteorder == "big":
            values.byteswap()
        return values.tolist()

    def _read_strings(self, length: int) -> list[str]:
        # One loop over locals: this runs some 100,000 times for a vocabulary with its merges.
        data, position, unpack = self._data, self.position, _UINT64.unpack_from
        strings = []
        for _ in range(length):
            start = position + 8
            position = start + unpack(data, position)[0]
            strings.append(data[start:position].decode())
        if position > len(data):
            raise ValueError("it ends inside its header (truncated?)")
        self.position = position
        return strings

    def _take(self, length: int) -> bytes:
        taken = self._data[self.position : self.position + length]
        if len(taken) != length:
            raise ValueError("it ends inside its header (truncated?)")
        self.position += length
        return taken
