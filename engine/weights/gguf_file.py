"""The index of a GGUF file, read without materialising its tokenizer.

``gguf.GGUFReader`` makes a numpy array for each string of the vocabulary and of the merges, which
costs seconds; a worker needs few of them, so here arrays of strings are only stepped over. Types,
block sizes and rare dequantisations still come from the ``gguf`` library.
"""

import math
import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import torch

from engine.errors import CheckpointError
from engine.weights.stored_tensor import GROUP_SIZE, Q4Tensor, Q8Tensor, StoredTensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    gguf.GGUFValueType.UINT8: "<B",
    gguf.GGUFValueType.INT8: "<b",
    gguf.GGUFValueType.UINT16: "<H",
    gguf.GGUFValueType.INT16: "<h",
    gguf.GGUFValueType.UINT32: "<I",
    gguf.GGUFValueType.INT32: "<i",
    gguf.GGUFValueType.FLOAT32: "<f",
    gguf.GGUFValueType.BOOL: "<?",
    gguf.GGUFValueType.UINT64: "<Q",
    gguf.GGUFValueType.INT64: "<q",
    gguf.GGUFValueType.FLOAT64: "<d",
}


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """Where a tensor lies: ``shape`` with rows first, ``offset`` from the start of the file."""

    name: str
    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SkippedStrings:
    """An array of strings that was stepped over: where its first one begins, and how many."""

    position: int
    length: int


