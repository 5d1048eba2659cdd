"""Both workers in this process: the real ones over gRPC on loopback, with a tiny model.

Blocks move over the local transport, so that a test says when.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from baton.v1 import decode_pb2_grpc, kv_transfer_pb2_grpc, prefill_pb2_grpc, worker_pb2
from chassis.channel import INNER, open_channel
from chassis.metrics import Metrics
from chassis.server import Server, ServerSettings, create_server
from decode_svc.config import DecodeSettings
from decode_svc.servicer import DecodeServicer
from decode_svc.worker import DecodeWorker
from kvtransfer.errors import TRANSFER_ERRORS
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.local import LocalFabric, LocalTransport
from prefill_svc.config import PrefillSettings
from prefill_svc.servicer import PrefillServicer
from prefill_svc.worker import PrefillWorker
from tests.e2e.split_client import SplitClient
from worker.identity import Identity
from worker.loaded import load_model
from worker.parts import Parts
from worker.servicer import add_worker_servicer
from worker.settings import EngineSettings

SERVER = ServerSettings()
ENGINE = EngineSettings(
    dtype="float32", kv_memory_bytes=1 << 20, block_size=4, max_num_batched_tokens=32, threads=1
)


@dataclass(frozen=True, slots=True)
class WorkerPair:
    """The workers and their parts by role, what plays the gateway, and the fabric in between."""

    prefill: PrefillWorker
    decode: DecodeWorker
    client: SplitClient
    parts: dict[str, Parts]
    fabric: LocalFabric
    failures: list[BaseException]
    """What the workers would have ended the process for."""


@asynccontextmanager
async def worker_pair(
    model: Path,
    *,
    engine: EngineSettings = ENGINE,
    prefill: PrefillSettings | None = None,
    decode: DecodeSettings | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[WorkerPair]:
    """Ready; ``engine`` replaces that of both settings, ``clock`` is that of decode's books."""
    engine = replace(engine, model=str(model))
    prefill = replace(prefill or PrefillSettings(server=SERVER), engine=engine)
    decode = replace(decode or DecodeSettings(server=SERVER), engine=engine)
    fabric, failures = LocalFabric(), list[BaseException]()
    async with AsyncExitStack() as stack:
        parts = {
            role: stack.enter_context(_open_parts(role, engine, fabric, failures))
            for role in ("prefill", "decode")
        }
        prefilling = await stack.enter_async_context(
            aclosing(PrefillWorker(prefill, parts["prefill"]))
        )
        decoding = await stack.enter_async_context(
            aclosing(DecodeWorker(decode, parts["decode"], clock))
        )
        servers = [
            await stack.enter_async_context(_serving(server))
            for server in (
                _prefill_server(prefilling, parts["prefill"], engine),
                _decode_server(decoding, parts["decode"], decode),
            )
        ]
        await prefilling.start()
        await decoding.start()
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        channels = [await stack.enter_async_context(open_channel(address)) for address in addresses]
        client = SplitClient(channels[0], channels[1], addresses[0])
        await client.open()
        stack.push_async_callback(client.close)
        yield WorkerPair(prefilling, decoding, client, parts, fabric, failures)


@contextmanager
def _open_parts(
    name: str, engine: EngineSettings, fabric: LocalFabric, failures: list[BaseException]
) -> Iterator[Parts]:
    model = load_model(engine, max_decode_batch=32, on_failure=failures.append)
    transport = LocalTransport(model.runner.kv_cache.tensor, name, fabric)
    transfers = TransferThread([transport], on_failure=failures.append)
    transfers.start()
    try:
        yield Parts(Identity.draw(), model, transfers, Metrics(), failures.append)
    finally:
        transfers.stop()


def _prefill_server(worker: PrefillWorker, parts: Parts, engine: EngineSettings) -> Server:
    server = create_server(SERVER, (), errors=TRANSFER_ERRORS, profile=INNER)
    servicer = PrefillServicer(worker, parts, engine.max_request_seconds)
    prefill_pb2_grpc.add_PrefillServiceServicer_to_server(servicer, server.grpc)
    kv_transfer_pb2_grpc.add_KvTransferServiceServicer_to_server(worker.producer, server.grpc)
    add_worker_servicer(server, worker_pb2.WORKER_ROLE_PREFILL, parts, worker.board)
    return server


def _decode_server(worker: DecodeWorker, parts: Parts, settings: DecodeSettings) -> Server:
    server = create_server(SERVER, (), errors=TRANSFER_ERRORS, profile=INNER)
    servicer = DecodeServicer(worker, parts.identity.boot_id, settings.session_stall)
    decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server.grpc)
    add_worker_servicer(server, worker_pb2.WORKER_ROLE_DECODE, parts, worker.board)
    return server


@asynccontextmanager
async def _serving(server: Server) -> AsyncIterator[Server]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
