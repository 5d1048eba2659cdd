"""How Baton's processes open gRPC connections: one factory, one set of options.

gRPC core ignores option names that it does not know without a word, so the names below are the
ones compiled into it (a test looks them up there): the interval a server accepts between idle
pings has no "recv" in its key, unlike the macro that names it in C.
"""

import grpc
import grpc.aio

MESSAGE_LIMIT = 16 * 1024 * 1024
KEEPALIVE_MS = 1000

# Both sides ping every second, also while nothing is called. ``ping_timeout_ms`` is what notices a
# frozen peer: with keepalive_timeout_ms alone it took 61 s, with this 2 s.
KEEPALIVE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *KEEPALIVE_OPTIONS,
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    # Sending is not limited here: the server's answer names the field that is too large.
    ("grpc.max_send_message_length", -1),
    # A retry of either leg is a new attempt for both (protocol 1.2): never let gRPC repeat a call.
    ("grpc.enable_retries", 0),
    # Never send one peer's call over another peer's connection, nor an internal call to a proxy.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # A worker that restarts is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to ``host:port`` (or ``dns:///name:port``), on a connection of its own.

    Connects at the first call. The caller closes it.
    """
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def bind(server: grpc.aio.Server, address: str) -> int:
    """Binds the server to ``host:port`` with the project's credentials; returns the real port.

    Raises RuntimeError if the address cannot be bound.
    """
    return server.add_insecure_port(address)
