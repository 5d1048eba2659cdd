"""Serves a worker of either kind."""

from typing import Protocol

from chassis.background import Background
from chassis.lifecycle import Shutdown, Work, serve_until_shutdown
from chassis.server import Server
from worker.load import LoadBoard
from worker.parts import Parts
from worker.transfer_watch import watch_transfers


class Worker(Work, Protocol):
    """What both kinds have in common."""

    board: LoadBoard

    async def start(self) -> None:
        """Warms up, then takes work."""


async def serve_worker(server: Server, worker: Worker, parts: Parts, shutdown: Shutdown) -> None:
    """Ready after the warm-up, while the transfers are well, and until ``shutdown``."""
    background = Background()

    async def start() -> None:
        await worker.start()
        background.spawn(watch_transfers(parts.transfers, server, worker.board, shutdown))

    try:
        await serve_until_shutdown(server, shutdown, warm_up=start, work=worker)
    finally:
        await background.close()
