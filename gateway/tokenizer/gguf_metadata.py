"""The key/value part of a GGUF file, read without its tensors.

``gguf.GGUFReader`` makes several numpy views per array element, which takes seconds for a
vocabulary; this reads the same format (with the library's constants) in some 50 ms.
"""

import mmap
import struct
import sys
from array import array
from pathlib import Path
from typing import Any

from gguf.constants import GGUF_MAGIC, GGUF_VERSION, GGUFValueType

from gateway.tokenizer.errors import TokenizerError

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


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Returns every key with its value as a plain Python object (arrays as lists).

    Raises TokenizerError if the file is no GGUF file that can be read, or is cut off.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).read_pairs()
    except (struct.error, UnicodeDecodeError, ValueError, OSError) as error:
        raise TokenizerError(f"{path}: not a readable GGUF file: {error}") from error


class _Cursor:
    """A place in the file that moves forward as values are read."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def read_pairs(self) -> dict[str, Any]:
        if self._read_struct(_UINT32) != GGUF_MAGIC:
            raise ValueError("the magic number is missing")
        version = self._read_struct(_UINT32)
        if version not in _READABLE_VERSIONS:
            raise ValueError(f"version {version} in this byte order is not supported")
        self._read_struct(_UINT64)  # number of tensors
        return {
            self._read_string(): self._read_value(GGUFValueType(self._read_struct(_UINT32)))
            for _ in range(self._read_struct(_UINT64))
        }

    def _read_value(self, value_type: GGUFValueType) -> Any:
        if value_type == GGUFValueType.STRING:
            return self._read_string()
        if value_type == GGUFValueType.ARRAY:
            element_type = GGUFValueType(self._read_struct(_UINT32))
            return self._read_array(element_type, self._read_struct(_UINT64))
        return self._read_struct(struct.Struct("<" + _SCALAR_CODES[value_type]))

    def _read_array(self, element_type: GGUFValueType, length: int) -> list[Any]:
        if element_type == GGUFValueType.STRING:
            return self._read_strings(length)
        if element_type == GGUFValueType.ARRAY:
            return [self._read_value(element_type) for _ in range(length)]
        code = _SCALAR_CODES[element_type]
        if element_type == GGUFValueType.BOOL:
            return [byte != 0 for byte in self._take(length)]
        values = array(code, self._take(length * struct.calcsize("<" + code)))
        if sys.byteorder == "big":
            values.byteswap()
        return values.tolist()

    def _read_strings(self, length: int) -> list[str]:
        # One loop over locals: this runs some 100,000 times for a vocabulary with its merges.
        data, offset, unpack = self._data, self._offset, _UINT64.unpack_from
        strings = []
        for _ in range(length):
            start = offset + 8
            offset = start + unpack(data, offset)[0]
            strings.append(data[start:offset].decode())
        if offset > len(data):
            raise ValueError(f"cut off at byte {len(data)}")
        self._offset = offset
        return strings

    def _read_string(self) -> str:
        return self._take(self._read_struct(_UINT64)).decode()

    def _read_struct(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self._data, self._offset)
        self._offset += layout.size
        return value

    def _take(self, length: int) -> bytes:
        taken = self._data[self._offset : self._offset + length]
        if len(taken) != length:
            raise ValueError(f"cut off at byte {len(self._data)}")
        self._offset += length
        return taken
