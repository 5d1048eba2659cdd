"""Puts a gateway process together and serves it."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from baton.v1 import gateway_pb2_grpc
from chassis import telemetry
from chassis.collector import collector_paused
from chassis.errors import ServiceError
from chassis.lifecycle import CannotStart, Shutdown, serve_page, serve_until_shutdown
from chassis.metrics import Metrics
from chassis.model_store import resolve
from chassis.server import create_server
from gateway.admission import Admission, AdmissionLimits
from gateway.backoff import keep_trying
from gateway.config import GatewaySettings
from gateway.generation import GenerationLimits
from gateway.memory import HeldMemory
from gateway.metrics import GatewayMetrics
from gateway.model_limits import ModelLimits
from gateway.orchestrator import Orchestrator
from gateway.request_guard import RequestGuard
from gateway.resolver import Resolver
from gateway.router import Router
from gateway.served_model import ServedModel
from gateway.servicer import GenerationServicer
from gateway.text_work import TextWork
from gateway.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from gateway.worker_pool import WorkerPool
from modelfiles.errors import ModelFileError
from modelfiles.vocabulary_digest import vocabulary_digest

log = logging.getLogger(__name__)

SERVICES = ("baton.v1.GenerationService",)
# Tokens in flight, by default, in pools of KV: answers end long before their max_tokens, which is
# all that is left of the context where a client does not say.
POOLS_IN_FLIGHT = 8
# At the default of 5 ms each thread that renders a conversation holds up the event loop so long,
# again and again.
SWITCH_INTERVAL = 0.0002


async def serve(
    settings: GatewaySettings, shutdown: Shutdown, *, shares_port: bool = False
) -> None:
    """Runs one gateway process until ``shutdown``.

    It is ready once a compatible pair of workers is; what arrives earlier is answered UNAVAILABLE
    with the reason. ``shares_port``: other processes listen on the same port, and the metrics
    page is the parent's. Raises CannotStart.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    model, tokenizer = await asyncio.to_thread(_load, settings.model)
    async with AsyncExitStack() as stack:
        telemetry.setup("gateway")
        stack.callback(telemetry.shutdown)
        registry = Metrics()
        metrics = GatewayMetrics(registry, model.name)
        pool = WorkerPool(
            model,
            Resolver(settings.prefill_addresses),
            Resolver(settings.decode_addresses),
            settings.dns_refresh,
            metrics.lost,
        )
        await stack.enter_async_context(pool.running())
        router = Router(pool)
        orchestrator, servicer = _service(settings, model.name, tokenizer, router, metrics)

        def on_ready(prefill: int, decode: int) -> None:
            metrics.set_ready(prefill, decode)
            orchestrator.workers_changed()

        await stack.enter_async_context(_counting_workers(pool, router, on_ready))
        server = create_server(
            settings.server,
            SERVICES,
            door=servicer.door,
            guard=RequestGuard(ModelLimits.of(tokenizer)),
            reuse_port=shares_port,
        )
        gateway_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server.grpc)
        if not shares_port:
            registry.count_tasks(asyncio.get_running_loop())
            stack.enter_context(serve_page(registry, settings.server))

        async def pair_is_ready() -> None:
            log.info("live on %s:%d, waits for workers", server.settings.host, server.port)
            await pool.wait_until(router.has_pair)

        await serve_until_shutdown(server, shutdown, warm_up=pair_is_ready, work=orchestrator)


@asynccontextmanager
async def _counting_workers(
    pool: WorkerPool, router: Router, on_ready: Callable[[int, int], None]
) -> AsyncIterator[None]:
    """Tells the count of ready workers, now and when it changes, while entered."""

    async def count() -> None:
        ready = router.num_ready()

        def has_changed() -> bool:
            return router.num_ready() != ready

        while True:
            on_ready(*ready)
            await pool.wait_until(has_changed)
            ready = router.num_ready()

    task = asyncio.create_task(keep_trying("count of ready workers", count))
    try:
        yield
    finally:
        task.cancel()


def _load(name_or_path: str) -> tuple[ServedModel, Tokenizer]:
    """Raises CannotStart naming the file."""
    try:
        with collector_paused():
            model = resolve(name_or_path)
            tokenizer = load_tokenizer(model.path)
            return ServedModel(model.name, vocabulary_digest(model.path)), tokenizer
    except (ModelFileError, ServiceError, TokenizerError) as error:
        raise CannotStart(str(error)) from error


def _service(
    settings: GatewaySettings,
    model: str,
    tokenizer: Tokenizer,
    router: Router,
    metrics: GatewayMetrics,
) -> tuple[Orchestrator, GenerationServicer]:
    def max_tokens() -> int | None:
        if settings.max_tokens_in_flight:
            return settings.max_tokens_in_flight
        pools = router.pool_tokens()
        return None if pools is None else POOLS_IN_FLIGHT * pools

    text_work = TextWork(
        settings.max_queue, settings.max_queue_seconds, on_change=metrics.set_tokenizing
    )
    admission = Admission(
        AdmissionLimits(
            settings.max_in_flight,
            settings.max_queue,
            settings.max_queue_seconds,
            max_tokens,
        ),
        metrics.set_admission,
    )
    memory = HeldMemory(settings.max_held_bytes, admission.retry_after, metrics.set_held)
    limits = GenerationLimits(settings.max_attempts, settings.max_unread_tokens)
    orchestrator = Orchestrator(
        tokenizer, text_work, router, admission, memory, limits, metrics.retried
    )
    servicer = GenerationServicer(
        model,
        tokenizer,
        text_work,
        router,
        orchestrator,
        memory,
        metrics,
        settings.max_request_seconds,
    )
    return orchestrator, servicer
