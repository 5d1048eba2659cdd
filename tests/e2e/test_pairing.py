"""A decode worker pairs when it is told of a prefill worker, not at the first request."""

import asyncio
import os
from typing import Any

import grpc
import grpc.aio

from baton.v1 import decode_pb2, kv_transfer_pb2, kv_transfer_pb2_grpc
from chassis.channel import bind
from tests.e2e.prompts import prompt
from tests.e2e.split_client import SplitClient


class Introduced(kv_transfer_pb2_grpc.KvTransferServiceServicer):
    """A prefill worker that notes who shakes hands, and refuses."""

    def __init__(self) -> None:
        self.request: asyncio.Future[kv_transfer_pb2.HandshakeRequest] = asyncio.Future()

    async def Handshake(self, request: kv_transfer_pb2.HandshakeRequest, context: Any) -> Any:
        self.request.set_result(request)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not with you")


async def test_a_decode_worker_shakes_hands_as_soon_as_it_is_told_and_survives_a_refusal(
    client: SplitClient,
) -> None:
    prefill = Introduced()  # type: ignore[abstract]  # nobody gets as far as Pull
    boot_id = os.urandom(16)
    server = grpc.aio.server()
    kv_transfer_pb2_grpc.add_KvTransferServiceServicer_to_server(prefill, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    try:
        address = f"127.0.0.1:{port}"
        await client.send(pair=decode_pb2.Pair(prefill_address=address, prefill_boot_id=boot_id))
        handshake = await prefill.request
    finally:
        await server.stop(None)
    assert handshake.boot_id == client.boot_ids["decode"]
    assert handshake.peer_boot_id == boot_id
    assert len(await client.generate(prompt(20, seed=60), temperature=0.0, max_tokens=2)) == 1