class _Cursor:
    """Reads little-endian values one after another."""

    def __init__(self, data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._view = data.data
        self.position = 0

    def scalar(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self._view, self.position)
        self.position += struct.calcsize(layout)
        return value

    def string(self) -> str:
        return bytes(self._take(self.scalar("<Q"))).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == gguf.GGUFValueType.STRING:
            return self.string()
        if kind == gguf.GGUFValueType.ARRAY:
            return self._array(self.scalar("<I"), self.scalar("<Q"))
        return self.scalar(_SCALARS[gguf.GGUFValueType(kind)])

    def _array(self, kind: int, length: int) -> Any:
        """A numeric array as a tuple; strings (the tokenizer's) are skipped."""
        if kind == gguf.GGUFValueType.STRING:
            skipped = SkippedStrings(self.position, length)
            for _ in range(length):
                self._take(self.scalar("<Q"))
            return skipped
        if kind == gguf.GGUFValueType.ARRAY:
            return tuple(self.value(kind) for _ in range(length))
        code = _SCALARS[gguf.GGUFValueType(kind)][1]
        size = struct.calcsize(f"<{code}")
        return struct.unpack(f"<{length}{code}", self._take(length * size))

    def _take(self, length: int) -> memoryview:
        start = self.position
        if start + length > len(self._view):
            raise struct.error("the file ends inside its header")
        self.position += length
        return self._view[start : self.position]


class GgufFile:
    """``metadata``: values by key, SkippedStrings where many. ``entries``: tensors by name.

    The file is mapped, not read: tensors that need no conversion share its pages.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.entries: dict[str, GgufEntry] = {}
        try:
            # Copy on write, because torch warns about arrays that it may not write to.
            self._data = np.memmap(path, mode="c")
            self._read_index(_Cursor(self._data))
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise CheckpointError(f"{path} is not a usable GGUF file: {error}") from error

    def _read_index(self, cursor: _Cursor) -> None:
        if bytes(self._data[:4]) != _MAGIC:
            raise ValueError("it does not begin with the letters GGUF")
        cursor.position = 4
        version = cursor.scalar("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} of the format; supported: 2, 3 (little-endian)")
        num_tensors, num_values = cursor.scalar("<Q"), cursor.scalar("<Q")
        for _ in range(num_values):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar("<I"))
        entries = [self._read_entry(cursor) for _ in range(num_tensors)]
        alignment = int(self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT))
        data_start = -(-cursor.position // alignment) * alignment
        for name, kind, shape, offset, num_bytes in entries:
            entry = GgufEntry(name, kind, shape, data_start + offset, num_bytes)
            if entry.offset + num_bytes > len(self._data):
                raise ValueError(f"tensor {name} lies beyond the end of the file (truncated?)")
            self.entries[name] = entry

    @staticmethod
    def _read_entry(
        cursor: _Cursor,
    ) -> tuple[str, gguf.GGMLQuantizationType, tuple[int, ...], int, int]:
        name = cursor.string()
        dims = tuple(cursor.scalar("<Q") for _ in range(cursor.scalar("<I")))
        kind = gguf.GGMLQuantizationType(cursor.scalar("<I"))
        block_size, type_size = gguf.GGML_QUANT_SIZES[kind]
        num_bytes = math.prod(dims) // block_size * type_size
        return name, kind, dims[::-1], cursor.scalar("<Q"), num_bytes

    def indices_of(self, key: str, texts: Collection[str]) -> frozenset[int]:
        """Places of ``texts`` in an array of strings; empty where the file has no such array."""
        skipped = self.metadata.get(key)
        if not isinstance(skipped, SkippedStrings):
            return frozenset()
        cursor = _Cursor(self._data)
        cursor.position = skipped.position
        return frozenset(i for i in range(skipped.length) if cursor.string() in texts)

    def raw(self, name: str) -> torch.Tensor:
        """The bytes of a tensor, (num_bytes,) uint8, shared with the mapped file."""
        entry = self.entries[name]
        return torch.from_numpy(self._data[entry.offset : entry.offset + entry.num_bytes])

    def tensor(self, name: str) -> StoredTensor:
        entry = self.entries[name]
        decode = _DECODERS.get(entry.kind, _decode_by_library)
        return decode(self.raw(name), entry)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def _decode_q4_0(raw: torch.Tensor, entry: GgufEntry) -> StoredTensor:
    blocks = raw.view(entry.shape[0], -1, 18)
    scales = blocks[..., :2].contiguous().view(torch.float16).squeeze(-1)
    return Q4Tensor(blocks[..., 2:], scales, scales * -8)


def _decode_q4_1(raw: torch.Tensor, entry: GgufEntry) -> StoredTensor:
    blocks = raw.view(entry.shape[0], -1, 20)
    scales, minimums = blocks[..., :4].contiguous().view(torch.float16).unbind(-1)
    return Q4Tensor(blocks[..., 4:], scales, minimums)


def _decode_q8_0(raw: torch.Tensor, entry: GgufEntry) -> StoredTensor:
    blocks = raw.view(entry.shape[0], -1, 2 + GROUP_SIZE)
    scales = blocks[..., :2].contiguous().view(torch.float16).squeeze(-1)
    return Q8Tensor(blocks[..., 2:].view(torch.int8), scales)


def _decode_by_library(raw: torch.Tensor, entry: GgufEntry) -> StoredTensor:
    """Rarer block formats become float32; q4 then quantises them anew."""
    if entry.kind in _PLAIN:
        return raw.view(_PLAIN[entry.kind]).view(entry.shape)
    try:
        values = gguf.dequantize(raw.view(entry.shape[0], -1).numpy(), entry.kind)
    except NotImplementedError as error:
        raise CheckpointError(
            f"tensor {entry.name} is of type {entry.kind.name}: {error}"
        ) from error
    return torch.from_numpy(values).view(entry.shape)


_PLAIN = {
    gguf.GGMLQuantizationType.F32: torch.float32,
    gguf.GGMLQuantizationType.F16: torch.float16,
    gguf.GGMLQuantizationType.BF16: torch.bfloat16,
}
_DECODERS = {
    gguf.GGMLQuantizationType.Q4_0: _decode_q4_0,
    gguf.GGMLQuantizationType.Q4_1: _decode_q4_1,
    gguf.GGMLQuantizationType.Q8_0: _decode_q8_0,
}
