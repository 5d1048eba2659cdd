"""Several gateway processes on one port: started, watched, restarted and stopped together."""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.context import SpawnProcess
from typing import Any

from chassis.lifecycle import CLOSE_GRACE, CannotStart, Shutdown, run, serve_page
from chassis.logs import setup_logging
from chassis.metrics import Metrics, forget_process, share_metrics
from chassis.server import ServerSettings
from gateway.backoff import Backoff
from gateway.config import GatewaySettings
from gateway.server import serve

log = logging.getLogger(__name__)

# What a process may take to close beyond its grace before it is killed.
_KILL_AFTER = CLOSE_GRACE + 5.0
# Exit code of a service that failed by its own account (chassis.lifecycle.run).
_FAILED = 1


async def supervise(settings: GatewaySettings, shutdown: Shutdown) -> None:
    """Keeps ``settings.workers`` processes running until ``shutdown``; serves their metrics page.

    The first request to stop drains them, the second one ends them at once. Raises CannotStart
    if the port is taken.
    """
    page = Metrics()
    with share_metrics(), _reserved(settings.server) as port:
        child = replace(settings, server=replace(settings.server, port=port))
        with serve_page(page, settings.server), shutdown.in_service():
            places = [_keep_running(child, shutdown) for _ in range(settings.workers)]
            await asyncio.gather(*places)


async def _keep_running(settings: GatewaySettings, shutdown: Shutdown) -> None:
    backoff = Backoff()
    is_first = True
    while not shutdown.requested.is_set():
        process = multiprocessing.get_context("spawn").Process(target=_child, args=(settings,))
        process.start()
        log.info("gateway process %d started", process.pid)
        await _watch(process, shutdown, settings.server.drain_grace)
        assert process.pid is not None, "a started process has an id"
        forget_process(process.pid)
        if shutdown.requested.is_set():
            return
        log.error("gateway process %d ended with %s", process.pid, process.exitcode)
        if is_first and process.exitcode == _FAILED:
            shutdown.fail(RuntimeError("a gateway process could not start; see its log"))
            return
        is_first = False
        await _first(backoff.wait(), shutdown.requested.wait())


async def _watch(process: SpawnProcess, shutdown: Shutdown, drain_grace: float) -> None:
    """Returns when the process has ended; passes requests to stop on to it."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await _first(ended.wait(), shutdown.requested.wait())
        _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_grace + _KILL_AFTER):
                await _first(ended.wait(), shutdown.forced.wait())
        _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_AFTER):
                await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)
        _signal(process, signal.SIGKILL)
        process.join()


def _signal(process: SpawnProcess, number: signal.Signals) -> None:
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, number)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Returns when one of them is over, and cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@contextmanager
def _reserved(server: ServerSettings) -> Iterator[int]:
    """Holds the port while entered, without listening, so that it stays the processes' own.

    Raises CannotStart if somebody else has it: with SO_REUSEPORT alone, two gateways started by
    mistake on one port would share its calls.
    """
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((server.host, server.port))
        except OSError as error:
            raise CannotStart(f"cannot listen on {server.address}: {error}") from error
        port: int = probe.getsockname()[1]
    with socket.socket(family) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((server.host, port))
        yield port


def _child(settings: GatewaySettings) -> None:
    """One of the processes."""
    # Out of the terminal's group: Ctrl-C reaches the parent, and we hear of it once, from there.
    os.setpgid(0, 0)
    server = settings.server
    setup_logging("gateway", level=server.log_level, form=server.log_format)
    sys.exit(run(partial(_serve_child, settings)))


async def _serve_child(settings: GatewaySettings, shutdown: Shutdown) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a supervisor starts this"
    loop = asyncio.get_running_loop()

    def parent_died() -> None:
        loop.remove_reader(parent.sentinel)
        shutdown.request("the supervisor is gone")

    loop.add_reader(parent.sentinel, parent_died)
    await serve(settings, shutdown, shares_port=True)
