"""The life of a service process: start, ready, drain, stop.

async def serve(shutdown: Shutdown) -> None:
    async with AsyncExitStack() as stack:          # closes in reverse order of opening
        worker = await stack.enter_async_context(Worker(settings))
        server = create_server(settings.server, SERVICES, errors=TABLE)
        add_PrefillServiceServicer_to_server(PrefillServicer(worker), server.grpc)
        await serve_until_shutdown(server, shutdown, work=worker)

sys.exit(run(serve))
"""

import asyncio
import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import uvloop

from chassis.metrics import Metrics
from chassis.server import Server, ServerSettings

log = logging.getLogger(__name__)

# Callers that send something while they hear that the service drains are answered so, not cut off.
DRAIN_LINGER = 0.5
# Ends the streams that outlive the drain (health and load watches) without cutting last messages.
CLOSE_GRACE = 0.5
# What closing may take before the process ends without it: something hangs then, or computes on.
CLOSE_SECONDS = 10.0
CLOSE_AT_ONCE_SECONDS = 2.0


class Shutdown:
    """Tells a service to stop. Event loop only.

    While the service is starting or closing, a request cancels its ``main``; in between the first
    one starts the drain and the second one ends it.
    """

    def __init__(self, main: "asyncio.Task[None] | None" = None) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()
        self.failure: BaseException | None = None
        self._main = main
        self._draining_helps = False

    def request(self, why: str) -> None:
        """Asks for a drain; asked again, for an end at once."""
        if self.requested.is_set():
            log.warning("stopping at once: %s", why)
            self.forced.set()
        else:
            log.info("stopping: %s", why)
            self.requested.set()
        if not self._draining_helps and self._main is not None:
            self._main.cancel()
            self.end_soon()

    def end_soon(self) -> None:
        """Closing begins: the process ends within seconds, whether that comes to an end or not."""
        seconds = CLOSE_AT_ONCE_SECONDS if self.forced.is_set() else CLOSE_SECONDS
        guard = threading.Timer(seconds, self._give_up, (seconds,))
        guard.daemon = True
        guard.start()

    def _give_up(self, seconds: float) -> None:
        log.error("not closed after %g s: ending anyway", seconds)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(0 if self.requested.is_set() and self.failure is None else 1)

    def fail(self, error: BaseException) -> None:
        """Ends the process with exit code 1, without a drain: the service cannot go on."""
        if self.failure is None:
            self.failure = error
        self.requested.set()
        self.request(f"{type(error).__name__}: {error}")

    @contextmanager
    def in_service(self) -> Iterator[None]:
        """While entered, requests start and end the drain instead of cancelling."""
        self._draining_helps = True
        try:
            yield
        finally:
            self._draining_helps = False


class Work(Protocol):
    """What a service does, as its drain sees it."""

    async def drain(self) -> None:
        """Takes nothing new from now on; returns when nothing is left."""

    def hand_over(self) -> None:
        """Ends what is left in a way that lets callers go on with it elsewhere."""


class CannotStart(Exception):
    """A setting, a file or this machine is not as it must be; the message says what to change.

    Raised by ``main``; logged without a traceback, exit code 1.
    """


def run(main: Callable[[Shutdown], Coroutine[Any, Any, None]]) -> int:
    """Runs a service on uvloop until it has stopped; returns the process's exit code.

    SIGTERM and SIGINT stop it. 0 after an orderly end, also one during the start; 1 after a
    failure, which is logged.
    """
    return uvloop.run(_run(main))


async def _run(main: Callable[[Shutdown], Coroutine[Any, Any, None]]) -> int:
    shutdown = Shutdown(asyncio.current_task())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shutdown.request, number.name)
    try:
        await main(shutdown)
    except asyncio.CancelledError:
        if not shutdown.requested.is_set():
            raise
    except CannotStart as error:
        log.error("cannot start: %s", error)
        return 1
    except Exception as error:
        shutdown.failure = shutdown.failure or error
    if shutdown.failure is not None:
        log.error("service failed: %s", shutdown.failure, exc_info=shutdown.failure)
        return 1
    log.info("stopped")
    return 0


@contextmanager
def serve_page(metrics: Metrics, settings: ServerSettings) -> Iterator[None]:
    """Serves the metrics page while entered. Raises CannotStart if its port is taken."""
    with ExitStack() as stack:
        try:
            stack.enter_context(metrics.serve(settings.host, settings.page_port))
        except OSError as error:
            where = f"{settings.host}:{settings.page_port}"
            text = f"cannot serve metrics on {where}: {error.strerror or error}"
            raise CannotStart(text) from error
        yield


async def serve_until_shutdown(
    server: Server,
    shutdown: Shutdown,
    *,
    warm_up: Callable[[], Coroutine[Any, Any, None]] | None = None,
    work: Work | None = None,
) -> None:
    """Starts the server, becomes ready after ``warm_up``, and returns when it has stopped.

    On shutdown the service names turn NOT_SERVING and ``work`` drains, for at most ``drain_grace``
    seconds; then what is left is handed over. A second signal cuts both short. Calls go on being
    served meanwhile, so that work in flight can still open its streams.
    Raises CannotStart if the port is taken.
    """
    try:
        await server.start()
    except RuntimeError as error:
        raise CannotStart(f"cannot listen on {server.settings.address}: {error}") from error
    try:
        if warm_up is not None:
            await warm_up()
        with shutdown.in_service():
            server.set_ready(True)
            log.info("ready on %s:%d", server.settings.host, server.port)
            await shutdown.requested.wait()
            server.set_ready(False)
            if work is not None:
                await _drain(work, shutdown, server.settings.drain_grace)
    finally:
        shutdown.end_soon()
        await server.stop(None if shutdown.forced.is_set() else CLOSE_GRACE)


async def _drain(work: Work, shutdown: Shutdown, grace: float) -> None:
    draining = asyncio.ensure_future(_drain_and_linger(work))
    forced = asyncio.ensure_future(shutdown.forced.wait())
    await asyncio.wait([draining, forced], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    if not draining.done() and not forced.done():
        log.warning("work may be left after %g s of draining: handing it over", grace)
        work.hand_over()
    forced.cancel()
    draining.cancel()
    outcome = (await asyncio.gather(draining, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        shutdown.fail(outcome)


async def _drain_and_linger(work: Work) -> None:
    # In this order: the drain's first act is to refuse.
    await asyncio.gather(work.drain(), asyncio.sleep(DRAIN_LINGER))
