"""The transports of all ranks of a worker as one."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from kvtransfer.errors import TransferError
from kvtransfer.transport.base import BlockRun, Ended, Transport


@dataclass(slots=True)
class _Ticket:
    """What every rank was asked to do: over when none is left in ``open_ranks`` (protocol 4.3)."""

    peer: str
    open_ranks: set[int]
    error: TransferError | None = None
    final: bool = True


class RankedTransport(Transport):
    """Every rank reads its part of a block from the rank of the same number.

    ``pool`` is that of rank 0, and so are the block ids, which mean the same on all; a block has
    as many bytes as its parts have together.
    """

    def __init__(self, ranks: Sequence[Transport]) -> None:
        super().__init__(ranks[0].pool)
        self.name = ranks[0].name
        self.block_bytes = sum(rank.block_bytes for rank in ranks)
        counts = [rank.num_blocks for rank in ranks]
        assert len(set(counts)) == 1, f"the ranks have pools of {counts} blocks"
        self._ranks = tuple(ranks)
        self._tickets: dict[int, _Ticket] = {}
        # By rank and its own ticket.
        self._parts: dict[tuple[int, int], int] = {}
        self._num_tickets = 0

    def metadata(self) -> tuple[bytes, ...]:
        return tuple(each for rank in self._ranks for each in rank.metadata())

    def connect(self, peer: str, metadata: Sequence[bytes]) -> int:
        pairs = zip(self._ranks, metadata, strict=True)
        # Rank 0 comes first, and what it refuses has begun nowhere; others tell by their tickets.
        return self._open(peer, [rank.connect(peer, (each,)) for rank, each in pairs])

    def disconnect(self, peer: str) -> None:
        for rank in self._ranks:
            rank.disconnect(peer)
        # Of a connection that was given up before its byte had moved.
        forgotten = {number for number, ticket in self._tickets.items() if ticket.peer == peer}
        self._parts = {
            part: number for part, number in self._parts.items() if number not in forgotten
        }
        for number in forgotten:
            del self._tickets[number]

    def post(self, peer: str, runs: Sequence[BlockRun]) -> int:
        return self._open(peer, [rank.post(peer, runs) for rank in self._ranks])

    def poll(self) -> list[Ended]:
        ended = []
        for index, rank in enumerate(self._ranks):
            for report in rank.poll():
                # None: of a peer that was removed meanwhile.
                number = self._parts.pop((index, report.ticket), None)
                if number is not None and (whole := self._take(number, index, report)):
                    ended.append(whole)
        return ended

    def checksums(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        of_ranks = [rank.checksums(block_ids) for rank in self._ranks]
        form = struct.Struct(f"<{len(of_ranks)}I")
        return tuple(zlib.crc32(form.pack(*parts)) for parts in zip(*of_ranks, strict=True))

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._tickets.clear()
        self._parts.clear()

    def _open(self, peer: str, parts: Sequence[int]) -> int:
        self._num_tickets += 1
        self._tickets[self._num_tickets] = _Ticket(peer, set(range(len(parts))))
        for index, part in enumerate(parts):
            self._parts[index, part] = self._num_tickets
        return self._num_tickets

    def _take(self, number: int, rank: int, report: Ended) -> Ended | None:
        """The whole ticket's end, where this was the last part of it."""
        ticket = self._tickets[number]
        ticket.open_ranks.remove(rank)
        ticket.error = ticket.error or report.error
        ticket.final = ticket.final and report.final
        if ticket.open_ranks:
            return None
        del self._tickets[number]
        return Ended(number, ticket.error, ticket.final)
