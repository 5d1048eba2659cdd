"""``python -m bench.kv.peer TRANSPORT DEVICE NUM_BLOCKS BLOCK_BYTES``: offers a pool to read from.

Prints its metadata, then polls until its input ends.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Transport
from kvtransfer.transport.nixl import NixlTransport


def new_pool(device: str, num_blocks: int, block_bytes: int) -> torch.Tensor:
    """Blocks without sense, all of their memory written to."""
    pool = torch.empty((num_blocks, 1, block_bytes // 8), dtype=torch.int64, device=device)
    return pool.random_()


def open_transport(transport: str, pool: torch.Tensor) -> Transport:
    """ "nixl", "cuda_ipc" as workers have it, or "engines", "kernel", "kernel-32" (programs)."""
    if transport == "nixl":
        return NixlTransport(pool, f"bench-{os.getpid()}-{pool.data_ptr()}")
    from kvtransfer.transport import cuda_memory
    from kvtransfer.transport.cuda_ipc import CudaIpcTransport

    way, _, num_programs = transport.partition("-")
    ways = {"kernel": cuda_memory.copy_by_kernel, "engines": cuda_memory.copy_by_engines}
    copy = ways.get(way, cuda_memory.COPY)
    if num_programs:
        copy = partial(cuda_memory.copy_by_kernel, num_programs=int(num_programs))
    return CudaIpcTransport(pool, cuda_memory.CudaMemory(pool.device, copy))


@contextmanager
def running_peer(
    transport: str, device: str, num_blocks: int, block_bytes: int, **environment: str
) -> Iterator[bytes]:
    """The metadata of a pool of another process, while entered."""
    command = [sys.executable, "-m", "bench.kv.peer", transport, device]
    command += [str(num_blocks), str(block_bytes)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield bytes.fromhex(process.stdout.readline())
        finally:
            process.stdin.close()


def main() -> None:
    transport, device = sys.argv[1:3]
    num_blocks, block_bytes = map(int, sys.argv[3:5])
    pool = new_pool(device, num_blocks, block_bytes)
    thread = TransferThread([open_transport(transport, pool)])
    thread.start()
    thread.hold()
    print(thread.metadata[0].hex(), flush=True)
    sys.stdin.read()
    thread.stop()


if __name__ == "__main__":
    main()
