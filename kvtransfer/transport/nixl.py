"""Blocks over NIXL (UCX): between processes and hosts, on host and device memory."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from nixl_cu13 import _api as nixl
from nixl_cu13 import _bindings as bindings

from kvtransfer.errors import PeerLost, PeerUnreachable, TransferError, TransportUnavailable
from kvtransfer.transport.base import BlockPart, Ended, Transport, enter_device
from kvtransfer.transport.block_runs import BlockRuns, each_block
from kvtransfer.transport.pool_address import PoolAddress

BACKEND = "UCX"
LOOPBACK_DEVICE = "lo"
SELF_TEST_SECONDS = 10.0

# Word 0 is what peers read to see that bytes move; the others receive such reads.
_PROBE = 0x6E6F746162
_NUM_PROBE_WORDS = 64

_NIXL_ERRORS: tuple[type[Exception], ...] = (
    bindings.nixlBackendError,
    bindings.nixlCancelledError,
    bindings.nixlInvalidParamError,
    bindings.nixlMismatchError,
    bindings.nixlNotAllowedError,
    bindings.nixlNotFoundError,
    bindings.nixlNotSupportedError,
    bindings.nixlRemoteDisconnectError,
    bindings.nixlUnknownError,
    # Without any plugin NIXL's Python layer raises this.
    RuntimeError,
)


@dataclass(frozen=True, slots=True)
class _Peer:
    """``remote`` and ``local`` are prepared lists of its part of every block, there and here."""

    agent_name: Any
    pool: PoolAddress
    remote: Any
    local: Any


@dataclass(frozen=True, slots=True)
class _Posted:
    """A request that is not over; ``probe_word`` is set where it reads a peer's probe."""

    peer: str
    handle: Any
    probe_word: int | None = None


