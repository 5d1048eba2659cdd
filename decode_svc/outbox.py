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

    A pending step goes before everything else that is pending, and that before the next step:
    what else is said about an attempt (Finished) is the last word about it, so its rows are in the
    step. Event loop only.
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
            while pending := self._take():
                for response in pending:
                    await self._write(write, response)
            self._filled.clear()

    async def _write(self, write: Write, response: decode_pb2.SessionResponse) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await write(response)
        except TimeoutError:
            text = f"the gateway took nothing for {self._stall_seconds:g} s"
            raise Unavailable(text, reason="SESSION_STALLED") from None

    def _take(self) -> list[decode_pb2.SessionResponse]:
        pending = [] if self._step is None else [decode_pb2.SessionResponse(step=self._step)]
        pending += self._others
        self._step = None
        self._others.clear()
        return pending
