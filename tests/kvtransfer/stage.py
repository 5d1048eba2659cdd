"""The pair of sides that most tests here use."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import torch

from baton.v1 import kv_transfer_pb2_grpc
from chassis.channel import INNER, bind
from chassis.error_interceptor import ErrorInterceptor
from chassis.server import ServerSettings, server_options
from kvtransfer.consumer import Consumer
from kvtransfer.errors import TRANSFER_ERRORS
from kvtransfer.handoff import Chunk, Completion, FirstSample
from kvtransfer.layout import KvLayout
from kvtransfer.lease import LeaseEnd
from kvtransfer.producer import HandoffTimeouts, Producer
from kvtransfer.pull import DEFAULT_TIMEOUTS, Pull, PullTimeouts
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.local import LocalFabric

BLOCK_SIZE = 4
NUM_BLOCKS = 64
LAYOUT = KvLayout(
    model_digest="m",
    dtype="float32",
    num_layers=2,
    num_kv_heads=2,
    head_dim=8,
    block_size=BLOCK_SIZE,
    memory="host",
)
DEFAULT_HANDOFF = HandoffTimeouts(linger=0.2)
WAIT = 20.0
"""Seconds after which a test that waits for an event has failed."""


async def until(condition: Callable[[], bool]) -> None:
    """Yields to the loop until the condition holds."""
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


def new_pool(num_blocks: int, *, filled: bool = False) -> torch.Tensor:
    """A pool of ``num_blocks`` blocks as LAYOUT describes them."""
    shape = (num_blocks, 2, LAYOUT.num_layers, 2, BLOCK_SIZE, LAYOUT.head_dim)
    return torch.randn(shape) if filled else torch.zeros(shape)


def prompt(num_tokens: int) -> list[int]:
    return list(range(1000, 1000 + num_tokens))


def new_attempt() -> bytes:
    return os.urandom(16)


@dataclass(slots=True)
class RecordingListener:
    """What the producer told its worker; ``ended`` resolves per attempt."""

    started_attempts: list[bytes] = field(default_factory=list)
    ends: list[tuple[bytes, LeaseEnd]] = field(default_factory=list)
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def started(self, attempt_id: bytes) -> None:
        self.started_attempts.append(attempt_id)
        self._event.set()

    def lease_ended(self, attempt_id: bytes, how: LeaseEnd) -> None:
        self.ends.append((attempt_id, how))
        self._event.set()

    async def wait_for_start(self, attempt_id: bytes) -> None:
        while attempt_id not in self.started_attempts:
            await self._next()

    async def wait_for_end(self, attempt_id: bytes) -> LeaseEnd:
        while attempt_id not in dict(self.ends):
            await self._next()
        return dict(self.ends)[attempt_id]

    async def _next(self) -> None:
        self._event.clear()
        async with asyncio.timeout(WAIT):
            await self._event.wait()


class Stage:
    """A producer behind a gRPC server, and a consumer."""

    def __init__(
        self,
        prefill: TransferThread,
        decode: TransferThread,
        *,
        fabric: LocalFabric | None = None,
        layout: KvLayout = LAYOUT,
        handoff: HandoffTimeouts = DEFAULT_HANDOFF,
        timeouts: PullTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.fabric = fabric
        self.prefill_boot_id = os.urandom(16)
        self.decode_boot_id = os.urandom(16)
        self.address = ""
        self.listener = RecordingListener()
        self.handoff = handoff
        self.timeouts = timeouts
        self.layout = layout

    async def open(self) -> None:
        self.producer = self.new_producer(self.prefill_boot_id)
        self.consumer = self.new_consumer()
        self.traffic = Traffic()
        self.server, self.address = await serve(self.producer, self.traffic)

    @property
    def handshakes(self) -> int:
        """Handshakes that have arrived."""
        return self.traffic.calls.count("/baton.v1.KvTransferService/Handshake")

    async def hand_over(
        self, num_tokens: int, source: list[int], target: list[int], *, cached_tokens: int = 0
    ) -> Pull:
        """A whole hand-off of a fresh attempt, up to its confirmed release."""
        token_ids, attempt = prompt(num_tokens), new_attempt()
        pull = await self.started(attempt, token_ids, target, cached_tokens=cached_tokens)
        async with asyncio.timeout(WAIT):
            for chunk in chunks_of(token_ids, source, 2 * BLOCK_SIZE):
                self.producer.chunk_ready(attempt, chunk)
            self.producer.complete(attempt, completion_of(token_ids, source))
            await pull.complete()
            await pull.released()
        return pull

    async def started(
        self, attempt: bytes, token_ids: list[int], target: list[int], *, cached_tokens: int = 0
    ) -> Pull:
        """A Pull whose Start has arrived."""
        self.producer.register(attempt, token_ids)
        self.producer.computing(attempt)
        pull = self.pull(attempt, token_ids)
        async with asyncio.timeout(WAIT):
            await pull.computing()
            await pull.start(cached_tokens, target)
            await self.listener.wait_for_start(attempt)
        return pull

    async def close(self) -> None:
        await self.consumer.close()
        await self.server.stop(None)

    async def restart(
        self, *, boot_id: bytes | None = None, handoff: HandoffTimeouts | None = None
    ) -> None:
        """Stops prefill's server and starts another in its place, with the same pool."""
        await self.server.stop(None)
        self.handoff = handoff or self.handoff
        self.prefill_boot_id = boot_id or self.prefill_boot_id
        self.producer = self.new_producer(self.prefill_boot_id)
        port = int(self.address.rpartition(":")[2])
        self.server, self.address = await serve(self.producer, self.traffic, port)

    def new_producer(self, boot_id: bytes) -> Producer:
        return Producer(
            boot_id=boot_id,
            layout=LAYOUT,
            transfers=self.prefill,
            listener=self.listener,
            timeouts=self.handoff,
        )

    def new_consumer(self) -> Consumer:
        return Consumer(
            boot_id=self.decode_boot_id,
            layout=self.layout,
            transfers=self.decode,
            timeouts=self.timeouts,
        )

    def pull(self, attempt_id: bytes, token_ids: list[int]) -> Pull:
        return self.consumer.open(attempt_id, self.address, self.prefill_boot_id, token_ids)

    @property
    def prefill_pool(self) -> torch.Tensor:
        return self.prefill.pool

    @property
    def decode_pool(self) -> torch.Tensor:
        return self.decode.pool


