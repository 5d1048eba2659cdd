"""The gRPC server of a service: one factory, one set of options, health and reflection."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import grpc.aio
from grpc_reflection.v1alpha import reflection

from chassis.channel import MESSAGE_LIMIT, PUBLIC, WINDOW_OPTIONS, Options, Profile, bind
from chassis.door_interceptor import Door, DoorInterceptor
from chassis.error_interceptor import ErrorInterceptor
from chassis.error_table import ErrorTable
from chassis.health import SERVICE_NAME as HEALTH_NAME
from chassis.health import Health, add_health
from chassis.request_interceptor import Guard, RequestInterceptor
from chassis.settings import setting
from chassis.trace_interceptor import TraceInterceptor

# Above the limit a request is read, refused and its field named; above this gRPC drops it unread.
HARD_MESSAGE_LIMIT = 4 * MESSAGE_LIMIT
METRICS_PORT_OFFSET = 1000


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a service listens and how it stops; meant to be nested with ``group``."""

    host: str = setting("127.0.0.1", help="address to listen on")
    port: int = setting(0, help="port to listen on, 0 for a free one", minimum=0, maximum=65535)
    metrics_port: int | None = setting(
        None, help="port of the metrics page; by default port + 1000", minimum=0, maximum=65535
    )
    drain_grace: float = setting(
        30.0, help="seconds that running work gets to finish after SIGTERM", minimum=0
    )
    max_concurrent_streams: int = setting(
        10_000, help="calls that one connection may have open", minimum=1
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", help="least serious log lines to write"
    )
    log_format: Literal["text", "json"] = setting(
        "text", help="form of the log lines: key=value pairs, or JSON objects"
    )

    @property
    def address(self) -> str:
        """``host:port`` to bind."""
        return f"{self.host}:{self.port}"

    @property
    def page_port(self) -> int:
        """Port of the metrics page; a free one (0) where the service takes a free one."""
        if self.metrics_port is not None:
            return self.metrics_port
        return self.port + METRICS_PORT_OFFSET if self.port else 0


class Server:
    """A grpc.aio server with the project's interceptors, health and reflection.

    Register servicers on ``grpc`` before ``start``. ``services`` are the full proto names whose
    readiness it reports; they are not ready until ``set_ready``. Event loop only.
    """

    def __init__(
        self,
        settings: ServerSettings,
        services: Sequence[str],
        *,
        errors: ErrorTable,
        profile: Profile = PUBLIC,
        door: Door | None = None,
        guard: Guard | None = None,
        reuse_port: bool = False,
        untraced: Sequence[str] = (),
    ) -> None:
        self.settings = settings
        self.health = Health()
        self._services = tuple(services)
        self.grpc = grpc.aio.server(
            interceptors=(
                *((DoorInterceptor(door),) if door is not None else ()),
                TraceInterceptor(untraced),
                ErrorInterceptor(errors),
                RequestInterceptor(MESSAGE_LIMIT, guard),
            ),
            options=server_options(settings, profile, reuse_port=reuse_port),
        )
        add_health(self.health, self.grpc)
        names = (*self._services, HEALTH_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)
        self.set_ready(False)
        self._port = 0

    @property
    def port(self) -> int:
        """The port in use; known once started."""
        return self._port

    async def start(self) -> None:
        """Binds and serves, live but not ready. Raises RuntimeError if the port is taken."""
        self._port = bind(self.grpc, self.settings.address)
        await self.grpc.start()

    def set_ready(self, ready: bool) -> None:
        """Says on every service's health name whether it can take work."""
        for service in self._services:
            self.health.set(service, ready=ready)

    async def stop(self, grace: float | None = None) -> None:
        """Takes no more calls; ends those still open after ``grace`` seconds (None: at once)."""
        self.set_ready(False)
        await self.grpc.stop(grace)


def create_server(
    settings: ServerSettings,
    services: Sequence[str],
    *,
    errors: ErrorTable | None = None,
    profile: Profile = PUBLIC,
    door: Door | None = None,
    guard: Guard | None = None,
    reuse_port: bool = False,
    untraced: Sequence[str] = (),
) -> Server:
    """A server that is not started yet.

    ``errors`` translates the exceptions of the packages below; ``profile`` says how it watches its
    callers; ``door`` may refuse calls unread, ``guard`` messages by their bytes; ``reuse_port``
    lets several processes share the port; ``untraced`` names methods or services, by prefix
    (``/baton.v1.KvTransferService/``), that get no span of their own.
    """
    return Server(
        settings,
        services,
        errors=errors or ErrorTable(),
        profile=profile,
        door=door,
        guard=guard,
        reuse_port=reuse_port,
        untraced=untraced,
    )


def server_options(settings: ServerSettings, profile: Profile, *, reuse_port: bool) -> Options:
    """The options of every server; channel.py says why the keepalive ones are what they are."""
    return (
        *profile.options,
        # Whoever calls may ping as often as it likes, also on a silent connection, for ever.
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_receive_message_length", HARD_MESSAGE_LIMIT),
        ("grpc.max_send_message_length", MESSAGE_LIMIT),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        *WINDOW_OPTIONS,
        # Off by default: two services on one port by accident must fail, not share its calls.
        ("grpc.so_reuseport", int(reuse_port)),
    )
