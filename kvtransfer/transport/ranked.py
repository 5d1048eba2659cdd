"""The transports of all ranks of a worker as one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvtransfer.checksums import block_checksums
from kvtransfer.errors import PeerUnreachable, TransferError
from kvtransfer.transport.base import BlockPart, Ended, Transport
from kvtransfer.transport.block_runs import BlockRuns


@dataclass(frozen=True, slots=True)
class RemoteRank:
    """What a rank of a peer said of its pool: ``metadata`` is that of its transport."""

    metadata: bytes
    block_bytes: int


@dataclass(frozen=True, slots=True)
class _Link:
    """A rank here that reads from a rank of a peer, which it knows as ``name``."""

    rank: int
    name: str


@dataclass(slots=True)
class _Ticket:
    """What was asked of every link of ``peer``: over when ``num_open`` is 0 (protocol 4.3)."""

    peer: str
    num_open: int
    error: TransferError | None = None
    final: bool = True


class RankedTransport:
    """Every rank reads what it holds of a block from the ranks of a peer that hold it.

    On both sides the ranks in order divide the KV heads in order, so that their blocks laid side by
    side are the same bytes whatever their number. ``pool`` is that of rank 0, and so are the block
    ids, which mean the same on all ranks of a worker; a block has as many bytes as its parts
    together. Threads: as for ``Transport``.
    """

    def __init__(self, ranks: Sequence[Transport]) -> None:
        self.name = ranks[0].name
        self.pool = ranks[0].pool
        self.num_blocks = ranks[0].num_blocks
        self.block_bytes = sum(rank.block_bytes for rank in ranks)
        counts = [rank.num_blocks for rank in ranks]
        assert len(set(counts)) == 1, f"the ranks have pools of {counts} blocks"
        self._ranks = tuple(ranks)
        self._links: dict[str, tuple[_Link, ...]] = {}
        self._tickets: dict[int, _Ticket] = {}
        # By rank and its own ticket.
        self._parts: dict[tuple[int, int], int] = {}
        self._num_tickets = 0

    def metadata(self) -> tuple[bytes, ...]:
        """What a peer needs of each rank; the same for the transport's life."""
        return tuple(rank.metadata() for rank in self._ranks)

    def connect(self, peer: str, ranks: Sequence[RemoteRank]) -> int:
        """Begins to make ``peer`` readable; the ticket ends once a byte of each rank has moved.

        Raises PeerError where nothing can be had from ``ranks``. The peer must be unknown.
        """
        theirs = sum(rank.block_bytes for rank in ranks)
        if theirs != self.block_bytes:
            raise PeerUnreachable(
                f"{peer} has blocks of {theirs} bytes, here they have {self.block_bytes}"
            )
        links: list[_Link] = []
        tickets: list[tuple[int, int]] = []
        try:
            for here, there, part in self._parts_from(ranks):
                link = _Link(here, f"{peer}-{there}")
                metadata = ranks[there].metadata
                tickets.append((here, self._ranks[here].connect(link.name, metadata, part)))
                links.append(link)
        except TransferError:
            for link in links:
                self._ranks[link.rank].disconnect(link.name)
            raise
        self._links[peer] = tuple(links)
        return self._open(peer, tickets)

    def disconnect(self, peer: str) -> None:
        """Forgets ``peer``. All of its tickets must have ended."""
        for link in self._links.pop(peer):
            self._ranks[link.rank].disconnect(link.name)
        # Of a connection that was given up before its byte had moved.
        forgotten = {number for number, ticket in self._tickets.items() if ticket.peer == peer}
        self._parts = {
            part: number for part, number in self._parts.items() if number not in forgotten
        }
        for number in forgotten:
            del self._tickets[number]

    def post(self, peer: str, runs: BlockRuns) -> int:
        """Begins to read ``runs``, which are not empty, and gives the ticket."""
        links = self._links[peer]
        return self._open(
            peer, [(link.rank, self._ranks[link.rank].post(link.name, runs)) for link in links]
        )

    def poll(self) -> list[Ended]:
        """Makes progress in both directions, and reports every ticket that ended since."""
        ended = []
        for index, rank in enumerate(self._ranks):
            for report in rank.poll():
                # None: of a peer that was removed meanwhile.
                number = self._parts.pop((index, report.ticket), None)
                if number is not None and (whole := self._take(number, report)):
                    ended.append(whole)
        return ended

    def transport_of(self, peer: str) -> str:
        """The name of what moves the bytes of ``peer`` to rank 0."""
        first = self._links[peer][0]
        return self._ranks[first.rank].transport_of(first.name)

    def checksums(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        """One of each block, over its heads on every rank. Any thread."""
        return block_checksums([rank.checksums(block_ids) for rank in self._ranks])

    def close(self) -> None:
        """Lets go of the pools; nothing is written to them afterwards. Idempotent."""
        for rank in self._ranks:
            rank.close()
        self._links.clear()
        self._tickets.clear()
        self._parts.clear()

    def _parts_from(self, ranks: Sequence[RemoteRank]) -> Iterator[tuple[int, int, BlockPart]]:
        """Which rank here takes what from which of ``ranks``: where their bytes overlap."""
        theirs = [rank.block_bytes for rank in ranks]
        for here, (begin, end) in enumerate(_spans([rank.block_bytes for rank in self._ranks])):
            for there, (their_begin, their_end) in enumerate(_spans(theirs)):
                first, last = max(begin, their_begin), min(end, their_end)
                if first < last:
                    size = their_end - their_begin
                    part = BlockPart(size, first - their_begin, first - begin, last - first)
                    yield here, there, part

    def _open(self, peer: str, tickets: Sequence[tuple[int, int]]) -> int:
        self._num_tickets += 1
        self._tickets[self._num_tickets] = _Ticket(peer, len(tickets))
        for part in tickets:
            self._parts[part] = self._num_tickets
        return self._num_tickets

    def _take(self, number: int, report: Ended) -> Ended | None:
        """The whole ticket's end, where this was the last part of it."""
        ticket = self._tickets[number]
        ticket.num_open -= 1
        ticket.error = ticket.error or report.error
        ticket.final = ticket.final and report.final
        if ticket.num_open:
            return None
        del self._tickets[number]
        return Ended(number, ticket.error, ticket.final)


def _spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Where pieces of these sizes begin and end, laid side by side."""
    ends = list(accumulate(sizes))
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
