"""The decode side of hand-offs: pairs with prefill workers and pulls attempts from them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import grpc.aio

from baton.v1 import kv_transfer_pb2
from chassis.background import Background
from chassis.channel import INNER, open_channel
from chassis.errors import ServiceError
from kvtransfer.fence import Fence
from kvtransfer.handshake import check_block_bytes, request_handshake
from kvtransfer.layout import KvLayout
from kvtransfer.prefill_peer import NUDGE_SECONDS, PrefillPeer
from kvtransfer.pull import DEFAULT_TIMEOUTS, Pull, PullTimeouts
from kvtransfer.transfer_thread import TransferThread


class Consumer:
    """Pairs once with each incarnation of a prefill worker, and opens one Pull per attempt.

    One per decode worker; create and use it on the event loop. ``transfers`` runs already and is
    stopped by its owner, after ``close``.
    """

    def __init__(
        self,
        *,
        boot_id: bytes,
        layout: KvLayout,
        transfers: TransferThread,
        timeouts: PullTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        check_block_bytes(layout, transfers)
        self._boot_id = boot_id
        self._layout = layout
        self._transfers = transfers
        self._timeouts = timeouts
        self._peers: dict[bytes, PrefillPeer] = {}
        self._pairings: dict[bytes, asyncio.Task[PrefillPeer]] = {}
        self._removals: dict[bytes, asyncio.Future[None]] = {}
        self._pulls: set[Pull] = set()
        self._background = Background()

    @property
    def num_peers(self) -> int:
        """Prefill workers that can be pulled from just now."""
        return len(self._peers)

    async def pair(self, address: str, boot_id: bytes) -> None:
        """Makes sure of the pair: a Handshake and a first byte, once per boot id.

        ``open`` does it where needed; doing it when a worker is discovered saves the first request
        the wait. Raises ServiceError, TransferError or TimeoutError.
        """
        await self._paired(address, boot_id)

    def open(
        self,
        attempt_id: bytes,
        address: str,
        boot_id: bytes,
        token_ids: Sequence[int],
    ) -> Pull:
        """Begins to pull an attempt."""
        pull = Pull(
            attempt_id,
            token_ids,
            block_size=self._layout.block_size,
            transfers=self._transfers,
            timeouts=self._timeouts,
            find_peer=lambda: self._paired(address, boot_id),
            on_over=self._on_over,
        )
        self._pulls.add(pull)
        return pull

    async def close(self) -> None:
        """Cancels what is open and closes the connections. Idempotent."""
        for pull in tuple(self._pulls):
            pull.cancel()
        pairings = tuple(self._pairings.values())
        for pairing in pairings:
            pairing.cancel()
        await asyncio.gather(*pairings, return_exceptions=True)
        await self._background.close()
        for peer in tuple(self._peers.values()):
            self._forget(peer)
            await peer.close()

    async def _paired(self, address: str, boot_id: bytes) -> PrefillPeer:
        pairing = self._pairings.get(boot_id)
        if pairing is None:
            pairing = asyncio.create_task(self._pair(address, boot_id))
            self._pairings[boot_id] = pairing
            pairing.add_done_callback(lambda done: self._after_pairing(boot_id, done))
        return await asyncio.shield(pairing)

    async def _pair(self, address: str, boot_id: bytes) -> PrefillPeer:
        if removal := self._removals.get(boot_id):
            await asyncio.wait_for(asyncio.shield(removal), self._timeouts.pair)
        peer = self._new_peer(address, boot_id, open_channel(address, INNER))
        try:
            await peer.pair(self._handshake(boot_id), seconds=self._timeouts.pair)
        except BaseException:
            await peer.close()
            raise
        for other in tuple(self._peers.values()):
            # The address has a new owner: nothing can be had from the old one (protocol 4.8).
            if other.address == address:
                self._lose(other)
        self._peers[boot_id] = peer
        self._background.spawn(self._watch(peer))
        return peer

    def _new_peer(self, address: str, boot_id: bytes, channel: grpc.aio.Channel) -> PrefillPeer:
        return PrefillPeer(address, boot_id, channel, self._layout, self._transfers)

    def _after_pairing(self, boot_id: bytes, pairing: "asyncio.Task[PrefillPeer]") -> None:
        failed = pairing.cancelled() or pairing.exception() is not None
        if failed and self._pairings.get(boot_id) is pairing:
            del self._pairings[boot_id]

    def _handshake(self, peer_boot_id: bytes) -> kv_transfer_pb2.HandshakeRequest:
        return request_handshake(
            self._layout, self._transfers, boot_id=self._boot_id, peer_boot_id=peer_boot_id
        )

    def _on_over(self, pull: Pull, fence: Fence, lost: bool) -> None:
        """A pull is over; ``lost`` if its connection broke."""
        self._pulls.discard(pull)
        peer = pull.peer
        if peer is None or self._peers.get(peer.boot_id) is not peer:
            return
        if lost:
            self._lose(peer)
        elif not fence.lifted.done():
            self._background.spawn(self._nudge(peer, asyncio.wrap_future(fence.lifted)))

    async def _watch(self, peer: PrefillPeer) -> None:
        """Forgets a peer whose connection broke, as nobody may ever pull from it again."""
        while self._peers.get(peer.boot_id) is peer:
            await peer.disconnected()
            # A worker that drains takes no more calls, but ends the open ones in good order.
            open_pulls = [pull.released() for pull in self._pulls if pull.peer is peer]
            if open_pulls:
                await asyncio.gather(*open_pulls, return_exceptions=True)
            elif self._peers.get(peer.boot_id) is peer:
                self._lose(peer)

    def _lose(self, peer: PrefillPeer) -> None:
        self._background.spawn(self._part(peer, self._forget(peer)))

    def _forget(self, peer: PrefillPeer) -> "asyncio.Future[None]":
        """Ends all reads from the peer, then removes its agent (protocol 4.8): done after that."""
        del self._peers[peer.boot_id]
        self._pairings.pop(peer.boot_id, None)
        removal = asyncio.wrap_future(self._transfers.disconnect(peer.name))
        self._removals[peer.boot_id] = removal
        removal.add_done_callback(lambda _: self._removals.pop(peer.boot_id, None))
        return removal

    async def _part(self, peer: PrefillPeer, removal: "asyncio.Future[None]") -> None:
        """Breaks the connection. A peer that lives all the same must poll until its reads end."""
        await peer.close()
        async with open_channel(peer.address, INNER) as channel:
            again = self._new_peer(peer.address, peer.boot_id, channel)
            await self._nudge(again, removal)

    async def _nudge(self, peer: PrefillPeer, ended: "asyncio.Future[None]") -> None:
        """Keeps a peer polling until reads whose Pull is gone have ended, or its connection has."""
        while not (await asyncio.wait({ended}, timeout=NUDGE_SECONDS))[0] and not peer.closed:
            with suppress(ServiceError):
                await peer.handshake(self._handshake(peer.boot_id), seconds=NUDGE_SECONDS)
