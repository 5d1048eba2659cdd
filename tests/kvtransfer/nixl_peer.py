"""A process that offers a pool over NIXL: prints its metadata, then polls until its input ends.

Block number b of its pool holds b + its first argument in every element.
"""

import os
import sys

import torch

from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.nixl import NixlTransport


def main() -> None:
    offset, num_blocks, block_values = (int(word) for word in sys.argv[1:4])
    numbers = torch.arange(num_blocks, dtype=torch.float32) + offset
    pool = numbers[:, None].repeat(1, block_values)
    thread = TransferThread(NixlTransport(pool, f"peer-{os.getpid()}"))
    thread.start()
    thread.hold()
    print(thread.metadata[0].hex(), flush=True)
    sys.stdin.read()
    thread.stop()


if __name__ == "__main__":
    main()
