"""Takes a worker out of rotation while its transfers are in trouble."""

import asyncio
import logging

from chassis.lifecycle import Shutdown
from chassis.server import Server
from kvtransfer.transfer_thread import TransferThread
from worker.load import LoadBoard

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
TROUBLE_SECONDS = 10.0


async def watch_transfers(
    transfers: TransferThread, server: Server, board: LoadBoard, shutdown: Shutdown
) -> None:
    """Runs from the moment the worker is ready until ``shutdown`` is requested.

    Trouble counts when it is seen twice: a process that was stopped for a while has no more than
    the time to catch up to lose.
    """
    suspect = in_trouble = False
    while not shutdown.requested.is_set():
        await asyncio.sleep(CHECK_SECONDS)
        trouble = transfers.trouble(TROUBLE_SECONDS)
        was_suspect, suspect = suspect, trouble is not None
        was_in_trouble, in_trouble = in_trouble, suspect and was_suspect
        if in_trouble == was_in_trouble or shutdown.requested.is_set():
            continue
        if in_trouble:
            log.error("not ready: %s", trouble)
        else:
            log.info("ready again: the transfers are well")
        board.set_accepting(not in_trouble)
        server.set_ready(not in_trouble)
