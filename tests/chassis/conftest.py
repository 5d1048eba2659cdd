"""A real server on loopback whose handlers do what the test says."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from baton.v1 import gateway_pb2_grpc
from chassis import telemetry
from chassis.channel import PUBLIC, Profile, open_channel
from chassis.door_interceptor import Door
from chassis.error_table import ErrorTable
from chassis.server import Server, ServerSettings, create_server

SERVICE = "baton.v1.GenerationService"


class Scripted(gateway_pb2_grpc.GenerationServiceServicer):
    """Forwards to the handlers of the test."""

    def __init__(self, unary: Any, stream: Any) -> None:
        self._unary, self._stream = unary, stream

    async def Generate(self, request: Any, context: Any) -> Any:
        return await self._unary(request, context)

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for response in self._stream(request, context):
            yield response


@dataclass(frozen=True, slots=True)
class Served:
    """A running server with a channel to it."""

    server: Server
    channel: grpc.aio.Channel
    stub: "gateway_pb2_grpc.GenerationServiceAsyncStub"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def serving(
    unary: Callable[[Any, Any], Awaitable[Any]] | None = None,
    stream: Callable[[Any, Any], AsyncIterator[Any]] | None = None,
    errors: ErrorTable | None = None,
    untraced: Sequence[str] = (),
    profile: Profile = PUBLIC,
    door: Door | None = None,
) -> AsyncIterator[Served]:
    server = create_server(
        ServerSettings(), [SERVICE], errors=errors, untraced=untraced, profile=profile, door=door
    )
    # Its other methods are not called.
    servicer = Scripted(unary, stream)  # type: ignore[abstract]
    gateway_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server.grpc)
    await server.start()
    channel = open_channel(f"127.0.0.1:{server.port}", profile)
    try:
        yield Served(server, channel, gateway_pb2_grpc.GenerationServiceStub(channel))
    finally:
        await channel.close()
        await server.stop()


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve() -> Serve:
    return serving


@pytest.fixture
def trace_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where this process's spans go while the test runs; nothing else of OTEL_* is set."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BATON_TRACE_DIR", str(tmp_path / "traces"))
    return tmp_path / "traces"


@pytest.fixture
def tracing(trace_dir: Path) -> Iterator[Path]:
    """Tracing to files, as a service has it."""
    telemetry.setup("gateway")
    yield trace_dir
    telemetry.shutdown()
