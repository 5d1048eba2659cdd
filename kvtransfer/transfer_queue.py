"""The reads under way on one transport, and whose turn it is."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from kvtransfer.block_read import BlockRead, cancelled
from kvtransfer.errors import PeerLost, PeerUnknown, PeerUnreachable, TransferError
from kvtransfer.transport.base import Ended
from kvtransfer.transport.block_runs import count_blocks
from kvtransfer.transport.ranked import RankedTransport, RemoteRank


@dataclass(slots=True)
class _Peer:
    connected: "Future[None]"
    connect_ticket: int
    removed: "Future[None] | None" = None


class TransferQueue:
    """Posts pieces of reads in turn and completes them; single-threaded.

    A peer is removed only after its reads have ended: with one removed earlier, NIXL goes on
    writing what was in flight and no longer says when that is over.
    """

    def __init__(
        self,
        transport: RankedTransport,
        *,
        max_blocks_in_flight: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._max_blocks_in_flight = max_blocks_in_flight
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        # In order of their beginning, as a dict keeps it.
        self._reads: dict[BlockRead, None] = {}
        self._turns: deque[BlockRead] = deque()
        # By ticket, a read and how many of its blocks.
        self._pieces: dict[int, tuple[BlockRead, int]] = {}
        self.num_blocks_in_flight = 0
        # By the name of the transport that moved them.
        self.blocks_read = dict.fromkeys(transport.name.split(","), 0)

    @property
    def has_work(self) -> bool:
        """Whether polling can change anything here."""
        if self._pieces or self._turns:
            return True
        return any(not peer.connected.done() for peer in tuple(self._peers.values()))

    def oldest_failure(self) -> float | None:
        """When the first of the reads that failed without ending failed, or None."""
        times = [read.failed_at for read in tuple(self._reads) if read.failed_at is not None]
        return min(times, default=None)

    def connect(self, peer: str, ranks: Sequence[RemoteRank], connected: "Future[None]") -> None:
        """Resolves ``connected`` once a byte has moved; fails it with PeerError."""
        if peer in self._peers:
            connected.set_exception(PeerUnreachable(f"{peer} is connected, or still being removed"))
            return
        try:
            ticket = self._transport.connect(peer, ranks)
        except TransferError as error:
            connected.set_exception(error)
            return
        self._peers[peer] = _Peer(connected, ticket)

    def disconnect(self, peer: str, removed: "Future[None]") -> None:
        """Gives up the peer's reads; resolves ``removed`` when it is forgotten."""
        known = self._peers.get(peer)
        if known is None:
            removed.set_result(None)
        elif known.removed is not None:
            known.removed.add_done_callback(lambda _: removed.set_result(None))
        else:
            known.removed = removed
            for read in [read for read in self._reads if read.peer == peer]:
                self._fail(read, PeerLost(f"{peer} is being removed"))
            self._remove_if_quiet(peer)

    def begin(self, read: BlockRead) -> None:
        """Takes on a read."""
        known = self._peers.get(read.peer)
        if known is None or known.removed is not None:
            read.fail(PeerUnknown(f"{read.peer} is not connected"), self._clock())
            return
        self._reads[read] = None
        read.transport = self._transport.transport_of(read.peer)
        if read.has_unposted:
            self._turns.append(read)
        else:
            read.settle()
            self._forget_if_ended(read)

    def give_up(self, read: BlockRead) -> None:
        """Its owner does not want it any more; nothing happens to a read that is done."""
        if read in self._reads:
            self._fail(read, cancelled(read))

    def step(self) -> bool:
        """Posts at most one piece, polls, and says whether anything happened."""
        posted = self._post_one()
        ended = self._transport.poll()
        for report in ended:
            self._on_ended(report)
        return posted or bool(ended)

    def close(self, error: TransferError) -> None:
        """Fails everything and closes the transport; then nothing is in flight any more.

        Raises what closing does: reads that are in flight then never end.
        """
        for read in tuple(self._reads):
            read.fail(error, self._clock())
        try:
            self._transport.close()
            for read in tuple(self._reads):
                read.abandon(error, self._clock())
        finally:
            self._let_go(error)

    def _let_go(self, error: TransferError) -> None:
        for peer in self._peers.values():
            if not peer.connected.done():
                peer.connected.set_exception(error)
            if peer.removed is not None:
                peer.removed.set_result(None)
        self._reads.clear()
        self._peers.clear()

    def _post_one(self) -> bool:
        while self._turns and self.num_blocks_in_flight < self._max_blocks_in_flight:
            read = self._turns.popleft()
            if not read.has_unposted:
                continue
            piece = read.next_piece()
            num_blocks = count_blocks(piece)
            self._pieces[self._transport.post(read.peer, piece)] = (read, num_blocks)
            self.num_blocks_in_flight += num_blocks
            if read.has_unposted:
                self._turns.append(read)
            return True
        return False

    def _on_ended(self, report: Ended) -> None:
        if report.ticket in self._pieces:
            self._on_piece_ended(report, *self._pieces.pop(report.ticket))
            return
        for name, peer in self._peers.items():
            if peer.connect_ticket == report.ticket:
                self._on_connect_ended(name, peer, report)
                return

    def _on_piece_ended(self, report: Ended, read: BlockRead, num_blocks: int) -> None:
        self.num_blocks_in_flight -= num_blocks
        if report.error is None:
            self.blocks_read[read.transport] += num_blocks
        else:
            self._fail(read, report.error)
        if report.final:
            read.piece_ended()
            self._forget_if_ended(read)

    def _on_connect_ended(self, name: str, peer: _Peer, report: Ended) -> None:
        if report.error is None:
            peer.connected.set_result(None)
            return
        self._transport.disconnect(name)
        del self._peers[name]
        peer.connected.set_exception(report.error)

    def _fail(self, read: BlockRead, error: TransferError) -> None:
        read.fail(error, self._clock())
        self._forget_if_ended(read)

    def _forget_if_ended(self, read: BlockRead) -> None:
        if not read.ended.done() or read not in self._reads:
            return
        del self._reads[read]
        self._remove_if_quiet(read.peer)

    def _remove_if_quiet(self, name: str) -> None:
        peer = self._peers.get(name)
        if peer is None or peer.removed is None:
            return
        if any(read.peer == name for read in self._reads):
            return
        self._transport.disconnect(name)
        del self._peers[name]
        if not peer.connected.done():
            peer.connected.set_exception(PeerLost(f"{name} was removed before it was reachable"))
        peer.removed.set_result(None)
