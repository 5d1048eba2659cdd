"""``python -m batonctl.doctor.pool_process CHOICE DEVICE NUM_BLOCKS BLOCK_BYTES``: offers a pool.

Prints its metadata, then polls until its input ends. ``CHOICE`` is a worker's of its transports.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Transport
from worker.settings import TransportChoice
from worker.transports import open_transport

CHOICES: dict[str, TransportChoice] = {"auto": "auto", "cuda_ipc": "cuda_ipc", "nixl": "nixl"}


def new_pool(device: str, num_blocks: int, block_bytes: int) -> torch.Tensor:
    """Blocks without sense, all of their memory written to."""
    pool = torch.empty((num_blocks, 1, block_bytes // 8), dtype=torch.int64, device=device)
    return pool.random_()


def transport_over(pool: torch.Tensor, choice: TransportChoice) -> Transport:
    """As a worker opens it. Raises TransportUnavailable."""
    return open_transport(pool, f"{os.getpid()}-{pool.data_ptr()}", choice)


@contextmanager
def running_pool(
    choice: TransportChoice, device: str, num_blocks: int, block_bytes: int, **environment: str
) -> Iterator[bytes]:
    """The metadata of a pool in another process, while entered. Raises RuntimeError."""
    command = [sys.executable, "-P", "-m", "batonctl.doctor.pool_process", choice, device]
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
            if not (line := process.stdout.readline()):
                raise RuntimeError(f"no pool on {device}: its process ended with {process.wait()}")
            yield bytes.fromhex(line)
        finally:
            process.stdin.close()


def main() -> None:
    choice, device = CHOICES[sys.argv[1]], sys.argv[2]
    num_blocks, block_bytes = map(int, sys.argv[3:5])
    pool = new_pool(device, num_blocks, block_bytes)
    thread = TransferThread([transport_over(pool, choice)])
    thread.start()
    thread.hold()
    print(thread.metadata[0].hex(), flush=True)
    sys.stdin.read()
    thread.stop()


if __name__ == "__main__":
    main()
