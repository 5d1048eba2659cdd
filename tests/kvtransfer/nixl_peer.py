"""A process that offers the pools of a peer over NIXL: its offset, and how many ranks it has.

Prints the metadata of each rank, then polls until its input ends.
"""

import os
import sys

from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.nixl import NixlTransport
from tests.kvtransfer.peers import shares


def main() -> None:
    offset, num_ranks = (int(word) for word in sys.argv[1:3])
    pools = enumerate(shares(offset, num_ranks))
    thread = TransferThread(
        [NixlTransport(pool, f"peer-{os.getpid()}-{rank}") for rank, pool in pools]
    )
    thread.start()
    thread.hold()
    print(*(each.hex() for each in thread.metadata), flush=True)
    sys.stdin.read()
    thread.stop()


if __name__ == "__main__":
    main()
