"""Memory of other workers that is read as if it were our own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Pieces = npt.NDArray[np.int64]
"""Rows of source address, destination address, bytes: at least one, and none overlap."""

Done = Callable[[], bool]
"""Whether it is over; does not wait."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """``address`` is where the memory is read here; ``base`` is what to unmap, if anything."""

    address: int
    base: int | None = None


class PeerMemory(ABC):
    """Exports memory of ours, maps that of peers, and copies between them. One thread's."""

    @abstractmethod
    def export(self, memory: torch.Tensor) -> bytes:
        """What ``map`` needs elsewhere, always as many bytes. Raises TransportUnavailable."""

    @abstractmethod
    def map(self, exported: bytes) -> Mapping:
        """Raises PeerUnreachable."""

    @abstractmethod
    def unmap(self, mapping: Mapping) -> None:
        """Nothing may be reading it any more."""

    @abstractmethod
    def copy(self, pieces: Pieces) -> None:
        """Begins to. Copies end in the order of their beginning. Raises PeerLost, perhaps with some
        begun."""

    @abstractmethod
    def mark(self) -> Done:
        """Whether all copies that have begun so far are over."""

    @abstractmethod
    def finish(self) -> None:
        """Waits until all copies are over."""


def equal_pieces(pieces: Pieces) -> tuple[Pieces, int]:
    """The same bytes in pieces of one size, which is given too: their greatest common divisor.

    Reads are of whole blocks, or of the same part of each, so that the pieces do not get small.
    """
    size = int(np.gcd.reduce(pieces[:, 2]))
    if (pieces[:, 2] == size).all():
        return pieces, size
    counts = pieces[:, 2] // size
    equal = np.repeat(pieces, counts, axis=0)
    steps = np.arange(len(equal)) - np.repeat(np.cumsum(counts) - counts, counts)
    equal[:, :2] += steps[:, None] * size
    equal[:, 2] = size
    return equal, size
