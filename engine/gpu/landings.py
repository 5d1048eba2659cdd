"""The way of what was drawn back to the host, without a wait before it is asked for."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch import DeviceTime

# Two steps may be under way; a third buffer is never one that is still read.
_NUM_BUFFERS = 3
_PAUSE_SECONDS = 20e-6


@dataclass(frozen=True, slots=True)
class Landed:
    """Words of a step, flat, valid until the third ``send`` after theirs; and what the step took
    the device where that is known."""

    words: NDArray[np.int32]
    device_time: DeviceTime | None


class Landings:
    """Copies into pinned buffers that take turns."""

    def __init__(self, usual_words: int) -> None:
        """``usual_words``: more than so many are landed too, after a wait for a larger buffer."""
        self._buffers = [
            torch.empty(usual_words, dtype=torch.int32, pin_memory=True)
            for _ in range(_NUM_BUFFERS)
        ]
        self._turn = 0
        self._last: torch.cuda.Event | None = None

    def send(
        self,
        words: torch.Tensor,
        check: Callable[[], None] | None = None,
        began: torch.cuda.Event | None = None,
    ) -> Callable[[], Landed]:
        """Starts the copy of int32 words; what it returns waits for them, and must be called before
        the second ``send`` after this one. While it waits it calls ``check``, which may raise.
        ``began``, with its time, says when the device began with the step."""
        self._turn = (self._turn + 1) % _NUM_BUFFERS
        if self._buffers[self._turn].numel() < words.numel():
            larger = torch.empty(words.numel(), dtype=torch.int32, pin_memory=True)
            self._buffers[self._turn] = larger
        landed = self._buffers[self._turn][: words.numel()]
        landed.copy_(words.flatten(), non_blocking=True)
        arrived = torch.cuda.Event(enable_timing=True)
        arrived.record()
        last, self._last = self._last, arrived

        def wait() -> Landed:
            while check is not None and not arrived.query():
                check()
                time.sleep(_PAUSE_SECONDS)
            arrived.synchronize()
            device_time = None if began is None else _device_time(last, began, arrived)
            return Landed(landed.numpy(), device_time)

        return wait


def _device_time(
    last: torch.cuda.Event | None, began: torch.cuda.Event, arrived: torch.cuda.Event
) -> DeviceTime:
    """Of events that are over."""
    idle = 0.0 if last is None else last.elapsed_time(began)
    return DeviceTime(began.elapsed_time(arrived) / 1e3, idle / 1e3)
