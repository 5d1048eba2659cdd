"""Serves DecodeService: one session per gateway process."""

from typing import Any

from baton.v1 import decode_pb2_grpc
from decode_svc.session import Session
from decode_svc.worker import DecodeWorker


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """Every call is a session of its own."""

    def __init__(self, worker: DecodeWorker, boot_id: bytes, stall_seconds: float) -> None:
        self._worker = worker
        self._boot_id = boot_id
        self._stall_seconds = stall_seconds

    async def Session(  # type: ignore[override]  # a handler may write instead of yielding
        self, request_iterator: Any, context: Any
    ) -> None:
        """Serves until the gateway is gone; that cancels all its attempts."""
        await Session(self._worker, self._boot_id, self._stall_seconds).run(context)
