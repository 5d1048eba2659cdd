"""Settings of the gateway."""

from dataclasses import dataclass

from chassis.server import ServerSettings
from chassis.settings import group, setting


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Takes prompts over gRPC and has prefill and decode workers answer them."""

    server: ServerSettings = group(ServerSettings, port=7100)
    model: str = setting(
        "smollm2-135m",
        help="name in the model store, path of a GGUF file, or of a Hugging Face folder; "
        "the same as the workers'",
    )
    prefill_addresses: tuple[str, ...] = setting(
        ("127.0.0.1:7101",),
        help="prefill workers: host:port, or dns:///name:port for all that the name stands for",
    )
    decode_addresses: tuple[str, ...] = setting(
        ("127.0.0.1:7102",),
        help="decode workers: host:port, or dns:///name:port for all that the name stands for",
    )
    dns_refresh: float = setting(
        5.0, help="seconds between two look-ups of dns:/// names", minimum=0.1
    )
    workers: int = setting(
        1, help="gateway processes that share the port, and one metrics page", minimum=1
    )
    max_in_flight: int = setting(256, help="requests that one process works on at once", minimum=1)
    max_queue: int = setting(
        256, help="requests that may wait for one of these places, in each process", minimum=0
    )
    max_queue_seconds: float = setting(
        30.0, help="seconds that a request may wait for a place", minimum=0
    )
    max_tokens_in_flight: int = setting(
        0,
        help="tokens of prompts and answers (max_tokens) that one process works on at once; "
        "0: eight times what the pools of its decode workers hold",
        minimum=0,
    )
    max_held_bytes: int = setting(
        1 << 29,
        help="bytes of requests, and of answers that wait for their clients, in each process",
        minimum=1 << 26,
    )
    max_request_seconds: float = setting(
        600.0, help="seconds of a request that has no deadline", minimum=0.001
    )
    max_attempts: int = setting(
        8, help="tries of a request whose workers ask for a new attempt", minimum=1
    )
    max_unread_tokens: int = setting(
        4096,
        help="tokens, or as many log probabilities, that may wait for a client that does not read",
        minimum=1,
    )
