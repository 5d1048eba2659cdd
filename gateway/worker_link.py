"""Keeps one worker address connected: who is there, how it does, and its Session."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.v1 import worker_pb2, worker_pb2_grpc
from chassis.channel import INNER, open_channel
from chassis.errors import FailedPrecondition, ServiceError, Unavailable
from chassis.status import from_rpc_error
from gateway.backoff import Backoff, keep_trying
from gateway.circuit import RetryBudget
from gateway.served_model import ServedModel
from gateway.session import Session
from gateway.turns import Turns
from gateway.worker import Worker, WorkerIdentity
from modelfiles.short_digest import short_digest

log = logging.getLogger(__name__)

# Watch speaks every 250 ms: this long without a word, and nothing answers there, pings or not.
_SILENCE_SECONDS = INNER.ping_after + INNER.ping_timeout
_LOOK_SECONDS = 0.5
# A connection that broke may be back at once: this long nobody takes the worker for gone, unless
# a look there says so. As long again it may take to hear of its health and open its session.
_RETURN_SECONDS = 2.0
_BOOT_ID_BYTES = 16

_HEALTH_NAMES = {
    worker_pb2.WORKER_ROLE_PREFILL: "baton.v1.PrefillService",
    worker_pb2.WORKER_ROLE_DECODE: "baton.v1.DecodeService",
}

_Watch = grpc.aio.UnaryStreamCall[worker_pb2.WatchRequest, worker_pb2.WatchResponse]


class WorkerLink:
    """Follows whatever worker answers at an address, one incarnation after the other.

    A worker is shown as ``worker`` while its Watch stream lives. ``find_known`` returns the worker
    that another link shows under a boot id: two addresses with one boot id are one worker
    (protocol 1.1). ``on_change`` hears of everything that may make a worker ready or not,
    ``on_lost`` why a worker is shown no more.
    """

    def __init__(
        self,
        address: str,
        role: worker_pb2.WorkerRole.ValueType,
        model: ServedModel,
        turns: Turns,
        find_known: Callable[[bytes], Worker | None],
        on_change: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.address = address
        self.worker: Worker | None = None
        self.problem = "not connected yet"
        self._retry_budget = RetryBudget()
        self._role = role
        self._model = model
        self._turns = turns
        self._find_known = find_known
        self._on_change = on_change
        self._on_lost = on_lost
        self._stuck: tuple[bytes, int] | None = None
        self._returns_until = -float("inf")

    @property
    def may_return(self) -> bool:
        """Whether the connection broke, or came about, just now, and more is not known yet.

        It is not the worker where this process was stopped for a while: then all connections
        break at once, and are back in a moment.
        """
        return time.monotonic() < self._returns_until

    def _expect_soon(self) -> None:
        self._returns_until = time.monotonic() + _RETURN_SECONDS

    async def run(self) -> None:
        """Connects, follows, and connects again with back-off, until cancelled."""
        backoff = Backoff(last_seconds=1.0)
        while True:
            # A connection for each incarnation: with it ends whatever still waits for a lost one.
            channel = open_channel(self.address, INNER)
            try:
                await self._follow(channel, backoff)
            except ServiceError as error:
                self._note(error)
            except Exception:
                # Our own bug with one worker must not cost the others, nor this one for ever.
                log.exception("worker at %s", self.address)
                self.problem = "internal error"
            finally:
                await channel.close()
            await backoff.wait()

    def _note(self, error: ServiceError) -> None:
        if error.message != self.problem:
            log.warning("worker at %s: %s", self.address, error.message)
        self.problem = error.message

    async def _follow(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        """Raises a ServiceError when the worker is gone; returns where another link shows it."""
        watch = worker_pb2_grpc.WorkerServiceStub(channel).Watch(worker_pb2.WatchRequest())
        try:
            try:
                worker = await self._introduce(watch, channel)
            except ServiceError:
                self._returns_until = -float("inf")
                raise
            known = self._find_known(worker.identity.boot_id)
            if known is None:
                backoff.reset()
                async with self._shown(worker):
                    while True:
                        worker.report((await _read(watch)).load)
                        self._check_progress(worker)
                        self._on_change()
        finally:
            watch.cancel()
        self.problem = f"the same worker as {known.identity.address}"
        await known.lost.wait()

    async def _introduce(self, watch: _Watch, channel: grpc.aio.Channel) -> Worker:
        first = await _read(watch)
        if not first.HasField("info"):
            raise FailedPrecondition("the worker did not introduce itself", reason="NO_WORKER_INFO")
        self._check(first.info)
        identity = WorkerIdentity.from_pb(first.info, self.address)
        worker = Worker(identity, channel, self._retry_budget)
        worker.report(first.load)
        if self._stuck == (first.info.boot_id, first.load.steps) and first.load.running:
            raise _stuck_error(worker)
        return worker

    def _check_progress(self, worker: Worker) -> None:
        """Raises Unavailable for a step that takes longer than it can (protocol 5.2)."""
        if worker.is_stuck:
            self._stuck = (worker.identity.boot_id, worker.load.steps)
            raise _stuck_error(worker)

    def _check(self, info: worker_pb2.WorkerInfo) -> None:
        if info.role != self._role:
            found = worker_pb2.WorkerRole.Name(info.role)
            raise FailedPrecondition(f"the worker's role is {found}", reason="ROLE_MISMATCH")
        self._check_model(info)
        if len(info.boot_id) != _BOOT_ID_BYTES:
            raise FailedPrecondition("the worker's boot id is malformed", reason="NO_BOOT_ID")

    def _check_model(self, info: worker_pb2.WorkerInfo) -> None:
        """A name may stand for other files elsewhere; token ids must mean the same text here and
        there (protocol 1.4)."""
        name, ours = self._model.name, self._model.vocabulary_digest
        if info.model != name:
            raise FailedPrecondition(
                f"the worker serves {info.model!r}, not {name!r}", reason="MODEL_MISMATCH"
            )
        if info.vocabulary_digest != ours:
            raise FailedPrecondition(
                f"vocabularies differ: {name!r} has {short_digest(info.vocabulary_digest)} on the "
                f"worker and {short_digest(ours)} on the gateway; they load different files",
                reason="VOCABULARY_MISMATCH",
            )

    @asynccontextmanager
    async def _shown(self, worker: Worker) -> AsyncIterator[None]:
        log.info("worker %s at %s is there", worker.identity.name, self.address)
        works = [("health", self._follow_health)]
        if self._role == worker_pb2.WORKER_ROLE_DECODE:
            works.append(("session", self._keep_session))
        followers = [
            asyncio.create_task(keep_trying(f"{name} of {self.address}", partial(work, worker)))
            for name, work in works
        ]
        self.worker = worker
        if worker.load.accepting:
            self._expect_soon()
        try:
            yield
        except ServiceError as error:
            self._on_lost(error.reason)
            if error.reason == grpc.StatusCode.UNAVAILABLE.name:
                self._expect_soon()
            raise
        finally:
            self.worker = None
            worker.lost.set()
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
            self._on_change()

    async def _follow_health(self, worker: Worker) -> None:
        backoff = Backoff()
        request = health_pb2.HealthCheckRequest(service=_HEALTH_NAMES[self._role])
        while True:
            watch = health_pb2_grpc.HealthStub(worker.channel).Watch(request)
            try:
                async for response in watch:
                    worker.serving = response.status == health_pb2.HealthCheckResponse.SERVING
                    backoff.reset()
                    self._on_change()
            except grpc.aio.AioRpcError as error:
                log.debug("health of %s: %s", self.address, error.details())
                if worker.serving:
                    # It did not say that it is not. Watch may tell of a broken connection later.
                    self._expect_soon()
            finally:
                # A task that is cancelled while the request is being sent does not end the call.
                watch.cancel()
                worker.serving = False
            self._on_change()
            await backoff.wait()

    async def _keep_session(self, worker: Worker) -> None:
        backoff = Backoff()
        while True:
            # A connection of its own: a full Session must not hold up Watch (protocol 2.2).
            channel = open_channel(self.address, INNER)
            identity = worker.identity
            session = Session(channel, identity.name, identity.boot_id, self._turns)
            worker.session = session
            try:
                await session.run(self._on_change)
            except ServiceError as error:
                log.warning("%s", error.message)
                if session.was_open:
                    self._expect_soon()
            finally:
                await channel.close()
            self._on_change()
            await backoff.wait()


async def _read(watch: _Watch) -> worker_pb2.WatchResponse:
    """The next message. Raises a ServiceError where none comes."""
    reading = asyncio.ensure_future(watch.read())
    try:
        await _wait_patiently(reading)
        response = await reading
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    finally:
        reading.cancel()
    if not isinstance(response, worker_pb2.WatchResponse):
        raise Unavailable("the worker ended its Watch stream", reason="WORKER_LOST")
    return response


async def _wait_patiently(reading: "asyncio.Future[Any]") -> None:
    """Raises Unavailable for a silence; time for which this process was stopped is none."""
    silence = 0.0
    while not reading.done():
        if silence >= _SILENCE_SECONDS:
            text = f"the worker has said nothing for {_SILENCE_SECONDS:g} s"
            raise Unavailable(text, reason="WORKER_SILENT")
        before = time.monotonic()
        await asyncio.wait([reading], timeout=_LOOK_SECONDS)
        silence += min(time.monotonic() - before, 2 * _LOOK_SECONDS)


def _stuck_error(worker: Worker) -> Unavailable:
    load = worker.load
    text = f"the worker is stuck in step {load.steps + 1}, with {load.running} requests running"
    return Unavailable(text, reason="WORKER_STUCK")
