"""The kinds of transports that are tested alike, and who reads over them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Transport
from kvtransfer.transport.cuda_ipc import CudaIpcTransport
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.nixl import NixlTransport
from tests.kvtransfer.mapped_peers import memory_of
from tests.kvtransfer.peers import BLOCK_VALUES, NUM_BLOCKS, NUM_HEADS
from tests.kvtransfer.remote_rank import remote_transport

UNTOUCHED = -1.0
GPUS = torch.cuda.device_count()


@dataclass(frozen=True, slots=True)
class Kind:
    """A transport, and how many ranks there are on each side."""

    transport: str
    num_ranks: int = 1
    num_peer_ranks: int = 1

    @property
    def on_gpu(self) -> bool:
        return "cuda" in self.transport

    @property
    def mapped(self) -> bool:
        """A peer takes no part in reads, be it stopped or dead."""
        return self.transport == "mapped" or self.transport.startswith("cuda-ipc")


KINDS = {
    "local": Kind("local"),
    "local-2-2": Kind("local", 2, 2),
    "local-1-2": Kind("local", 1, 2),
    "local-2-1": Kind("local", 2, 1),
    "nixl": Kind("nixl"),
    "nixl-2-1": Kind("nixl", 2, 1),
    "nixl-tcp": Kind("nixl-tcp"),
    "mapped": Kind("mapped"),
    "mapped-2-1": Kind("mapped", 2, 1),
    "mapped-1-2": Kind("mapped", 1, 2),
    "cuda-ipc": Kind("cuda-ipc"),
    "cuda-ipc-one-process": Kind("cuda-ipc-one-process"),
    "cuda-ipc-2-1": Kind("cuda-ipc", 2, 1),
    "cuda-ipc-1-2": Kind("cuda-ipc", 1, 2),
    "nixl-cuda": Kind("nixl-cuda"),
}


def kinds(condition: Callable[[Kind], bool]) -> list[Any]:
    """Of KINDS, as parameters."""
    needs_gpu = (pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="needs an NVIDIA GPU"))
    return [
        pytest.param(name, marks=needs_gpu if kind.on_gpu else ())
        for name, kind in KINDS.items()
        if condition(kind)
    ]


# Left to itself UCX reads a stopped process's memory all the same, and nothing stays in flight.
stays_in_flight = pytest.mark.parametrize(
    "kind", kinds(lambda kind: kind.transport in ("local", "nixl-tcp")), indirect=True
)
# Mapped memory outlives its owner; what UCX maps of a GPU does perhaps.
notices_death = pytest.mark.parametrize(
    "kind", kinds(lambda kind: not kind.mapped and not kind.on_gpu), indirect=True
)


class Reader(TransferThread):
    """A worker whose blocks are divided among its ranks as a peer's are."""

    def __init__(self, pools: list[torch.Tensor], ranks: list[Transport], **settings: Any) -> None:
        super().__init__(ranks, **settings)
        self._pools = pools

    def blocks(self, ids: list[int]) -> torch.Tensor:
        """What these blocks hold, on all ranks together."""
        parts = [pool[ids].cpu() for pool in self._pools]
        return torch.cat(parts, dim=1).view(len(ids), -1)

    def wipe(self) -> None:
        for pool in self._pools:
            pool.fill_(UNTOUCHED)
            if pool.is_cuda:
                torch.cuda.synchronize(pool.device)


def open_reader(kind: Kind, name: str, fabric: LocalFabric, **settings: Any) -> Reader:
    """Untouched, and not started; ``name`` is of no other."""
    shape = (NUM_BLOCKS, NUM_HEADS // kind.num_ranks, BLOCK_VALUES // NUM_HEADS)
    device = f"cuda:{GPUS - 1}" if kind.on_gpu else "cpu"
    pools = [torch.full(shape, UNTOUCHED, device=device) for _ in range(kind.num_ranks)]
    ranks = [_open_rank(kind, rank, pool, name, fabric) for rank, pool in enumerate(pools)]
    return Reader(pools, ranks, **settings)


def _open_rank(
    kind: Kind, rank: int, pool: torch.Tensor, name: str, fabric: LocalFabric
) -> Transport:
    own = f"{name}-{rank}"
    if kind.mapped:
        return CudaIpcTransport(pool, memory_of(pool))
    if kind.transport != "local":
        return NixlTransport(pool, own)
    return LocalTransport(pool, own, fabric) if rank == 0 else remote_transport(pool, fabric, own)
