"""A transport whose reads end when, and how, the test says."""

from dataclasses import dataclass

import torch

from kvtransfer.errors import PeerLost
from kvtransfer.transport.base import BlockPart, Ended
from kvtransfer.transport.block_runs import BlockRuns, each_block
from kvtransfer.transport.local import LocalFabric, LocalTransport


@dataclass(frozen=True, slots=True, eq=False)
class Posted:
    """A read on its way: ``source`` is the pool it reads from, as it is when it moves."""

    source: torch.Tensor
    part: BlockPart
    runs: BlockRuns

    @property
    def destinations(self) -> list[int]:
        blocks: list[int] = each_block(self.runs)[:, 1].tolist()
        return blocks


class FaultyTransport(LocalTransport):
    """First bytes move by themselves, reads wait for one of the methods below."""

    def __init__(self, pool: torch.Tensor, pool_name: str, fabric: LocalFabric) -> None:
        super().__init__(pool, pool_name, fabric)
        self.posted: dict[int, Posted] = {}
        # Reads that have failed, for all the transport knows, and may still write.
        self.undead: list[Posted] = []
        self._reports: list[Ended] = []

    def disconnect(self, peer: str) -> None:
        del self._peers[peer]

    def post(self, peer: str, runs: BlockRuns) -> int:
        self._num_tickets += 1
        known = self._peers[peer]
        source = self._fabric.pools[known.pool_name]
        self.posted[self._num_tickets] = Posted(source, known.part, runs)
        return self._num_tickets

    def poll(self) -> list[Ended]:
        reports, self._reports = self._reports, []
        return [*super().poll(), *reports]

    def complete(self, ticket: int) -> None:
        """Moves the bytes, as they are at the source by now, and says so."""
        self._arrive(self.posted.pop(ticket))
        self._reports.append(Ended(ticket))

    def spoil(self, ticket: int, *, lose: bool) -> None:
        """Says that the bytes have moved, though they are other ones, or none moved."""
        posted = self.posted.pop(ticket)
        if not lose:
            self._arrive(posted)
            self.pool[posted.destinations[-1]] += 1
        self._reports.append(Ended(ticket))

    def fail(self, ticket: int, *, final: bool) -> None:
        """The peer is lost; if that is not ``final``, nobody knows when the read ends."""
        posted = self.posted.pop(ticket)
        if not final:
            self.undead.append(posted)
        self._reports.append(Ended(ticket, PeerLost("lost"), final))

    def write_late(self, posted: Posted) -> None:
        """A read that failed long ago writes after all."""
        self._arrive(posted)

    def _arrive(self, posted: Posted) -> None:
        self._move(posted.source, posted.part, posted.runs)
