"""One gateway's stream: what it says is done at once, what is said to it goes out in turn."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from baton.v1 import decode_pb2
from chassis.error_table import INTERNAL_MESSAGE
from chassis.errors import FailedPrecondition, Internal, InvalidArgument, ServiceError
from chassis.failure import failure_to_pb
from decode_svc.outbox import Outbox
from decode_svc.worker import DecodeWorker

log = logging.getLogger(__name__)

HELLO_SECONDS = 10.0

Read = Callable[[], Awaitable[Any]]


class Session:
    """Serves one Session call. The reader never waits for admission (protocol 2.2)."""

    def __init__(self, worker: DecodeWorker, boot_id: bytes, stall_seconds: float) -> None:
        self._worker = worker
        self._boot_id = boot_id
        self._outbox = Outbox(stall_seconds)

    async def run(self, context: Any) -> None:
        """Until the gateway closes the stream, breaks it, or takes nothing any more."""
        await self._read_hello(context.read)
        number = self._worker.open_session(self._outbox)
        try:
            welcome = decode_pb2.Welcome(boot_id=self._boot_id)
            self._outbox.put(decode_pb2.SessionResponse(welcome=welcome))
            reader = asyncio.ensure_future(self._read(context.read, number))
            writer = asyncio.ensure_future(self._outbox.drain(context.write))
            await _first_result(reader, writer)
        finally:
            self._worker.close_session(number)

    async def _read_hello(self, read: Read) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                request = await read()
        except TimeoutError:
            request = grpc.aio.EOF
        if request is grpc.aio.EOF or request.WhichOneof("message") != "hello":
            raise InvalidArgument("a session begins with Hello", reason="HELLO_MISSING")
        if request.hello.boot_id != self._boot_id:
            raise FailedPrecondition("meant for an earlier process", reason="BOOT_ID_STALE")

    async def _read(self, read: Read, number: int) -> None:
        while (request := await read()) is not grpc.aio.EOF:
            match request.WhichOneof("message"):
                case "submit":
                    self._submit(number, request.submit)
                case "cancel":
                    self._worker.cancel(number, request.cancel.handle, request.cancel.choices)
                case "pair":
                    self._worker.pairings.begin(request.pair)
                case other:
                    raise InvalidArgument(f"{other} within a session", reason="UNEXPECTED_MESSAGE")

    def _submit(self, number: int, submit: decode_pb2.Submit) -> None:
        if self._worker.is_living(number, submit.handle):
            # A Rejected would be taken for the living attempt's.
            raise InvalidArgument(f"handle {submit.handle} is in use", reason="HANDLE_REUSED")
        try:
            self._worker.submit(number, submit)
        except ServiceError as error:
            self._reject(submit.handle, error)
        except Exception:
            # A bug of ours concerns this attempt, and not all others of the session.
            log.exception("attempt %s could not be taken", submit.attempt_id.hex())
            self._reject(submit.handle, Internal(INTERNAL_MESSAGE, reason="INTERNAL"))

    def _reject(self, handle: int, error: ServiceError) -> None:
        rejected = decode_pb2.Rejected(handle=handle, failure=failure_to_pb(error))
        self._outbox.put(decode_pb2.SessionResponse(rejected=rejected))


async def _first_result(*tasks: "asyncio.Future[None]") -> None:
    """Waits for the first to end, ends the others, and raises what the first raised."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
