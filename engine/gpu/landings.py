"""The way of drawn tokens back to the host, without a wait before they are asked for."""

import time
from collections.abc import Callable

import torch

# Two steps may be under way; a third buffer is never one that is still read.
_NUM_BUFFERS = 3
_PAUSE_SECONDS = 20e-6


class Landings:
    """Copies into pinned buffers that take turns."""

    def __init__(self, max_tokens: int) -> None:
        self._buffers = [torch.empty(max_tokens, dtype=torch.int32) for _ in range(_NUM_BUFFERS)]
        self._turn = 0

    def send(
        self, token_ids: torch.Tensor, check: Callable[[], None] | None = None
    ) -> Callable[[], list[int]]:
        """Starts the copy of (R,) ids; what it returns waits for them, and must be called before
        the second ``send`` after this one. While it waits it calls ``check``, which may raise."""
        self._turn = (self._turn + 1) % _NUM_BUFFERS
        if self._buffers[self._turn].numel() < token_ids.numel():
            self._buffers[self._turn] = torch.empty(token_ids.numel(), dtype=torch.int32)
        if not self._buffers[self._turn].is_pinned():
            self._buffers[self._turn] = self._buffers[self._turn].pin_memory()
        landed = self._buffers[self._turn][: token_ids.numel()]
        landed.copy_(token_ids, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()

        def wait() -> list[int]:
            while check is not None and not arrived.query():
                check()
                time.sleep(_PAUSE_SECONDS)
            arrived.synchronize()
            ids: list[int] = landed.tolist()
            return ids

        return wait
