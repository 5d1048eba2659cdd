"""Rank 0's hold on the transport of another rank."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue

import torch

from kvtransfer.errors import TransferClosed, TransportUnavailable
from kvtransfer.transport.base import BlockPart, Ended, Transport
from kvtransfer.transport.block_runs import BlockRuns
from kvtransfer.transport.rank_messages import (
    POLL_WORD_SECONDS,
    MessagePipe,
    PipeEnded,
    pack_part,
    unpack_end,
)

# A rank that hangs is not waited for.
CLOSE_SECONDS = 1.0


class RemoteTransport(Transport):
    """Passes every call on to the ``TransportServer`` at the other end of ``pipe``.

    Whatever that refuses, and the end of its process, is told by the tickets. A thread of its own
    receives; it ends with the pipe.
    """

    def __init__(self, pipe: Connection, agent_name: str, choice: str) -> None:
        """``choice``: what the rank is to open. Raises TransportUnavailable where it cannot, or has
        ended."""
        self._pipe = MessagePipe(pipe)
        try:
            self._pipe.send("open", agent_name, choice)
            kind, *values = self._pipe.receive()
        except PipeEnded as error:
            raise TransportUnavailable(f"the rank of {agent_name} has ended") from error
        if kind == "unavailable":
            raise TransportUnavailable(values[0])
        self.name, metadata, num_blocks, block_bytes = values
        super().__init__(torch.empty((num_blocks, block_bytes), dtype=torch.uint8, device="meta"))
        self._agent_name = agent_name
        self._metadata = bytes.fromhex(metadata)
        self._tickets: dict[int, str] = {}
        self._num_tickets = 0
        self._last_word = 0.0
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        # None where the rank has ended.
        self._checksums: SimpleQueue[tuple[tuple[int, ...], ...] | None] = SimpleQueue()
        self._summing = threading.Lock()
        self._gone = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._receive, name="kv-rank", daemon=True).start()

    def metadata(self) -> bytes:
        return self._metadata

    def connect(self, peer: str, metadata: bytes, part: BlockPart) -> int:
        return self._begin("connect", peer, metadata.hex(), pack_part(part))

    def disconnect(self, peer: str) -> None:
        self._tickets = {ticket: name for ticket, name in self._tickets.items() if name != peer}
        self._tell("disconnect", peer)

    def post(self, peer: str, runs: BlockRuns) -> int:
        return self._begin("post", peer, runs.tolist())

    def poll(self) -> list[Ended]:
        now = time.monotonic()
        if now - self._last_word >= POLL_WORD_SECONDS:
            self._last_word = now
            self._tell("poll")
        # Asked first: what has not come by then never will.
        gone = self._gone.is_set()
        ended = []
        while not self._ended.empty():
            report = self._ended.get()
            # None: of a peer that was removed meanwhile.
            if self._tickets.pop(report.ticket, None) is not None:
                ended.append(report)
        if gone:
            error = TransferClosed(f"{self._agent_name} has ended")
            ended += [Ended(ticket, error) for ticket in self._tickets]
            self._tickets.clear()
        return ended

    def checksums(self, block_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Raises TransferClosed where the rank has ended."""
        with self._summing:
            self._tell("checksums", list(block_ids))
            if self._gone.is_set() or (sums := self._checksums.get()) is None:
                raise TransferClosed(f"{self._agent_name} has ended")
            return sums

    def close(self) -> None:
        self._tell("close")
        self._closed.wait(CLOSE_SECONDS)

    def _begin(self, kind: str, peer: str, *what: object) -> int:
        self._num_tickets += 1
        self._tickets[self._num_tickets] = peer
        self._tell(kind, self._num_tickets, peer, *what)
        return self._num_tickets

    def _tell(self, kind: str, *values: object) -> None:
        # That nobody listens any more is noticed where nobody answers.
        with suppress(PipeEnded):
            self._pipe.send(kind, *values)

    def _receive(self) -> None:
        """On the thread."""
        with suppress(PipeEnded):
            while True:
                kind, *values = self._pipe.receive()
                if kind == "ended":
                    self._ended.put(unpack_end(*values))
                elif kind == "checksums":
                    self._checksums.put(tuple(map(tuple, values[0])))
                else:
                    self._closed.set()
        self._gone.set()
        self._closed.set()
        self._checksums.put(None)
