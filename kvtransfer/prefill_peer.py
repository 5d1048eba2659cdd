"""A prefill worker as the decode side knows it."""

import asyncio

import grpc
import grpc.aio

from baton.v1 import kv_transfer_pb2, kv_transfer_pb2_grpc
from chassis.status import from_rpc_error
from kvtransfer.errors import PeerLost
from kvtransfer.handshake import check_answer, peer_name, remote_ranks
from kvtransfer.layout import KvLayout
from kvtransfer.transfer_thread import TransferThread

# How often a worker is asked to poll on: well within the time for which it does after a Handshake.
NUDGE_SECONDS = 1.0


class PrefillPeer:
    """One incarnation of a prefill worker: a connection for control, agents for bytes."""

    def __init__(
        self,
        address: str,
        boot_id: bytes,
        channel: grpc.aio.Channel,
        layout: KvLayout,
        transfers: TransferThread,
    ) -> None:
        self.address = address
        self.boot_id = boot_id
        self.name = peer_name(boot_id)
        self.num_blocks = 0
        self.closed = False
        self._channel = channel
        self._layout = layout
        self._transfers = transfers
        self._stub: kv_transfer_pb2_grpc.KvTransferServiceAsyncStub
        self._stub = kv_transfer_pb2_grpc.KvTransferServiceStub(channel)

    async def pair(self, request: kv_transfer_pb2.HandshakeRequest, *, seconds: float) -> None:
        """Handshakes and moves a first byte (protocol 2.4).

        Raises ServiceError (the worker's own words), PairingRefused, MessageOutOfOrder, PeerError,
        TimeoutError.
        """
        response = await self.handshake(request, seconds=seconds)
        ranks = check_answer(response, self._layout, self._transfers, peer_boot_id=self.boot_id)
        self.num_blocks = min(rank.num_blocks for rank in ranks)
        connected = self._transfers.connect(self.name, remote_ranks(self._layout, ranks))
        first_byte = asyncio.wrap_future(connected)
        try:
            async with asyncio.timeout(seconds):
                # It moves while both sides poll, and the worker does so only for a while.
                while not (await asyncio.wait({first_byte}, timeout=NUDGE_SECONDS))[0]:
                    await self.handshake(request, seconds=seconds)
            first_byte.result()
        except BaseException:
            first_byte.cancel()
            self._transfers.disconnect(self.name)
            raise

    async def handshake(
        self, request: kv_transfer_pb2.HandshakeRequest, *, seconds: float
    ) -> kv_transfer_pb2.HandshakeResponse:
        """The bare call, which also makes the worker poll for a while. Raises ServiceError."""
        try:
            return await self._stub.Handshake(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    def pull(
        self,
    ) -> "grpc.aio.StreamStreamCall[kv_transfer_pb2.PullRequest, kv_transfer_pb2.PullResponse]":
        """Opens a Pull call; nothing has been sent yet. Raises PeerLost once closed."""
        if self.closed:
            raise PeerLost(f"{self.name} has been removed")
        return self._stub.Pull()

    async def disconnected(self) -> None:
        """Returns once the connection is gone: the worker stopped, died or froze (protocol 5.2)."""
        while (state := self._channel.get_state()) is grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    async def close(self) -> None:
        """Closes the connection; calls on it break."""
        self.closed = True
        await self._channel.close()
