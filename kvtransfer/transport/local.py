"""Blocks within one process, for unit tests."""

from dataclasses import dataclass, field

import torch

from kvtransfer.errors import PeerLost, PeerUnreachable
from kvtransfer.transport.base import BlockPart, Ended, Transport
from kvtransfer.transport.block_runs import BlockRuns


@dataclass(slots=True, eq=False)
class LocalFabric:
    """The pools that can reach one another, and whether bytes move between them.

    While ``held``, reads stay in flight; a pool taken out of ``pools`` is a dead peer.
    """

    pools: dict[str, torch.Tensor] = field(default_factory=dict)
    held: bool = False


@dataclass(frozen=True, slots=True)
class _Peer:
    """A pool by its name on the fabric, and what is taken of its blocks."""

    pool_name: str
    part: BlockPart


class LocalTransport(Transport):
    """Copies between the pools of a fabric. A read moves when it is polled, never when posted."""

    name = "local"

    def __init__(self, pool: torch.Tensor, pool_name: str, fabric: LocalFabric) -> None:
        super().__init__(pool)
        self._pool_name = pool_name
        self._fabric = fabric
        self._peers: dict[str, _Peer] = {}
        self._posted: dict[int, tuple[str, BlockRuns | None]] = {}
        self._num_tickets = 0
        fabric.pools[pool_name] = pool

    def metadata(self) -> bytes:
        return self._pool_name.encode()

    def connect(self, peer: str, metadata: bytes, part: BlockPart) -> int:
        pool_name = metadata.decode()
        if pool_name not in self._fabric.pools:
            raise PeerUnreachable(f"there is no pool {pool_name!r}")
        self._peers[peer] = _Peer(pool_name, part)
        return self._post(peer, None)

    def disconnect(self, peer: str) -> None:
        left = {ticket: runs for ticket, (name, runs) in self._posted.items() if name == peer}
        assert all(runs is None for runs in left.values()), f"{peer} is still being read"
        for ticket in left:
            del self._posted[ticket]
        del self._peers[peer]

    def post(self, peer: str, runs: BlockRuns) -> int:
        return self._post(peer, runs)

    def poll(self) -> list[Ended]:
        lost = {
            ticket: peer
            for ticket, (peer, _) in self._posted.items()
            if self._peers[peer].pool_name not in self._fabric.pools
        }
        ended = [Ended(ticket, PeerLost(f"{peer} is gone")) for ticket, peer in lost.items()]
        if not self._fabric.held:
            ended += [self._copy(ticket) for ticket in self._posted if ticket not in lost]
        for report in ended:
            del self._posted[report.ticket]
        return ended

    def close(self) -> None:
        self._posted.clear()
        self._fabric.pools.pop(self._pool_name, None)

    def _post(self, peer: str, runs: BlockRuns | None) -> int:
        self._num_tickets += 1
        self._posted[self._num_tickets] = (peer, runs)
        return self._num_tickets

    def _copy(self, ticket: int) -> Ended:
        peer, runs = self._posted[ticket]
        if runs is not None:
            known = self._peers[peer]
            self._move(self._fabric.pools[known.pool_name], known.part, runs)
        return Ended(ticket)

    def _move(self, source: torch.Tensor, part: BlockPart, runs: BlockRuns) -> None:
        theirs, ours = (pool.view(-1).view(torch.uint8) for pool in (source, self.pool))
        for there, here, num_bytes in self.byte_ranges(part, runs).tolist():
            ours[here : here + num_bytes] = theirs[there : there + num_bytes]
