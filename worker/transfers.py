"""Opens the transfer thread over a model's pool, or over those of its ranks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection

import torch

from chassis.lifecycle import CannotStart
from kvtransfer.errors import TransportUnavailable
from kvtransfer.handshake import agent_name
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Transport
from kvtransfer.transport.remote import RemoteTransport
from worker.settings import TransportChoice
from worker.transports import open_transport


@asynccontextmanager
async def open_transfers(
    pool: torch.Tensor,
    rank_pipes: Sequence[Connection],
    boot_id: bytes,
    choice: TransportChoice,
    on_failure: Callable[[BaseException], None],
) -> AsyncIterator[TransferThread]:
    """Runs while entered, over ``pool`` and those of the ranks at the other ends of the pipes.

    Raises CannotStart where this machine cannot move blocks. Opening moves a first byte, and
    closing waits for a poll: neither holds up the event loop.
    """
    try:
        ranks = await asyncio.to_thread(_open_ranks, pool, rank_pipes, boot_id, choice)
    except TransportUnavailable as error:
        raise CannotStart(str(error)) from error
    transfers = TransferThread(ranks, on_failure=on_failure)
    transfers.start()
    try:
        yield transfers
    finally:
        await asyncio.to_thread(transfers.stop)


def _open_ranks(
    pool: torch.Tensor,
    rank_pipes: Sequence[Connection],
    boot_id: bytes,
    choice: TransportChoice,
) -> list[Transport]:
    own = open_transport(pool, agent_name(boot_id, 0), choice)
    others = [
        RemoteTransport(pipe, agent_name(boot_id, rank), choice)
        for rank, pipe in enumerate(rank_pipes, 1)
    ]
    return [own, *others]
