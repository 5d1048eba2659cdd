"""Blocks within one process, for unit tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvtransfer.errors import PeerLost, PeerUnreachable
from kvtransfer.transport.base import BlockRun, Ended, Transport


@dataclass(slots=True, eq=False)
class LocalFabric:
    """The pools that can reach one another, and whether bytes move between them.

    While ``held``, reads stay in flight; a pool taken out of ``pools`` is a dead peer.
    """

    pools: dict[str, torch.Tensor] = field(default_factory=dict)
    held: bool = False


class LocalTransport(Transport):
    """Copies between the pools of a fabric. A read moves when it is polled, never when posted."""

    name = "local"

    def __init__(self, pool: torch.Tensor, pool_name: str, fabric: LocalFabric) -> None:
        super().__init__(pool)
        self._pool_name = pool_name
        self._fabric = fabric
        self._peers: dict[str, str] = {}
        self._posted: dict[int, tuple[str, tuple[BlockRun, ...]]] = {}
        self._num_tickets = 0
        fabric.pools[pool_name] = pool

    def metadata(self) -> tuple[bytes, ...]:
        return (self._pool_name.encode(),)

    def connect(self, peer: str, metadata: Sequence[bytes]) -> int:
        (pool_name,) = (each.decode() for each in metadata)
        if pool_name not in self._fabric.pools:
            raise PeerUnreachable(f"there is no pool {pool_name!r}")
        self._peers[peer] = pool_name
        return self._post(peer, ())

    def disconnect(self, peer: str) -> None:
        left = [ticket for ticket, (name, runs) in self._posted.items() if name == peer and runs]
        assert not left, f"{peer} is still being read"
        del self._peers[peer]

    def post(self, peer: str, runs: Sequence[BlockRun]) -> int:
        return self._post(peer, tuple(runs))

    def poll(self) -> list[Ended]:
        lost = {
            ticket: peer
            for ticket, (peer, _) in self._posted.items()
            if self._peers[peer] not in self._fabric.pools
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

    def _post(self, peer: str, runs: tuple[BlockRun, ...]) -> int:
        self._num_tickets += 1
        self._posted[self._num_tickets] = (peer, runs)
        return self._num_tickets

    def _copy(self, ticket: int) -> Ended:
        peer, runs = self._posted[ticket]
        source = self._fabric.pools[self._peers[peer]]
        for run in runs:
            end = run.local_block + run.num_blocks
            remote_end = run.remote_block + run.num_blocks
            self.pool[run.local_block : end] = source[run.remote_block : remote_end]
        return Ended(ticket)
