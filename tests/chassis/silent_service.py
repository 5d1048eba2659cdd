"""A server that is live and otherwise silent; prints its port. Run by tests, killed by them."""

import asyncio

from chassis.server import ServerSettings, create_server


async def main() -> None:
    server = create_server(ServerSettings(), [])
    await server.start()
    print(server.port, flush=True)
    await server.grpc.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
