"""The pair of sides that most tests here use."""

import asyncio
import os
from dataclasses import dataclass, field

import grpc.aio
import torch

from baton.v1 import kv_transfer_pb2_grpc
from chassis.channel import bind
from chassis.error_interceptor import ErrorInterceptor
from kvtransfer.consumer import Consumer
from kvtransfer.errors import TRANSFER_ERRORS
from kvtransfer.handoff import Chunk, Completion, FirstSample
from kvtransfer.layout import HeadRange, KvLayout
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
    ranks=(HeadRange(0, 2),),
)
DEFAULT_HANDOFF = HandoffTimeouts()
WAIT = 20.0
"""Seconds after which a test that waits for an event has failed."""


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
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
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
        self.server, self.address = await serve(self.producer)

    async def close(self) -> None:
        await self.consumer.close()
        await self.server.stop(None)

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


async def serve(producer: Producer) -> tuple[grpc.aio.Server, str]:
    """A server on loopback and its address."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor(TRANSFER_ERRORS)])
    kv_transfer_pb2_grpc.add_KvTransferServiceServicer_to_server(producer, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


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
