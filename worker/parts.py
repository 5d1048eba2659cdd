"""What both kinds of worker are made of, opened in order and closed in reverse."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from chassis import telemetry
from chassis.lifecycle import Shutdown, serve_page
from chassis.metrics import Metrics
from chassis.server import ServerSettings
from kvtransfer.transfer_thread import TransferThread
from worker.identity import Identity
from worker.loaded import LoadedModel, load_model
from worker.settings import EngineSettings
from worker.switch_interval import SWITCH_INTERVAL
from worker.transfers import open_transfers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """``on_failure`` ends the process; any thread may call it."""

    identity: Identity
    model: LoadedModel
    transfers: TransferThread
    metrics: Metrics
    on_failure: Callable[[BaseException], None]


@asynccontextmanager
async def open_parts(
    service: str,
    server: ServerSettings,
    engine: EngineSettings,
    *,
    max_decode_batch: int | None,
    shutdown: Shutdown,
) -> AsyncIterator[Parts]:
    """Loads the model, opens tracing, transfers and the metrics page. Raises CannotStart."""
    loop = asyncio.get_running_loop()
    sys.setswitchinterval(SWITCH_INTERVAL)

    def on_failure(error: BaseException) -> None:
        loop.call_soon_threadsafe(shutdown.fail, error)

    identity = Identity.draw()
    model = await asyncio.to_thread(
        load_model, engine, max_decode_batch=max_decode_batch, on_failure=on_failure
    )
    log.info(
        "loaded %s: %s in %s memory, %d ranks of %d threads, %d blocks of %d tokens",
        model.name,
        model.layout.dtype,
        model.layout.memory,
        model.runner.num_ranks,
        engine.num_threads,
        model.num_blocks,
        model.limits.block_size,
    )
    telemetry.setup(service, identity.boot_id.hex(), tensor_parallel_size=model.runner.num_ranks)
    try:
        metrics = Metrics()
        metrics.count_tasks(loop)
        pool, pipes = model.runner.kv_cache.tensor, model.runner.second_pipes
        async with open_transfers(
            pool, pipes, identity.boot_id, engine.transport, on_failure
        ) as transfers:
            with serve_page(metrics, server):
                yield Parts(identity, model, transfers, metrics, on_failure)
    finally:
        await asyncio.to_thread(model.runner.close)
        telemetry.shutdown()
