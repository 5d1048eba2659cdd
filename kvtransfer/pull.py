"""One attempt's KV on its way into the decode worker."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvtransfer.fence import Fence
from kvtransfer.handoff import Completion


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """One finished read, for the kv.pull span. ``end_ns`` is in nanoseconds since the epoch."""

    num_blocks: int
    num_bytes: int
    transport: str
    seconds: float
    end_ns: int


class Pull:
    """Made by ``Consumer.open``; event loop only.

    In order: ``computing``, ``start``, ``complete``, ``released``. Each raises PullFailed, whose
    ``fence`` names the blocks that must not be reused yet. Only after ``released`` may anything
    computed from the KV leave the worker or enter its prefix cache (protocol 3.6). ``cancel`` is
    legal in every state, also after a failure and at the end.
    """

    async def computing(self) -> None:
        """Waits until prefill computes the prompt: time to reserve blocks."""

    async def start(self, cached_tokens: int, block_ids: Sequence[int]) -> None:
        """The prompt's missing blocks are reserved; reads go there as chunks become ready.

        ``cached_tokens``: leading tokens whose KV is here, a multiple of the block size.
        ``block_ids``: one destination for each further block of the prompt, in order.
        """

    async def complete(self) -> Completion:
        """Waits until every read is complete; Done is on its way then."""
        raise NotImplementedError

    async def released(self) -> None:
        """Waits until prefill confirmed that its lease was alive, at most two seconds."""

    def cancel(self) -> Fence:
        """Ends the pull if it is not over; the fence is empty where nothing is being read."""
        raise NotImplementedError

    @property
    def records(self) -> Sequence[ChunkRecord]:
        """The reads that are complete so far."""
        raise NotImplementedError
