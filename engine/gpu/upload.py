"""The way of weights from mapped files to a GPU, as fast as the disk gives them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_PIECE_BYTES = 64 << 20
# Each reads pages of its own: a disk wants many requests at a time, and a mapped page that is not
# in memory keeps its reader waiting.
_THREADS = 16
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Upload:
    """Threads copy a piece of a tensor into pinned memory while the piece before goes to the
    device; its tensors are there in the order of the current stream."""

    def __init__(self, device: torch.device, piece_bytes: int = _PIECE_BYTES) -> None:
        """On a CPU copies are simply made."""
        self._device = device
        pinned = device.type == "cuda"
        self._buffers = [
            torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)
        ]
        self._sent = [torch.cuda.Event() for _ in range(2)] if pinned else []
        self._turn = 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="upload")

    def close(self) -> None:
        """Waits for what is on its way."""
        self._threads.shutdown()
        for event in self._sent:
            event.synchronize()

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of ``tensor`` on the device. A row of it must fit a piece."""
        target = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        for source, destination in zip(self._pieces(tensor), self._pieces(target), strict=True):
            staged = self._next(source)
            parts = (np.array_split(_words(each), _THREADS) for each in (staged, source))
            list(self._threads.map(np.copyto, *parts))
            destination.copy_(staged, non_blocking=True)
            if self._sent:
                self._sent[self._turn].record()
        return target

    def _pieces(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Whole rows, along the first dimension."""
        row_bytes = max(tensor[0].numel() * tensor.itemsize, 1) if len(tensor) else 1
        yield from torch.split(tensor, self._buffers[0].numel() // row_bytes)

    def _next(self, source: torch.Tensor) -> torch.Tensor:
        """A place of the shape of ``source`` in the buffer whose turn it is."""
        self._turn = 1 - self._turn
        if self._sent:
            self._sent[self._turn].synchronize()
        buffer = self._buffers[self._turn][: source.numel() * source.itemsize]
        return buffer.view(source.dtype).view(source.shape)


def _words(tensor: torch.Tensor) -> NDArray[Any]:
    """The same memory for NumPy, whose copies keep to the thread that makes them."""
    return tensor.view(_WORDS[tensor.itemsize]).numpy()
