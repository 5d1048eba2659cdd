"""A process that offers the pools of a peer: its offset, how many ranks it has, and over what.

Prints the metadata of each rank, then polls until its input ends. Pools lie on the first GPU where
the transport's name has "cuda" in it.
"""

import os
import sys

import torch

from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Transport
from kvtransfer.transport.cuda_ipc import CudaIpcTransport
from kvtransfer.transport.nixl import NixlTransport
from tests.kvtransfer.mapped_peers import memory_of
from tests.kvtransfer.peers import shares


def make_transport(pool: torch.Tensor, rank: int, transport: str) -> Transport:
    if transport == "cuda-ipc":
        return CudaIpcTransport(pool, memory_of(pool))
    return NixlTransport(pool, f"peer-{os.getpid()}-{rank}")


def main() -> None:
    offset, num_ranks, transport = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    device = "cuda:0" if "cuda" in transport else "cpu"
    pools = enumerate(share.to(device) for share in shares(offset, num_ranks))
    thread = TransferThread([make_transport(pool, rank, transport) for rank, pool in pools])
    thread.start()
    thread.hold()
    print(*(each.hex() for each in thread.metadata), flush=True)
    sys.stdin.read()
    thread.stop()


if __name__ == "__main__":
    main()
