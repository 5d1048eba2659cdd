"""Puts a prefill worker together and serves it."""

from contextlib import aclosing

from baton.v1 import kv_transfer_pb2_grpc, prefill_pb2_grpc, worker_pb2
from chassis.channel import INNER
from chassis.lifecycle import Shutdown
from chassis.server import create_server
from kvtransfer.errors import TRANSFER_ERRORS
from prefill_svc.config import PrefillSettings
from prefill_svc.servicer import PrefillServicer
from prefill_svc.worker import PrefillWorker
from worker.parts import open_parts
from worker.serve import serve_worker
from worker.servicer import add_worker_servicer

SERVICES = ("baton.v1.PrefillService", "baton.v1.KvTransferService", "baton.v1.WorkerService")
UNTRACED = ("/baton.v1.KvTransferService/", "/baton.v1.WorkerService/")


async def serve(settings: PrefillSettings, shutdown: Shutdown) -> None:
    """Runs the service until ``shutdown``. Raises CannotStart."""
    async with (
        open_parts(
            "prefill",
            settings.server,
            settings.engine,
            max_decode_batch=None,
            shutdown=shutdown,
        ) as parts,
        aclosing(PrefillWorker(settings, parts)) as worker,
    ):
        server = create_server(
            settings.server, SERVICES, errors=TRANSFER_ERRORS, profile=INNER, untraced=UNTRACED
        )
        servicer = PrefillServicer(worker, parts, settings.engine.max_request_seconds)
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(servicer, server.grpc)
        kv_transfer_pb2_grpc.add_KvTransferServiceServicer_to_server(worker.producer, server.grpc)
        add_worker_servicer(server, worker_pb2.WORKER_ROLE_PREFILL, parts, worker.board)
        await serve_worker(server, worker, parts, shutdown)