class Traffic(grpc.aio.ServerInterceptor):
    """Counts what arrives at a server: ``calls`` by full name, ``num_bytes`` of Pull messages."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.num_bytes = 0

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        self.calls.append(handler_call_details.method)
        handler = await continuation(handler_call_details)
        if not handler.request_streaming:
            return handler
        return grpc.stream_stream_rpc_method_handler(
            handler.stream_stream,
            lambda data: handler.request_deserializer(self._counted(data)),
            lambda message: self._counted(handler.response_serializer(message)),
        )

    def _counted(self, data: bytes) -> bytes:
        self.num_bytes += len(data)
        return data


async def serve(
    servicer: kv_transfer_pb2_grpc.KvTransferServiceServicer, traffic: Traffic, port: int = 0
) -> tuple[grpc.aio.Server, str]:
    """A server on loopback and its address."""
    server = grpc.aio.server(
        interceptors=[traffic, ErrorInterceptor(TRANSFER_ERRORS)],
        options=server_options(ServerSettings(), INNER, reuse_port=False),
    )
    kv_transfer_pb2_grpc.add_KvTransferServiceServicer_to_server(servicer, server)
    bound = bind(server, f"127.0.0.1:{port}")
    await server.start()
    return server, f"127.0.0.1:{bound}"


def chunks_of(token_ids: list[int], block_ids: list[int], tokens_a_chunk: int) -> list[Chunk]:
    """The prompt's whole blocks, in chunks of ``tokens_a_chunk`` tokens."""
    whole = len(token_ids) // BLOCK_SIZE * BLOCK_SIZE
    return [
        Chunk(
            first,
            min(tokens_a_chunk, whole - first),
            tuple(
                block_ids[first // BLOCK_SIZE : min(first + tokens_a_chunk, whole) // BLOCK_SIZE]
            ),
        )
        for first in range(0, whole, tokens_a_chunk)
    ]


def completion_of(token_ids: list[int], block_ids: list[int], token_id: int = 7) -> Completion:
    """The end of the prompt, with the partial last block where there is one."""
    whole = len(token_ids) // BLOCK_SIZE * BLOCK_SIZE
    tail = len(token_ids) - whole
    last = Chunk(whole, tail, (block_ids[whole // BLOCK_SIZE],)) if tail else None
    return Completion(len(token_ids), (FirstSample(0, token_id),), last)
