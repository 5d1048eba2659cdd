"""One streamed request to a gateway."""

from collections.abc import AsyncIterator

import grpc

from baton.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from batonctl.rpc_failure import command_error


async def stream_answer(
    channel: grpc.aio.Channel,
    request: generation_pb2.GenerateRequest,
    *,
    address: str,
    limit: float,
) -> AsyncIterator[gateway_pb2.GenerateStreamResponse]:
    """The messages of GenerateStream; CommandError if the call fails, `limit` is in seconds."""
    call = gateway_pb2_grpc.GenerationServiceStub(channel).GenerateStream(request, timeout=limit)
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        raise command_error(error, address) from error
    finally:
        call.cancel()
