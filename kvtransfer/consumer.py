"""The decode side of hand-offs: pairs with prefill workers and pulls attempts from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc.aio

from chassis.channel import open_channel
from kvtransfer.layout import KvLayout
from kvtransfer.pull import Pull
from kvtransfer.transfer_thread import TransferThread


@dataclass(frozen=True, slots=True)
class PullTimeouts:
    """Seconds. ``pair``: for Handshake and the first byte."""

    pair: float = 10.0
    read: float = 10.0
    released: float = 2.0


class Consumer:
    """Create it on the event loop. One per decode worker."""

    def __init__(
        self,
        *,
        boot_id: bytes,
        layout: KvLayout,
        transfers: TransferThread,
        timeouts: PullTimeouts = PullTimeouts(),
        channels: Callable[[str], grpc.aio.Channel] = open_channel,
    ) -> None: ...

    async def pair(self, address: str, boot_id: bytes) -> None:
        """Handshakes with a prefill worker, once per boot id; ``open`` does it where needed.

        Raises PairingRefused, PeerError, or a ServiceError if the worker cannot be reached.
        """

    def open(
        self,
        attempt_id: bytes,
        address: str,
        boot_id: bytes,
        token_ids: Sequence[int],
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Pull:
        """Begins to pull an attempt; ``metadata`` (trace context) rides on the call."""
        raise NotImplementedError

    async def close(self) -> None:
        """Cancels what is open and closes the connections; reads end with the transfer thread."""
