"""Workers that speak the real protocols over loopback and do what a test tells them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import grpc
from google.protobuf.duration_pb2 import Duration

from baton.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    generation_pb2,
    kv_transfer_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from chassis.errors import ServiceError
from chassis.server import Server, ServerSettings, create_server
from gateway.served_model import ServedModel

MODEL = ServedModel("scripted", b"vocabulary")
Tokens = Sequence[int]
EOS = generation_pb2.FinishInfo(reason=generation_pb2.FINISH_REASON_EOS, stop_token_id=2)
LENGTH = generation_pb2.FinishInfo(reason=generation_pb2.FINISH_REASON_LENGTH)
FULL = decode_pb2.Failure(
    code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
    reason="QUEUE_FULL",
    message="full",
    retry_delay=Duration(seconds=2),
)


# What a worker says of itself whose KV is of another dtype.
OTHER_DTYPE: dict[str, Any] = {
    "layout_digest": b"other",
    "layout": kv_transfer_pb2.KvLayout(dtype="bfloat16"),
}


class ScriptedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """What both roles share: identity, load, health, a server on a free port."""

    role: worker_pb2.WorkerRole.ValueType
    service: str

    def __init__(self, **info: Any) -> None:
        self.info = worker_pb2.WorkerInfo(
            boot_id=os.urandom(16),
            role=self.role,
            name=f"scripted {self.service}",
            model=MODEL.name,
            checkpoint_digest=b"checkpoint",
            layout_digest=b"layout",
            layout=kv_transfer_pb2.KvLayout(dtype="float32", block_size=16),
            vocabulary_digest=MODEL.vocabulary_digest,
            max_context_tokens=8192,
            block_size=16,
        )
        self.info.MergeFrom(worker_pb2.WorkerInfo(**info))
        blocks = worker_pb2.BlockCounts(free=1000, total=1000)
        self.load = worker_pb2.WorkerLoad(accepting=True, blocks=blocks)
        # None: says nothing but what ``report`` is told, and so falls silent.
        self.watch_interval: float | None = 0.25
        self.num_watches = 0
        self.server: Server | None = None
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        assert self.server is not None
        return f"127.0.0.1:{self.server.port}"

    def report(self, **load: Any) -> None:
        """Tells every watcher a new load."""
        self.load.MergeFrom(worker_pb2.WorkerLoad(**load))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[Self]:
        self.server = create_server(ServerSettings(port=port), [self.service])
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self.server.grpc)
        self.register(self.server)
        await self.server.start()
        self.server.set_ready(True)
        try:
            yield self
        finally:
            await self.server.stop()

    def register(self, server: Server) -> None:
        raise NotImplementedError

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[worker_pb2.WatchResponse]:
        self.num_watches += 1
        yield worker_pb2.WatchResponse(info=self.info, load=self.load)
        while True:
            changed = self._changed
            with suppress(TimeoutError):
                async with asyncio.timeout(self.watch_interval):
                    await changed.wait()
            yield worker_pb2.WatchResponse(load=self.load)


class PrefillCall:
    """One Prefill call, as the test answers it."""

    def __init__(self, request: prefill_pb2.PrefillRequest) -> None:
        self.request = request
        self.over = asyncio.Event()
        self.was_cancelled = False
        self._steps: asyncio.Queue[prefill_pb2.PrefillResponse | ServiceError | None]
        self._steps = asyncio.Queue()

    @property
    def first_index(self) -> int:
        return len(self.request.token_ids) - self.request.num_prompt_tokens

    def answer(
        self, token_id: int, finish: generation_pb2.FinishInfo | None = None, cached: int = 0
    ) -> None:
        """The same first token for every choice."""
        firsts = [
            prefill_pb2.FirstToken(choice=choice, token_id=token_id, finish=finish)
            for choice in self.request.choices
        ]
        self.respond(prefill_pb2.PrefillResponse(first_tokens=firsts, cached_tokens=cached))

    def respond(self, response: prefill_pb2.PrefillResponse) -> None:
        self._steps.put_nowait(response)

    def release(self) -> None:
        self._steps.put_nowait(None)

    def fail(self, error: ServiceError) -> None:
        self._steps.put_nowait(error)

    async def responses(self) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        try:
            while (step := await self._steps.get()) is not None:
                if isinstance(step, ServiceError):
                    raise step
                yield step
        except (asyncio.CancelledError, GeneratorExit):
            self.was_cancelled = True
            raise
        finally:
            self.over.set()


class ScriptedPrefill(ScriptedWorker, prefill_pb2_grpc.PrefillServiceServicer):
    role = worker_pb2.WORKER_ROLE_PREFILL
    service = "baton.v1.PrefillService"

    def __init__(self, **info: Any) -> None:
        super().__init__(**info)
        self.calls: asyncio.Queue[PrefillCall] = asyncio.Queue()
        self.num_calls = 0
        self.metadata: dict[str, str | bytes] = {}

    def register(self, server: Server) -> None:
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(self, server.grpc)

    async def Prefill(
        self, request: prefill_pb2.PrefillRequest, context: Any
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        call = PrefillCall(request)
        self.num_calls += 1
        self.metadata = dict(context.invocation_metadata())
        self.calls.put_nowait(call)
        async for response in call.responses():
            yield response


class SubmitCall:
    """One Submit, as the test answers it."""

    def __init__(
        self, submit: decode_pb2.Submit, send: Callable[[decode_pb2.SessionResponse], None]
    ) -> None:
        self.submit = submit
        self.cancelled = asyncio.Event()
        self.cancelled_choices: asyncio.Queue[int] = asyncio.Queue()
        self.send = send

    def tokens(
        self,
        token_ids: Tokens,
        first_index: int,
        finish: generation_pb2.FinishInfo | None = None,
        choice: int | None = None,
        logprobs: generation_pb2.TokenLogprobs | None = None,
    ) -> None:
        """Consecutive tokens of one choice, in one message; the rest comes with the last."""
        num = len(token_ids)
        chosen = self.submit.choices[0] if choice is None else choice
        step = decode_pb2.StepOutputs(
            handles=[self.submit.handle] * num,
            choices=[chosen] * num,
            indices=range(first_index, first_index + num),
            token_ids=token_ids,
        )
        if finish is not None:
            step.finishes.add(row=num - 1, finish=finish)
        if logprobs is not None:
            step.logprobs.add(row=num - 1, logprobs=logprobs)
        self.send(decode_pb2.SessionResponse(step=step))

    def finished(self, outcome: decode_pb2.Outcome.ValueType, **fields: Any) -> None:
        finished = decode_pb2.Finished(handle=self.submit.handle, outcome=outcome, **fields)
        self.send(decode_pb2.SessionResponse(finished=finished))

    def reject(self, failure: decode_pb2.Failure) -> None:
        rejected = decode_pb2.Rejected(handle=self.submit.handle, failure=failure)
        self.send(decode_pb2.SessionResponse(rejected=rejected))


class ScriptedDecode(ScriptedWorker, decode_pb2_grpc.DecodeServiceServicer):
    role = worker_pb2.WORKER_ROLE_DECODE
    service = "baton.v1.DecodeService"

    def __init__(self, **info: Any) -> None:
        super().__init__(**info)
        self.calls: asyncio.Queue[SubmitCall] = asyncio.Queue()
        self.pairs: asyncio.Queue[decode_pb2.Pair] = asyncio.Queue()
        self.num_calls = 0
        self.num_sessions = 0
        self.hang_up = asyncio.Event()

    def register(self, server: Server) -> None:
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(self, server.grpc)

    async def Session(
        self, requests: AsyncIterator[decode_pb2.SessionRequest], context: Any
    ) -> AsyncIterator[decode_pb2.SessionResponse]:
        outgoing: asyncio.Queue[decode_pb2.SessionResponse | None] = asyncio.Queue()
        self.num_sessions += 1
        reader = asyncio.create_task(self._read(requests, outgoing))
        hanging_up = asyncio.create_task(self.hang_up.wait())
        hanging_up.add_done_callback(lambda _: outgoing.put_nowait(None))
        try:
            while (response := await outgoing.get()) is not None:
                yield response
        finally:
            reader.cancel()
            hanging_up.cancel()

    async def _read(
        self,
        requests: AsyncIterator[decode_pb2.SessionRequest],
        outgoing: asyncio.Queue[decode_pb2.SessionResponse | None],
    ) -> None:
        calls: dict[int, SubmitCall] = {}
        async for request in requests:
            if request.HasField("hello"):
                welcome = decode_pb2.Welcome(boot_id=self.info.boot_id)
                outgoing.put_nowait(decode_pb2.SessionResponse(welcome=welcome))
            elif request.HasField("submit"):
                call = SubmitCall(request.submit, outgoing.put_nowait)
                calls[request.submit.handle] = call
                self.num_calls += 1
                self.calls.put_nowait(call)
            elif request.HasField("pair"):
                self.pairs.put_nowait(request.pair)
            elif request.cancel.choices:
                for choice in request.cancel.choices:
                    calls[request.cancel.handle].cancelled_choices.put_nowait(choice)
            else:
                calls[request.cancel.handle].cancelled.set()
                calls[request.cancel.handle].finished(decode_pb2.OUTCOME_CANCELLED)
