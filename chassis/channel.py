"""How Baton's processes open gRPC connections: one factory, two profiles.

gRPC core ignores option names that it does not know without a word, so the names below are the
ones compiled into it (a test looks them up there): the interval a server accepts between idle
pings has no "recv" in its key, unlike the macro that names it in C.
"""

from dataclasses import dataclass

import grpc
import grpc.aio

MESSAGE_LIMIT = 16 * 1024 * 1024
WINDOW = 1024 * 1024

Options = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """How the two ends of a connection watch each other; times in seconds.

    A dead peer breaks its connections at once. Pings are for one that is frozen, or behind a
    network that drops packets: after ``ping_after`` without a byte the peer is pinged, and after
    ``ping_timeout`` more the connection is given up, with every call on it. ``pings_when_idle``:
    also while there is no call.
    """

    name: str
    ping_after: float
    ping_timeout: float
    pings_when_idle: bool

    @property
    def options(self) -> Options:
        """What both ends set. Without ``ping_timeout_ms`` a frozen peer is noticed after 61 s."""
        timeout_ms = round(self.ping_timeout * 1000)
        return (
            ("grpc.keepalive_time_ms", round(self.ping_after * 1000)),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            ("grpc.http2.ping_timeout_ms", timeout_ms),
            ("grpc.keepalive_permit_without_calls", int(self.pings_when_idle)),
            ("grpc.http2.max_pings_without_data", 0),
        )


# What a stream may have on its way to a reader that does not read. Probing for the bandwidth, which
# is on by default, sets other windows than the one asked for, up to several times as large.
WINDOW_OPTIONS: Options = (
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.http2.bdp_probe", 0),
)

PUBLIC = Profile("public", ping_after=30.0, ping_timeout=20.0, pings_when_idle=False)
"""Between a client and the gateway, or a tool and any service: nothing hangs on speed here, and a
machine under full load must never look like a dead one."""

INNER = Profile("inner", ping_after=1.0, ping_timeout=4.0, pings_when_idle=True)
"""Between services: a frozen worker holds up its requests until it is noticed."""


def open_channel(address: str, profile: Profile = PUBLIC) -> grpc.aio.Channel:
    """A channel to ``host:port`` (or ``dns:///name:port``), on a connection of its own.

    Connects at the first call. The caller closes it.
    """
    return grpc.aio.insecure_channel(address, options=channel_options(profile))


def channel_options(profile: Profile) -> Options:
    """The options of every channel."""
    return (
        *profile.options,
        ("grpc.max_receive_message_length", MESSAGE_LIMIT),
        # Sending is not limited here: the server's answer names the field that is too large.
        ("grpc.max_send_message_length", -1),
        # A retry of either leg is a new attempt for both (protocol 1.2): gRPC repeats no call.
        ("grpc.enable_retries", 0),
        # Never send one peer's call over another peer's connection, nor an internal one to a proxy.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        # A worker that restarts is found again within a second.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        *WINDOW_OPTIONS,
    )


def bind(server: grpc.aio.Server, address: str) -> int:
    """Binds the server to ``host:port`` with the project's credentials; returns the real port.

    Raises RuntimeError if the address cannot be bound.
    """
    return server.add_insecure_port(address)
