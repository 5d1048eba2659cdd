"""A decode worker whose transport changes or loses what it reads: flags, then how many times.

It says of each such read that every byte has arrived.
"""

import sys

from decode_svc.__main__ import main
from kvtransfer.transport.base import Ended
from kvtransfer.transport.block_runs import BlockRuns
from kvtransfer.transport.nixl import NixlTransport


def spoil(num_reads: int) -> None:
    """From now on the next so many reads that end well have ended wrong."""
    post, poll = NixlTransport.post, NixlTransport.poll
    destinations: dict[int, int] = {}
    num_left = num_reads

    def post_and_note(self: NixlTransport, peer: str, runs: BlockRuns) -> int:
        ticket = post(self, peer, runs)
        destinations[ticket] = int(runs[-1, 1])
        return ticket

    def poll_and_spoil(self: NixlTransport) -> list[Ended]:
        nonlocal num_left
        ended = poll(self)
        for each in ended:
            block = destinations.pop(each.ticket, None)
            if block is None or each.error is not None or not num_left:
                continue
            num_left -= 1
            if num_left % 2:
                self.pool[block].zero_()
            else:
                self.pool[block] += 1
        return ended

    NixlTransport.post = post_and_note  # type: ignore[method-assign]
    NixlTransport.poll = poll_and_spoil  # type: ignore[method-assign]


if __name__ == "__main__":
    spoil(int(sys.argv.pop()))
    sys.exit(main())
