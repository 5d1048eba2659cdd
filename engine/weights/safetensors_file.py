"""One safetensors file, mapped.

The header is read here, and not by the ``safetensors`` library, so that an error can name the
tensor that is cut off and so that bytes can be sampled without a conversion.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.errors import CheckpointError

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """Where a tensor lies; ``offset`` counts from the start of the file."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class SafetensorsFile:
    """``entries``: tensors by name. Raises CheckpointError naming the file and the tensor."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: dict[str, SafetensorsEntry] = {}
        try:
            # Copy on write, because torch warns about arrays that it may not write to.
            self._data = np.memmap(path, mode="c")
            self._read_header()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a usable safetensors file: {error}") from error

    def _read_header(self) -> None:
        length = int.from_bytes(self._data[:_LENGTH_BYTES].tobytes(), "little")
        data_start = _LENGTH_BYTES + length
        if len(self._data) < max(data_start, _LENGTH_BYTES):
            raise ValueError("it ends inside its header (truncated?)")
        header = json.loads(self._data[_LENGTH_BYTES:data_start].tobytes())
        for name, value in header.items():
            if name != "__metadata__":
                self.entries[name] = self._read_entry(name, value, data_start)

    def _read_entry(self, name: str, value: dict[str, Any], data_start: int) -> SafetensorsEntry:
        begin, end = value["data_offsets"]
        shape = tuple(int(size) for size in value["shape"])
        if not 0 <= begin <= end:
            raise ValueError(f"tensor {name} has offsets {begin} to {end}")
        if data_start + end > len(self._data):
            raise ValueError(f"tensor {name} lies beyond the end of the file (truncated?)")
        dtype = _DTYPES.get(value["dtype"])
        if dtype is not None and end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"tensor {name} of shape {shape} has {end - begin} bytes")
        return SafetensorsEntry(name, value["dtype"], shape, data_start + begin, end - begin)

    def raw(self, name: str) -> torch.Tensor:
        """The bytes of a tensor, (num_bytes,) uint8, shared with the mapped file."""
        entry = self.entries[name]
        return torch.from_numpy(self._data[entry.offset : entry.offset + entry.num_bytes])

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, shared with the mapped file where its alignment allows."""
        entry = self.entries[name]
        if (dtype := _DTYPES.get(entry.kind)) is None:
            raise CheckpointError(
                f"{self.path}: tensor {name} is of type {entry.kind}; "
                f"supported: {', '.join(_DTYPES)}"
            )
        raw = self.raw(name)
        if entry.offset % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(entry.shape)
