"""What the supervisor must know of a service to run it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """The three services, in the order in which they drain: the door first."""

    GATEWAY = "gateway"
    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def health_service(self) -> str:
        """Name under which grpc.health.v1 reports the service's readiness."""
        return _HEALTH_SERVICES[self]


_HEALTH_SERVICES = {
    Role.GATEWAY: "baton.v1.GenerationService",
    Role.PREFILL: "baton.v1.PrefillService",
    Role.DECODE: "baton.v1.DecodeService",
}


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One process to run: `command` serves gRPC at `address` (host:port)."""

    name: str
    role: Role
    command: tuple[str, ...]
    address: str
    env: Mapping[str, str] = field(default_factory=dict)
