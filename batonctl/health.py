"""`baton health`: the probe that container health checks call."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from batonctl.errors import UnreachableError
from chassis.channel import open_channel


def run_health(address: str, service: str, timeout: float) -> None:
    """Prints the status; UnreachableError unless it is SERVING."""
    status = asyncio.run(check_health(address, service, timeout))
    if status != "SERVING":
        raise UnreachableError(f"{service or 'the process'} at {address} is {status}")
    print(status)


async def check_health(address: str, service: str, limit: float) -> str:
    """The name of the status, or of the gRPC code if the call failed."""
    request = health_pb2.HealthCheckRequest(service=service)
    async with open_channel(address) as channel:
        try:
            response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=limit)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
