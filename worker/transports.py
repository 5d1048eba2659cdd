"""The transports of one rank's pool."""

import logging
from collections.abc import Callable

import torch

from kvtransfer.errors import TransportUnavailable
from kvtransfer.transport.base import Transport
from kvtransfer.transport.choosing import ChoosingTransport
from kvtransfer.transport.cuda_ipc import CudaIpcTransport
from kvtransfer.transport.nixl import NixlTransport
from worker.settings import TransportChoice

log = logging.getLogger(__name__)


def open_transport(pool: torch.Tensor, name: str, choice: TransportChoice) -> Transport:
    """Those of ``choice`` that work here, the preferred one first; ``name`` as for NIXL.

    Raises TransportUnavailable where none does.
    """
    possible: dict[str, Callable[[], Transport]] = {
        "cuda_ipc": lambda: _open_cuda_ipc(pool),
        "nixl": lambda: NixlTransport(pool, name),
    }
    if choice != "auto":
        return ChoosingTransport([possible[choice]()])
    if not pool.is_cuda:
        del possible["cuda_ipc"]
    ways, refusals = [], []
    for way, open_way in possible.items():
        try:
            ways.append(open_way())
        except TransportUnavailable as error:
            log.warning("no transport %s: %s", way, error)
            refusals.append(str(error))
    if not ways:
        raise TransportUnavailable("; ".join(refusals))
    return ChoosingTransport(ways)


def _open_cuda_ipc(pool: torch.Tensor) -> Transport:
    if not pool.is_cuda:
        raise TransportUnavailable("cuda_ipc moves blocks between GPUs; this pool is on the host")
    # Needs Triton, which is not there without a GPU.
    from kvtransfer.transport.cuda_memory import CudaMemory

    return CudaIpcTransport(pool, CudaMemory(pool.device))
