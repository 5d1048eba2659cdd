"""The standard health service: liveness under "", readiness under each service's name.

The servicer of grpcio-health-checking is not used: when one of several watchers of a service
leaves, it stops telling the others.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers at once from a table, whatever the service is busy with.

    Liveness stays SERVING until the process ends; a service's name is NOT_SERVING before it is
    ready, while it drains, and whenever it says so. Event loop only.
    """

    def __init__(self) -> None:
        self._status: dict[str, int] = {"": SERVING}
        self._changed = asyncio.Event()

    def set(self, service: str, *, ready: bool) -> None:
        """Sets the readiness of a service (full proto name) and tells all watchers."""
        self._status[service] = SERVING if ready else NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        status = self._status.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        last = None
        while True:
            changed = self._changed
            status = self._status.get(request.service, SERVICE_UNKNOWN)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            await changed.wait()


def add_health(health: Health, server: grpc.aio.Server) -> None:
    """Registers the health service on a server."""
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