class NixlTransport(Transport):
    """One NIXL agent without a progress thread.

    With that thread an idle agent burns a core; without, a read moves only while both sides poll,
    which the transfer thread sees to. ``agent_name`` must be unique in time as well (boot id and
    rank): peers refuse a name that they know with other memory. UCX uses the network devices of
    UCX_NET_DEVICES where that is set, else ``net_devices``; left alone it listens on all.
    """

    name = "nixl"

    def __init__(
        self, pool: torch.Tensor, agent_name: str, net_devices: str = LOOPBACK_DEVICE
    ) -> None:
        super().__init__(pool)
        if pool.is_cuda:
            enter_device(pool.device)
            # Left alone UCX reads over TCP where it sees no NVLink, as between two processes on one
            # GPU: 0.5 GB/s.
            os.environ.setdefault("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on")
        os.environ.setdefault("UCX_NET_DEVICES", net_devices)
        # UCX prints to standard output; its warnings are about requests that a dead peer left.
        os.environ.setdefault("UCX_LOG_LEVEL", "error")
        self._agent = _new_agent(agent_name)
        self._probes = torch.zeros(_NUM_PROBE_WORDS, dtype=torch.int64)
        self._probes[0] = _PROBE
        self._address = PoolAddress(
            address=pool.data_ptr(),
            device=max(0, pool.get_device()),
            num_blocks=self.num_blocks,
            block_bytes=self.block_bytes,
            probe_address=self._probes.data_ptr(),
            memory="DRAM" if pool.device.type == "cpu" else "VRAM",
        )
        self._agent.register_memory(pool)
        self._agent.register_memory(self._probes)
        self._metadata: bytes = self._address.pack() + self._agent.get_agent_metadata()
        self._peers: dict[str, _Peer] = {}
        self._posted: dict[int, _Posted] = {}
        self._ended: list[Ended] = []
        # Requests that failed without proof that they are over; letting go would not stop them.
        self._undead: list[_Posted] = []
        self._num_tickets = 0
        _self_test(self._metadata, f"{agent_name}-self-test", self._agent)

    def metadata(self) -> bytes:
        return self._metadata

    def connect(self, peer: str, metadata: bytes, part: BlockPart) -> int:
        pool, nixl_metadata = PoolAddress.unpack(metadata)
        if pool.block_bytes != part.remote_block_bytes:
            raise PeerUnreachable(
                f"{peer} has blocks of {pool.block_bytes} bytes, not of {part.remote_block_bytes}"
            )
        try:
            agent_name = self._agent.add_remote_agent(nixl_metadata)
        except _NIXL_ERRORS as error:
            raise PeerUnreachable(f"NIXL does not accept {peer}: {error}") from error
        try:
            remote = self._prepare(agent_name, pool, part.remote_offset, part.num_bytes)
            local = self._prepare("", self._address, part.local_offset, part.num_bytes)
        except _NIXL_ERRORS as error:
            self._agent.remove_remote_agent(agent_name)
            raise PeerUnreachable(f"NIXL does not see the pool of {peer}: {error}") from error
        self._peers[peer] = _Peer(agent_name, pool, remote, local)
        return self._post_probe(peer)

    def disconnect(self, peer: str) -> None:
        waiting = [ticket for ticket, posted in self._posted.items() if posted.peer == peer]
        for ticket in waiting:
            # Only a probe may be left here; its word stays ours, so nobody minds a late write.
            assert self._posted[ticket].probe_word is not None, f"{peer} is still being read"
            self._posted.pop(ticket)
        known = self._peers.pop(peer)
        self._agent.release_dlist_handle(known.remote)
        self._agent.release_dlist_handle(known.local)
        self._agent.remove_remote_agent(known.agent_name)

    def post(self, peer: str, runs: BlockRuns) -> int:
        known = self._peers[peer]
        theirs, ours, _ = each_block(runs).T.astype(np.int32)
        # By number in the prepared lists; NIXL joins neighbours again.
        return self._post(
            peer,
            lambda: self._agent.make_prepped_xfer("READ", known.local, ours, known.remote, theirs),
        )

    def poll(self) -> list[Ended]:
        if not self._posted:
            # Serves peers that read from us; notifications themselves are not used.
            self._agent.get_new_notifs()
        for ticket, posted in tuple(self._posted.items()):
            try:
                state = self._agent.check_xfer_state(posted.handle)
            except _NIXL_ERRORS as error:
                self._fail(ticket, posted, error)
            else:
                self._settle(ticket, posted, state)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        # The agent goes with its last handle, and with it UCX and all it might still write.
        self._posted.clear()
        self._undead.clear()
        self._peers.clear()
        self._agent = None

    def _post_probe(self, peer: str) -> int:
        word = 1 + self._num_tickets % (_NUM_PROBE_WORDS - 1)
        self._probes[word] = 0
        ours = self._probes.data_ptr() + word * self._probes.element_size()
        known = self._peers[peer]
        local = _word_at(self._agent, ours)
        remote = _word_at(self._agent, known.pool.probe_address)
        return self._post(
            peer,
            lambda: self._agent.initialize_xfer("READ", local, remote, known.agent_name),
            word,
        )

    def _prepare(self, agent_name: Any, pool: PoolAddress, offset: int, num_bytes: int) -> Any:
        """A list of ``num_bytes`` of every block of ``pool``, from ``offset`` in it on: once for a
        peer, where a list for each read took longer to make than to use."""
        first, blocks = pool.address + offset, (pool.block_bytes, pool.num_blocks)
        rows = np.array([(first, num_bytes, pool.device, *blocks)], dtype=np.uint64)
        return self._agent.prep_xfer_dlist(agent_name, rows, pool.memory)

    def _post(
        self, peer: str, make_request: Callable[[], Any], probe_word: int | None = None
    ) -> int:
        self._num_tickets += 1
        ticket = self._num_tickets
        try:
            handle = make_request()
        except _NIXL_ERRORS as error:
            # Nothing was posted, so nothing can be written.
            self._ended.append(Ended(ticket, PeerLost(f"{peer} cannot be read: {error}")))
            return ticket
        posted = _Posted(peer, handle, probe_word)
        self._posted[ticket] = posted
        try:
            state = self._agent.transfer(handle)
        except _NIXL_ERRORS as error:
            self._fail(ticket, posted, error)
        else:
            self._settle(ticket, posted, state)
        return ticket

    def _settle(self, ticket: int, posted: _Posted, state: str) -> None:
        """Takes note of a state as NIXL names it: DONE, PROC or ERR."""
        if state == "PROC":
            return
        if state != "DONE":
            self._fail(ticket, posted, None)
            return
        del self._posted[ticket]
        self._agent.release_xfer_handle(posted.handle)
        error: TransferError | None = None
        if posted.probe_word is not None and int(self._probes[posted.probe_word]) != _PROBE:
            error = PeerUnreachable(f"{posted.peer} was read, but the bytes are not its own")
        self._ended.append(Ended(ticket, error))

    def _fail(self, ticket: int, posted: _Posted, error: Exception | None) -> None:
        del self._posted[ticket]
        # A lost connection has been torn down with all that was in flight on it. No other failure
        # proves as much.
        final = isinstance(error, bindings.nixlRemoteDisconnectError)
        if final:
            self._agent.release_xfer_handle(posted.handle)
        else:
            self._undead.append(posted)
        self._ended.append(Ended(ticket, PeerLost(f"{posted.peer}: {error or 'ERR'}"), final))


