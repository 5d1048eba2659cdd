"""A file of tensors, mapped and not read."""

import mmap
from dataclasses import dataclass

from modelfiles.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: ``shape`` with rows first, ``offset`` from the start of the file.

    ``kind`` is the type as the format names it: F32, BF16, Q4_1.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class TensorFile:
    """``entries``: the tensors by name. Formats fill it from their headers."""

    def __init__(self, path: str) -> None:
        """Raises ModelFileError for a file that cannot be opened, or is empty."""
        self.path = path
        self.entries: dict[str, TensorEntry] = {}
        try:
            with open(path, "rb") as file:
                # Private and writable, because torch warns about memory that it may not write to.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError as error:
            raise ModelFileError(f"{path} is missing") from error
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ModelFileError(f"{path} is empty") from error

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor, shared with the mapped file."""
        entry = self.entries[name]
        return memoryview(self._data)[entry.offset : entry.offset + entry.num_bytes]

    def _add(self, entry: TensorEntry) -> None:
        """Raises ValueError for a tensor that is not wholly in the file."""
        if entry.offset + entry.num_bytes > len(self._data):
            raise ValueError(f"tensor {entry.name} lies beyond the end of the file (truncated?)")
        self.entries[entry.name] = entry
