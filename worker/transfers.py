"""Opens the transfer thread over a model's pool."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import torch

from chassis.lifecycle import CannotStart
from kvtransfer.errors import TransportUnavailable
from kvtransfer.handshake import agent_name
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.nixl import NixlTransport


@asynccontextmanager
async def open_transfers(
    pool: torch.Tensor, boot_id: bytes, on_failure: Callable[[BaseException], None]
) -> AsyncIterator[TransferThread]:
    """Runs while entered. Raises CannotStart where this machine cannot move blocks.

    Opening moves a first byte, and closing waits for a poll: neither holds up the event loop.
    """
    try:
        transport = await asyncio.to_thread(NixlTransport, pool, agent_name(boot_id))
    except TransportUnavailable as error:
        raise CannotStart(str(error)) from error
    transfers = TransferThread(transport, on_failure=on_failure)
    transfers.start()
    try:
        yield transfers
    finally:
        await asyncio.to_thread(transfers.stop)