def _new_agent(name: str) -> Any:
    """Raises TransportUnavailable."""
    _quiet_unless_asked()
    config = nixl.nixl_agent_config(enable_prog_thread=False, backends=[BACKEND])
    try:
        agent = nixl.nixl_agent(name, config)
    except _NIXL_ERRORS as error:
        raise _unavailable(f"no {BACKEND} agent can be made: {error}") from error
    if BACKEND not in agent.backends:
        raise _unavailable(f"this NIXL has no {BACKEND} plugin, only {agent.get_plugin_list()}")
    return agent


def _word_at(agent: Any, address: int) -> Any:
    return agent.get_xfer_descs([(address, 8, 0)], "DRAM")


def _self_test(metadata: bytes, name: str, agent: Any) -> None:
    """Reads the agent's probe with an agent of its own. Raises TransportUnavailable."""
    pool, nixl_metadata = PoolAddress.unpack(metadata)
    word = torch.zeros(1, dtype=torch.int64)
    tester = _new_agent(name)
    tester.register_memory(word)
    deadline = time.monotonic() + SELF_TEST_SECONDS
    try:
        remote = tester.add_remote_agent(nixl_metadata)
        handle = tester.initialize_xfer(
            "READ", _word_at(tester, word.data_ptr()), _word_at(tester, pool.probe_address), remote
        )
        state = tester.transfer(handle)
        while state == "PROC" and time.monotonic() < deadline:
            agent.get_new_notifs()
            state = tester.check_xfer_state(handle)
    except _NIXL_ERRORS as error:
        raise _unavailable(f"the self-test failed: {error}") from error
    if state != "DONE" or int(word[0]) != _PROBE:
        raise _unavailable(f"the self-test ended as {state} with {int(word[0]):#x}")
    tester.release_xfer_handle(handle)
    tester.remove_remote_agent(remote)


def _unavailable(what: str) -> TransportUnavailable:
    asked = {key: value for key, value in os.environ.items() if key.startswith("UCX_")}
    return TransportUnavailable(f"NIXL cannot move blocks here: {what} (environment: {asked})")


def _quiet_unless_asked() -> None:
    """NIXL prints to standard output from the level INFO on; only NIXL_LOG_LEVEL asks for that."""
    if "NIXL_LOG_LEVEL" not in os.environ:
        logging.getLogger("nixl").setLevel(logging.WARNING)
