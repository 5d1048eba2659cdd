"""The way of drawn tokens back to the host, without a wait before they are asked for."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.batch import DeviceTime

# Two steps may be under way; a third buffer is never one that is still read.
_NUM_BUFFERS = 3
_PAUSE_SECONDS = 20e-6


@dataclass(frozen=True, slots=True)
class Landed:
    """Tokens of a step, and what it took the device where that is known."""

    token_ids: list[int]
    device_time: DeviceTime | None


class Landings:
    """Copies into pinned buffers that take turns."""

    def __init__(self, max_tokens: int) -> None:
        self._buffers = [torch.empty(max_tokens, dtype=torch.int32) for _ in range(_NUM_BUFFERS)]
        self._turn = 0
        self._last: torch.cuda.Event | None = None

    def send(
        self,
        token_ids: torch.Tensor,
        check: Callable[[], None] | None = None,
        began: torch.cuda.Event | None = None,
    ) -> Callable[[], Landed]:
        """Starts the copy of (R,) ids; what it returns waits for them, and must be called before
        the second ``send`` after this one. While it waits it calls ``check``, which may raise.
        ``began``, with its time, says when the device began with the step."""
        self._turn = (self._turn + 1) % _NUM_BUFFERS
        if self._buffers[self._turn].numel() < token_ids.numel():
            self._buffers[self._turn] = torch.empty(token_ids.numel(), dtype=torch.int32)
        if not self._buffers[self._turn].is_pinned():
            self._buffers[self._turn] = self._buffers[self._turn].pin_memory()
        landed = self._buffers[self._turn][: token_ids.numel()]
        landed.copy_(token_ids, non_blocking=True)
        arrived = torch.cuda.Event(enable_timing=True)
        arrived.record()
        last, self._last = self._last, arrived

        def wait() -> Landed:
            while check is not None and not arrived.query():
                check()
                time.sleep(_PAUSE_SECONDS)
            arrived.synchronize()
            device_time = None if began is None else _device_time(last, began, arrived)
            return Landed(landed.tolist(), device_time)

        return wait


def _device_time(
    last: torch.cuda.Event | None, began: torch.cuda.Event, arrived: torch.cuda.Event
) -> DeviceTime:
    """Of events that are over."""
    idle = 0.0 if last is None else last.elapsed_time(began)
    return DeviceTime(began.elapsed_time(arrived) / 1e3, idle / 1e3)
