"""What waits to be written to one gateway (protocol 2.3)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from baton.v1 import decode_pb2
from chassis.errors import Unavailable
from decode_svc.outputs import merge

STALL_SECONDS = 5.0

Write = Callable[[decode_pb2.SessionResponse], Awaitable[None]]


class Outbox:
    """One write is in flight; steps that come meanwhile merge into one pending message.

    A pending step goes before everything else that is pending: what else is said about an attempt
    (Finished) is the last word about it, so its rows are in the step. Event loop only.
    """

    def __init__(self, stall_seconds: float = STALL_SECONDS) -> None:
        self._stall_seconds = stall_seconds
        self._step: decode_pb2.StepOutputs | None = None
        self._others: deque[decode_pb2.SessionResponse] = deque()
        self._filled = asyncio.Event()

    def put_step(self, step: decode_pb2.StepOutputs) -> None:
        """Queues the rows of a step; the message is the outbox's from now on."""
        if self._step is None:
            self._step = step
        else:
            merge(self._step, step)
        self._filled.set()

    def put(self, response: decode_pb2.SessionResponse) -> None:
        """Queues anything but a step."""
        self._others.append(response)
        self._filled.set()

    async def drain(self, write: Write) -> None:
        """Writes for ever. Raises Unavailable when a write takes longer than the stall limit."""
        while True:
            await self._filled.wait()
            while (response := self._take()) is not None:
                try:
                    async with asyncio.timeout(self._stall_seconds):
                        await write(response)
                except TimeoutError:
                    text = f"the gateway took nothing for {self._stall_seconds:g} s"
                    raise Unavailable(text, reason="SESSION_STALLED") from None
            self._filled.clear()

    def _take(self) -> decode_pb2.SessionResponse | None:
        if self._step is not None:
            step, self._step = self._step, None
            return decode_pb2.SessionResponse(step=step)
        return self._others.popleft() if self._others else None
