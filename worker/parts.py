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
from worker.transfers import open_transfers

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0002


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
    # At the default a busy event loop wakes the engine thread 5 ms late.
    sys.setswitchinterval(SWITCH_INTERVAL)

    def on_failure(error: BaseException) -> None:
        loop.call_soon_threadsafe(shutdown.fail, error)

    identity = Identity.draw()
    model = await asyncio.to_thread(load_model, engine, max_decode_batch=max_decode_batch)
    log.info(
        "loaded %s: %s in %s memory, %d threads, %d blocks of %d tokens",
        model.name,
        model.layout.dtype,
        model.layout.memory,
        engine.num_threads,
        model.num_blocks,
        model.limits.block_size,
    )
    telemetry.setup(service, identity.boot_id.hex())
    try:
        metrics = Metrics()
        metrics.count_tasks(loop)
        pool = model.runner.kv_cache.tensor
        async with open_transfers(pool, identity.boot_id, on_failure) as transfers:
            with serve_page(metrics, server):
                yield Parts(identity, model, transfers, metrics, on_failure)
    finally:
        telemetry.shutdown()
