"""Words on their way from the host to a buffer on the device."""

import numpy as np
import torch
from numpy.typing import NDArray


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
