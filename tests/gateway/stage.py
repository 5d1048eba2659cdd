"""A whole gateway in front of scripted workers, and a client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest

from baton.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from chassis.channel import open_channel
from chassis.errors import ServiceError
from chassis.metrics import Metrics
from chassis.server import ServerSettings, create_server
from chassis.status import from_rpc_error
from gateway.admission import Admission, AdmissionLimits
from gateway.generation import GenerationLimits
from gateway.memory import HeldMemory
from gateway.metrics import GatewayMetrics
from gateway.model_limits import ModelLimits
from gateway.orchestrator import Orchestrator
from gateway.request_guard import RequestGuard
from gateway.resolver import Resolver
from gateway.router import Router
from gateway.servicer import GenerationServicer
from gateway.text_work import TextWork
from gateway.tokenizer import Tokenizer
from gateway.worker_pool import WorkerPool
from tests.gateway.scripted_workers import (
    MODEL,
    PrefillCall,
    ScriptedDecode,
    ScriptedPrefill,
    SubmitCall,
)


@dataclass(slots=True)
class StageOptions:
    """What a test may want otherwise."""

    prefill: Sequence[ScriptedPrefill] = ()
    decode: Sequence[ScriptedDecode] = ()
    admission: AdmissionLimits = field(default_factory=lambda: AdmissionLimits(256, 256, 30.0))
    limits: GenerationLimits = field(default_factory=lambda: GenerationLimits(4, 4096))
    max_request_seconds: float = 60.0
    max_held_bytes: int = 1 << 29
    text_work: TextWork = field(default_factory=lambda: TextWork(256, 30.0))


class Stage:
    """The parts of the running gateway, with a stub of its service."""

    def __init__(
        self,
        options: StageOptions,
        pool: WorkerPool,
        router: Router,
        orchestrator: Orchestrator,
        queue_lengths: "asyncio.Queue[int]",
        registry: Metrics,
        address: str,
        channel: grpc.aio.Channel,
    ) -> None:
        self.prefill = options.prefill
        self.decode = options.decode
        self.pool = pool
        self.router = router
        self.orchestrator = orchestrator
        self.registry = registry
        self.address = address
        self._queue_lengths = queue_lengths
        self.stub: Any = gateway_pb2_grpc.GenerationServiceStub(channel)

    async def legs(self) -> tuple[PrefillCall, SubmitCall]:
        """The next attempt's two calls, where there is one worker of each role."""
        async with asyncio.timeout(10):
            return await self.prefill[0].calls.get(), await self.decode[0].calls.get()

    async def until_waiting(self, waiting: int) -> None:
        """Returns once the admission queue had that length."""
        async with asyncio.timeout(10):
            while await self._queue_lengths.get() != waiting:
                pass

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def on_stage(tokenizer: Tokenizer, options: StageOptions) -> AsyncIterator[Stage]:
    """Everything on loopback in this process, torn down in reverse order."""
    async with AsyncExitStack() as stack:
        options.prefill = options.prefill or [ScriptedPrefill()]
        options.decode = options.decode or [ScriptedDecode()]
        for worker in (*options.prefill, *options.decode):
            await stack.enter_async_context(worker.serving())
        registry = Metrics()
        metrics = GatewayMetrics(registry, MODEL.name)
        pool = WorkerPool(
            MODEL,
            Resolver([worker.address for worker in options.prefill]),
            Resolver([worker.address for worker in options.decode]),
            refresh_seconds=1.0,
            on_lost=metrics.lost,
        )
        await stack.enter_async_context(pool.running())
        router = Router(pool)
        queue_lengths: asyncio.Queue[int] = asyncio.Queue()

        def on_admission(waiting: int, tokens: int, limit: int | None) -> None:
            metrics.set_admission(waiting, tokens, limit)
            queue_lengths.put_nowait(waiting)

        admission = Admission(options.admission, on_admission)
        memory = HeldMemory(options.max_held_bytes, admission.retry_after, metrics.set_held)
        orchestrator = Orchestrator(
            tokenizer, options.text_work, router, admission, memory, options.limits, metrics.retried
        )
        servicer = GenerationServicer(
            MODEL.name,
            tokenizer,
            options.text_work,
            router,
            orchestrator,
            memory,
            metrics,
            options.max_request_seconds,
        )
        guard = RequestGuard(ModelLimits.of(tokenizer))
        server = create_server(
            ServerSettings(), ["baton.v1.GenerationService"], door=servicer.door, guard=guard
        )
        gateway_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server.grpc)
        await server.start()
        stack.push_async_callback(server.stop, None)
        address = f"127.0.0.1:{server.port}"
        channel = open_channel(address)
        stack.push_async_callback(channel.close)
        yield Stage(options, pool, router, orchestrator, queue_lengths, registry, address, channel)


async def everybody_ready(stage: Stage) -> None:
    """Waits until every scripted worker can be chosen."""
    expected = (len(stage.prefill), len(stage.decode))
    async with asyncio.timeout(10):
        await stage.pool.wait_until(lambda: stage.router.num_ready() == expected)


def request(
    max_tokens: int = 8, token_ids: Sequence[int] = (10, 11, 12), **sampling: Any
) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        prompt=generation_pb2.Prompt(token_ids=generation_pb2.TokenIds(ids=token_ids)),
        sampling=generation_pb2.SamplingParams(max_tokens=max_tokens, **sampling),
    )


def token_ids(messages: Sequence[gateway_pb2.GenerateStreamResponse], choice: int = 0) -> list[int]:
    """All tokens of a choice."""
    deltas = [delta for message in messages for delta in message.deltas if delta.index == choice]
    return [token_id for delta in deltas for token_id in delta.token_ids]


async def read_all(call: Any) -> list[gateway_pb2.GenerateStreamResponse]:
    """The messages that are left, for a test that began with ``read``."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


async def error_of(call: Awaitable[Any]) -> ServiceError:
    """The typed error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)
