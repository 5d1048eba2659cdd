"""Words on their way from the host to the device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 4
_DTYPES = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
}


def send(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Copies of float32, int32 and int64 arrays, perhaps still on their way: all in one piece.

    Each begins where 16 bytes do: Triton compiles anew for addresses that do not.
    """
    words = [np.ascontiguousarray(each).reshape(-1).view(np.int32) for each in arrays]
    rooms = [-(-each.size // _ALIGNMENT) * _ALIGNMENT for each in words]
    packed = torch.empty(sum(rooms), dtype=torch.int32, pin_memory=device.type == "cuda")
    for each, room in zip(words, torch.split(packed, rooms), strict=True):
        room.numpy()[: each.size] = each
    moved = torch.split(packed.to(device, non_blocking=True), rooms)
    return [
        room[: own.size].view(_DTYPES[each.dtype]).view(each.shape)
        for each, own, room in zip(arrays, words, moved, strict=True)
    ]


class Staging:
    """Two pinned buffers that take turns, so that the next words are written while the last copy
    may still be under way."""

    def __init__(self, target: torch.Tensor) -> None:
        """``target``: int32, on a GPU; on a CPU copies are simply made."""
        self._target = target
        self._staged = [torch.zeros(len(target), dtype=torch.int32) for _ in range(2)]
        self._copied: list[torch.cuda.Event] = []
        if target.device.type == "cuda":
            self._staged = [each.pin_memory() for each in self._staged]
            self._copied = [torch.cuda.Event() for _ in range(2)]
        self._turn = 0

    def next(self) -> NDArray[np.int32]:
        """Where to write: what ``send`` sends, and what this returned stays until the call after
        the next."""
        self._turn = 1 - self._turn
        if self._copied:
            self._copied[self._turn].synchronize()
        staged: NDArray[np.int32] = self._staged[self._turn].numpy()
        return staged

    def send(self, end: int) -> None:
        """Copies the first ``end`` words, in the order of the current stream."""
        self._target[:end].copy_(self._staged[self._turn][:end], non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
