"""A service with one call that ends when a file appears. Run by tests; argv: folder, behaviour."""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from baton.v1 import gateway_pb2_grpc
from baton.v1.gateway_pb2 import GenerateStreamResponse
from chassis import lifecycle
from chassis.errors import Unavailable
from chassis.lifecycle import Shutdown, run, serve_until_shutdown
from chassis.logs import setup_logging
from chassis.server import ServerSettings, create_server

SERVICE = "baton.v1.GenerationService"


class Slow(gateway_pb2_grpc.GenerationServiceServicer):
    """Each call lasts until the folder holds a file named as its model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = 0
        self._is_draining = False
        self._handed_over = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def GenerateStream(self, request: Any, context: Any) -> Any:
        if self._is_draining:
            raise Unavailable("no more", reason="DRAINING")
        self._calls += 1
        self._idle.clear()
        try:
            yield GenerateStreamResponse()
            # A file and not an event: the test that decides is another process.
            while not (self._folder / request.model).exists():
                if self._handed_over:
                    raise Unavailable("not here", reason="HANDED_OVER")
                await asyncio.sleep(0.01)
            yield GenerateStreamResponse()
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def drain(self) -> None:
        """Waits until no call is left."""
        self._is_draining = True
        await self._idle.wait()

    def hand_over(self) -> None:
        """Ends the calls that are left."""
        self._handed_over = True


async def serve(shutdown: Shutdown) -> None:
    """Starts, serves and stops; leaves marks of how far it came."""
    folder, behaviour = Path(sys.argv[1]), sys.argv[2]
    grace = 0.05 if behaviour == "impatient" else 600.0
    servicer = Slow(folder)  # type: ignore[abstract]  # one method is enough
    if behaviour == "lingers":
        lifecycle.DRAIN_LINGER = 600.0
    lifecycle.CLOSE_AT_ONCE_SECONDS = 0.5

    async def warm_up() -> None:
        (folder / "warming").touch()
        if behaviour == "warms for ever":
            await asyncio.Event().wait()
        if behaviour == "cannot start":
            raise RuntimeError("no such model")

    async with AsyncExitStack() as stack:
        stack.callback((folder / "closed first opened").touch)
        if behaviour == "never closes":
            stack.callback(time.sleep, 600)
        server = create_server(ServerSettings(drain_grace=grace), [SERVICE])
        gateway_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server.grpc)
        if behaviour == "fails":
            asyncio.get_running_loop().call_later(0.1, shutdown.fail, RuntimeError("engine died"))
        stack.callback((folder / "closed last opened").touch)
        await server.start()
        print(server.port, flush=True)
        await serve_until_shutdown(server, shutdown, warm_up=warm_up, work=servicer)


if __name__ == "__main__":
    setup_logging("gateway")
    sys.exit(run(serve))
