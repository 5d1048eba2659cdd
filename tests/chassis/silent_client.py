"""Calls GenerateStream at the address in argv and reads for ever. Run by tests, killed by them."""

import asyncio
import sys

from baton.v1 import gateway_pb2_grpc
from baton.v1.generation_pb2 import GenerateRequest
from chassis.channel import INNER, open_channel


async def main() -> None:
    async with open_channel(sys.argv[1], INNER) as channel:
        async for _ in gateway_pb2_grpc.GenerationServiceStub(channel).GenerateStream(
            GenerateRequest()
        ):
            pass


if __name__ == "__main__":
    asyncio.run(main())
