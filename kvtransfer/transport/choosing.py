"""Several transports over one pool, of which each peer is read by the first that can."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from baton.v1 import kv_transfer_pb2
from kvtransfer.errors import PeerUnreachable, TransferError
from kvtransfer.transport.base import BlockPart, Ended, Transport
from kvtransfer.transport.block_runs import BlockRuns


@dataclass(slots=True)
class _Peer:
    """``untried`` ways are left where ``way`` fails; ``refusals`` say why others did."""

    offers: dict[str, bytes]
    part: BlockPart
    untried: list[Transport]
    way: Transport | None = None
    refusals: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ticket:
    """What a way's own ticket is here; ``connects`` where its end makes the peer readable."""

    number: int
    peer: str
    connects: bool


class ChoosingTransport(Transport):
    """Tries ``ways`` in their order, those that the peer offers too, until a byte has moved.

    So what is chosen works, whatever the two workers know of each other's host, and each pair of
    ranks chooses by itself. Neither side tells the other: only the one that reads needs to know.
    """

    def __init__(self, ways: Sequence[Transport]) -> None:
        super().__init__(ways[0].pool)
        self.name = ",".join(way.name for way in ways)
        self._ways = tuple(ways)
        self._peers: dict[str, _Peer] = {}
        # By the way's name and its own ticket.
        self._tickets: dict[tuple[str, int], _Ticket] = {}
        self._num_tickets = 0

    def metadata(self) -> bytes:
        offers = [
            kv_transfer_pb2.TransportOffer(transport=way.name, metadata=way.metadata())
            for way in self._ways
        ]
        return kv_transfer_pb2.TransportOffers(offers=offers).SerializeToString(deterministic=True)

    def connect(self, peer: str, metadata: bytes, part: BlockPart) -> int:
        try:
            message = kv_transfer_pb2.TransportOffers.FromString(metadata)
        except DecodeError as error:
            raise PeerUnreachable(f"{peer} offers nothing that can be read") from error
        offers = {offer.transport: offer.metadata for offer in message.offers}
        self._num_tickets += 1
        number = self._num_tickets
        known = _Peer(offers, part, list(self._ways))
        self._try_next(peer, known, number)
        self._peers[peer] = known
        return number

    def disconnect(self, peer: str) -> None:
        known = self._peers.pop(peer)
        self._tickets = {
            key: ticket for key, ticket in self._tickets.items() if ticket.peer != peer
        }
        if known.way is not None:
            known.way.disconnect(peer)

    def post(self, peer: str, runs: BlockRuns) -> int:
        self._num_tickets += 1
        way = self._way_to(peer)
        ticket = _Ticket(self._num_tickets, peer, connects=False)
        self._tickets[way.name, way.post(peer, runs)] = ticket
        return ticket.number

    def poll(self) -> list[Ended]:
        ended = []
        for way in self._ways:
            for report in way.poll():
                # None: of a peer that was removed meanwhile.
                ticket = self._tickets.pop((way.name, report.ticket), None)
                if ticket is not None and (end := self._end_of(ticket, report)):
                    ended.append(end)
        return ended

    def transport_of(self, peer: str) -> str:
        return self._way_to(peer).name

    def close(self) -> None:
        for way in self._ways:
            way.close()
        self._peers.clear()
        self._tickets.clear()

    def _way_to(self, peer: str) -> Transport:
        way = self._peers[peer].way
        assert way is not None, f"{peer} was not reached"
        return way

    def _end_of(self, ticket: _Ticket, report: Ended) -> Ended | None:
        """None where another way is tried instead."""
        if not ticket.connects or report.error is None:
            return Ended(ticket.number, report.error, report.final)
        known = self._peers[ticket.peer]
        assert known.way is not None, f"{ticket.peer} has a ticket and no way"
        known.refusals.append(f"{known.way.name}: {report.error}")
        known.way.disconnect(ticket.peer)
        known.way = None
        try:
            self._try_next(ticket.peer, known, ticket.number)
        except TransferError as error:
            return Ended(ticket.number, error)
        return None

    def _try_next(self, peer: str, known: _Peer, number: int) -> None:
        """Begins to connect by the next way. Raises PeerUnreachable where none is left."""
        while known.untried:
            way = known.untried.pop(0)
            if way.name not in known.offers:
                known.refusals.append(f"{way.name}: not offered there")
                continue
            try:
                ticket = way.connect(peer, known.offers[way.name], known.part)
            except TransferError as error:
                known.refusals.append(f"{way.name}: {error}")
                continue
            known.way = way
            self._tickets[way.name, ticket] = _Ticket(number, peer, connects=True)
            return
        raise PeerUnreachable(f"no transport reaches {peer}: {'; '.join(known.refusals)}")
