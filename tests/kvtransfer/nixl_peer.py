"""A process that offers a pool over NIXL: prints its metadata, then polls until told to stop.

Block number b of its pool holds b + its first argument in every element. Commands on standard
input: "hold" and "release" switch the polling; end of input ends the process.
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
    print(thread.metadata.hex(), flush=True)
    for line in sys.stdin:
        if line.strip() == "hold":
            thread.hold()
        else:
            thread.release()
        print("ok", flush=True)
    thread.stop()


if __name__ == "__main__":
    main()
