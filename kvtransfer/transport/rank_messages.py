"""What rank 0 and the transport of another rank say to each other: lists, as JSON."""

import json
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from kvtransfer.errors import PeerError, PeerLost, PeerUnknown, PeerUnreachable
from kvtransfer.transport.base import BlockPart, Ended

# Seconds between two words of rank 0 that it polls; what the other does without one for so long.
POLL_WORD_SECONDS = 0.005
POLL_LINGER_SECONDS = 0.1

_ERRORS: dict[str, type[PeerError]] = {
    kind.__name__: kind for kind in (PeerLost, PeerUnknown, PeerUnreachable)
}


class PipeEnded(Exception):
    """Nobody is at the other end any more."""


class MessagePipe:
    """A pipe of messages ``[kind, ...]``. Any thread may send, one receives."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()

    def send(self, kind: str, *values: Any) -> None:
        """Raises PipeEnded."""
        message = json.dumps((kind, *values)).encode()
        try:
            with self._sending:
                self._pipe.send_bytes(message)
        except OSError as error:
            raise PipeEnded from error

    def receive(self) -> Any:
        """Waits for the next message. Raises PipeEnded after the last one."""
        try:
            return json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise PipeEnded from error

    def wait(self, seconds: float | None) -> bool:
        """Whether there is a message, or the end, within ``seconds``."""
        return self._pipe.poll(seconds)


def pack_part(part: BlockPart) -> tuple[int, int, int, int]:
    return part.remote_block_bytes, part.remote_offset, part.local_offset, part.num_bytes


def unpack_part(packed: Sequence[int]) -> BlockPart:
    return BlockPart(*packed)


def pack_end(end: Ended) -> tuple[int, str | None, str, bool]:
    kind = None if end.error is None else type(end.error).__name__
    return end.ticket, kind, str(end.error or ""), end.final


def unpack_end(ticket: int, kind: str | None, text: str, final: bool) -> Ended:
    return Ended(ticket, None if kind is None else _ERRORS.get(kind, PeerError)(text), final)
