"""Streams that tell the supervisor how its services are."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.v1 import worker_pb2, worker_pb2_grpc
from chassis.channel import open_channel

# Between attempts to reach a service that does not answer: it may be loading its model.
RETRY_DELAY = 0.1


async def watch_readiness(
    address: str, service: str, on_change: Callable[[bool], None]
) -> NoReturn:
    """Tells whether the service is ready, now and on every change; False while out of reach."""
    request = health_pb2.HealthCheckRequest(service=service)
    while True:
        async with open_channel(address) as channel:
            try:
                async for response in health_pb2_grpc.HealthStub(channel).Watch(request):
                    on_change(response.status == health_pb2.HealthCheckResponse.SERVING)
            except grpc.aio.AioRpcError:
                on_change(False)
        await asyncio.sleep(RETRY_DELAY)


async def watch_load(
    address: str, on_load: Callable[[worker_pb2.WorkerLoad | None], None]
) -> NoReturn:
    """Tells a worker's load as it changes; None while out of reach."""
    while True:
        async with open_channel(address) as channel:
            try:
                watch = worker_pb2_grpc.WorkerServiceStub(channel).Watch(worker_pb2.WatchRequest())
                async for response in watch:
                    on_load(response.load)
            except grpc.aio.AioRpcError:
                on_load(None)
        await asyncio.sleep(RETRY_DELAY)
