"""The processes of a worker's ranks."""

import asyncio
import os

import psutil


def rank_pids(worker: int) -> list[int]:
    """Of the ranks, but for the first, of the worker with this process id: its only children."""
    return [child.pid for child in psutil.Process(worker).children()]


async def until_gone(descriptor: int) -> None:
    """Returns once the process of a pidfd has ended; closes the descriptor."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        async with asyncio.timeout(60):
            await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
