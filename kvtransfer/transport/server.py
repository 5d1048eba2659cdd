"""The transport of a rank, worked by rank 0 from its own process."""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from kvtransfer.errors import PeerUnknown, TransferError, TransportUnavailable
from kvtransfer.poll_pace import PollPace
from kvtransfer.transport.base import Ended, Transport
from kvtransfer.transport.rank_messages import (
    POLL_LINGER_SECONDS,
    MessagePipe,
    PipeEnded,
    pack_end,
    unpack_part,
)


def serve_transport(pipe: Connection, open_transport: Callable[[str, Any], Transport]) -> None:
    """Does what the ``RemoteTransport`` at the other end says, until it is gone.

    Belongs on a thread of its own: what the rank computes holds up no read. ``open_transport``
    gets the name that the transport is to have among its peers, and the choice of the other end.
    """
    messages = MessagePipe(pipe)
    try:
        _, agent_name, choice = messages.receive()
        try:
            transport = open_transport(agent_name, choice)
        except TransportUnavailable as error:
            messages.send("unavailable", str(error))
            return
        messages.send(
            *("opened", transport.name, transport.metadata().hex()),
            *(transport.num_blocks, transport.block_bytes),
        )
        TransportServer(messages, transport).run()
    except PipeEnded:
        # Rank 0 has ended, and this process does too.
        return


class TransportServer:
    """Posts, polls and reports; blocked, and free, while rank 0 neither reads nor is read."""

    def __init__(self, messages: MessagePipe, transport: Transport) -> None:
        self._messages = messages
        self._transport = transport
        # Of each peer that was not refused, the ticket of its connection.
        self._peers: dict[str, int] = {}
        # Rank 0's own numbers of the transport's tickets.
        self._numbers: dict[int, int] = {}
        self._pace = PollPace()
        self._poll_until = 0.0

    def run(self) -> None:
        """Raises PipeEnded when rank 0 is gone."""
        while True:
            polls = bool(self._numbers) or time.monotonic() < self._poll_until
            if self._messages.wait(self._pace.next_pause() if polls else None):
                kind, *values = self._messages.receive()
                if kind == "close":
                    break
                self._do(kind, values)
            if polls:
                self._report(self._transport.poll())
        self._transport.close()
        self._messages.send("closed")
        # Nothing may be said any more; who says it after all is not heard.
        while True:
            self._messages.receive()

    def _do(self, kind: str, values: list[Any]) -> None:
        self._poll_until = time.monotonic() + POLL_LINGER_SECONDS
        if kind == "poll":
            return
        self._pace.note_event()
        if kind == "connect":
            self._connect(*values)
        elif kind == "disconnect":
            self._disconnect(*values)
        elif kind == "post":
            self._post(*values)
        else:
            self._messages.send("checksums", self._transport.checksums(values[0]))

    def _connect(self, number: int, peer: str, metadata: str, part: list[int]) -> None:
        try:
            ticket = self._transport.connect(peer, bytes.fromhex(metadata), unpack_part(part))
        except TransferError as error:
            self._tell_end(number, error)
            return
        self._peers[peer] = ticket
        self._numbers[ticket] = number

    def _disconnect(self, peer: str) -> None:
        """Nothing for a peer that was refused."""
        if peer in self._peers:
            self._numbers.pop(self._peers.pop(peer), None)
            self._transport.disconnect(peer)

    def _post(self, number: int, peer: str, runs: list[list[int]]) -> None:
        if peer not in self._peers:
            self._tell_end(number, PeerUnknown(f"{peer} is not connected"))
            return
        self._numbers[self._transport.post(peer, np.array(runs, dtype=np.int64))] = number

    def _report(self, ended: list[Ended]) -> None:
        for end in ended:
            self._pace.note_event()
            # None: of a peer that was removed meanwhile.
            if (number := self._numbers.pop(end.ticket, None)) is not None:
                self._tell_end(number, end.error, final=end.final)

    def _tell_end(self, number: int, error: TransferError | None, *, final: bool = True) -> None:
        self._messages.send("ended", *pack_end(Ended(number, error, final)))
