"""Puts a decode worker together and serves it."""

from contextlib import aclosing

from baton.v1 import decode_pb2_grpc, worker_pb2
from chassis.channel import INNER
from chassis.lifecycle import Shutdown
from chassis.server import create_server
from decode_svc.config import DecodeSettings
from decode_svc.servicer import DecodeServicer
from decode_svc.worker import DecodeWorker
from kvtransfer.errors import TRANSFER_ERRORS
from worker.parts import open_parts
from worker.serve import serve_worker
from worker.servicer import add_worker_servicer

SERVICES = ("baton.v1.DecodeService", "baton.v1.WorkerService")
UNTRACED = ("/baton.v1.WorkerService/",)


async def serve(settings: DecodeSettings, shutdown: Shutdown) -> None:
    """Runs the service until ``shutdown``. Raises CannotStart."""
    async with (
        open_parts(
            "decode",
            settings.server,
            settings.engine,
            max_decode_batch=settings.max_decode_batch,
            shutdown=shutdown,
        ) as parts,
        aclosing(DecodeWorker(settings, parts)) as worker,
    ):
        server = create_server(
            settings.server, SERVICES, errors=TRANSFER_ERRORS, profile=INNER, untraced=UNTRACED
        )
        servicer = DecodeServicer(worker, parts.identity.boot_id, settings.session_stall)
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server.grpc)
        add_worker_servicer(server, worker_pb2.WORKER_ROLE_DECODE, parts, worker.board)
        await serve_worker(server, worker, parts, shutdown)
