"""Plays the gateway: drives a prefill and a decode worker directly with their protos."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from baton.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    generation_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from chassis.channel import open_channel
from chassis.durations import to_duration
from tests.e2e.engine_reference import EOS_TOKEN_IDS
from tests.e2e.service_process import ServiceProcess

# More than the hand-off time-out, after which prefill gives up what nobody came for.
WAIT_SECONDS = 20.0


@dataclass(slots=True)
class Attempt:
    """What one attempt has said so far. Tokens by choice, in index order."""

    handle: int
    attempt_id: bytes
    trace_id: str
    tokens: dict[int, list[int]] = field(default_factory=dict)
    prefilled: asyncio.Event = field(default_factory=asyncio.Event)
    stepped: asyncio.Event = field(default_factory=asyncio.Event)
    response: prefill_pb2.PrefillResponse | None = None
    finished: asyncio.Future[decode_pb2.Finished] = field(default_factory=asyncio.Future)
    rejected: asyncio.Future[decode_pb2.Failure] = field(default_factory=asyncio.Future)
    prefill: "asyncio.Task[None] | None" = None
    first_index: int = 0

    async def outcome(self) -> decode_pb2.Finished:
        """The last word of the decode worker, after Prefill has ended as well."""
        await asyncio.wait((self.finished, self.rejected), return_when=asyncio.FIRST_COMPLETED)
        assert not self.rejected.done(), self.rejected.result()
        finished = await self.finished
        if self.prefill is not None:
            await asyncio.gather(self.prefill, return_exceptions=True)
        return finished

    async def result(self) -> dict[int, list[int]]:
        """The tokens of an attempt that goes well on both legs."""
        finished = await self.outcome()
        assert finished.outcome == decode_pb2.OUTCOME_COMPLETED, finished
        if self.prefill is not None:
            await self.prefill
        return self.tokens


class SplitClient:
    """One session with the decode worker, and as many Prefill calls as there are attempts."""

    def __init__(
        self, prefill: grpc.aio.Channel, decode: grpc.aio.Channel, prefill_address: str
    ) -> None:
        self.prefill_stub = prefill_pb2_grpc.PrefillServiceStub(prefill)
        self.decode_stub = decode_pb2_grpc.DecodeServiceStub(decode)
        self._watch = {
            "prefill": worker_pb2_grpc.WorkerServiceStub(prefill),
            "decode": worker_pb2_grpc.WorkerServiceStub(decode),
        }
        self._prefill_address = prefill_address
        self.boot_ids: dict[str, bytes] = {}
        self._attempts: dict[int, Attempt] = {}
        self.session: Any = None
        self._writing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Learns who the workers are, and opens the session."""
        for role in self._watch:
            self.boot_ids[role] = (await self.watch_until(role, lambda load: True)).info.boot_id
        self.session = self.decode_stub.Session()
        await self.send(hello=decode_pb2.Hello(boot_id=self.boot_ids["decode"]))
        welcome = await self.session.read()
        assert welcome.welcome.boot_id == self.boot_ids["decode"]
        self._tasks.append(asyncio.create_task(self._read()))

    async def close(self) -> None:
        """Breaks the session and every open call."""
        self.session.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def begin(
        self,
        token_ids: Sequence[int],
        *,
        num_prompt_tokens: int | None = None,
        choices: Sequence[int] = (0,),
        seconds: float | None = None,
        prefill_leg: bool = True,
        decode_leg: bool = True,
        hand_off: bool | None = None,
        attempt_id: bytes | None = None,
        salt: bytes = b"",
        own_prompt: bool = False,
        **sampling: Any,
    ) -> Attempt:
        """Sends both legs of an attempt, or one; ``hand_off`` by whether there is a decode leg.

        ``own_prompt`` sends decode's alone, which is to compute the prompt too.
        """
        attempt_id = os.urandom(16) if attempt_id is None else attempt_id
        attempt = Attempt(len(self._attempts) + 1, attempt_id, os.urandom(16).hex())
        attempt.first_index = len(token_ids) - (num_prompt_tokens or len(token_ids))
        self._attempts[attempt.handle] = attempt
        common: dict[str, Any] = {
            "attempt_id": attempt_id,
            "token_ids": token_ids,
            "num_prompt_tokens": num_prompt_tokens or len(token_ids),
            "choices": choices,
            "sampling": generation_pb2.SamplingParams(**sampling),
            "eos_token_ids": EOS_TOKEN_IDS,
            "cache_salt": salt,
        }
        traceparent = f"00-{attempt.trace_id}-{os.urandom(8).hex()}-01"
        if decode_leg:
            submit = decode_pb2.Submit(
                handle=attempt.handle,
                prefill_address="" if own_prompt else self._prefill_address,
                prefill_boot_id=b"" if own_prompt else self.boot_ids["prefill"],
                deadline=None if seconds is None else to_duration(seconds),
                traceparent=traceparent,
                **common,
            )
            await self.send(submit=submit)
        if own_prompt:
            attempt.prefilled.set()
        elif prefill_leg:
            request = prefill_pb2.PrefillRequest(
                boot_id=self.boot_ids["prefill"],
                hand_off=decode_leg if hand_off is None else hand_off,
                **common,
            )
            metadata = (("traceparent", traceparent),)
            call = self.prefill_stub.Prefill(request, timeout=seconds, metadata=metadata)
            attempt.prefill = asyncio.create_task(self._run_prefill(attempt, call))
            self._tasks.append(attempt.prefill)
        return attempt

    async def generate(self, token_ids: Sequence[int], **options: Any) -> dict[int, list[int]]:
        """The tokens of every choice."""
        return await (await self.begin(token_ids, **options)).result()

    async def cancel(self, attempt: Attempt) -> None:
        """Cancels both legs, as a gateway whose client left."""
        if attempt.prefill is not None:
            attempt.prefill.cancel()
        await self.send(cancel=decode_pb2.Cancel(handle=attempt.handle))

    async def send(self, **message: Any) -> None:
        """Writes one SessionRequest; gRPC allows one write at a time."""
        async with self._writing:
            await self.session.write(decode_pb2.SessionRequest(**message))

    async def watch_until(
        self, role: str, condition: Callable[[worker_pb2.WorkerLoad], bool]
    ) -> worker_pb2.WatchResponse:
        """Watches a worker until its load is so; checks the sum of the blocks every time."""
        call = self._watch[role].Watch(worker_pb2.WatchRequest())
        try:
            async for response in call:
                blocks = response.load.blocks
                states = (blocks.leased, blocks.used, blocks.reserved, blocks.fenced)
                assert sum(states) + blocks.cached + blocks.free == blocks.total, blocks
                if condition(response.load):
                    return response
        finally:
            call.cancel()
        raise AssertionError(f"the {role} worker stopped talking")

    async def all_blocks_back(self) -> None:
        """Returns when both workers hold no block and no request, as they soon must."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.watch_until("prefill", is_quiet)
            await self.watch_until("decode", is_quiet)

    async def _run_prefill(self, attempt: Attempt, call: Any) -> None:
        try:
            async for response in call:
                attempt.response = response
                for first in response.first_tokens:
                    attempt.tokens.setdefault(first.choice, []).insert(0, first.token_id)
                attempt.prefilled.set()
        finally:
            call.cancel()

    async def _read(self) -> None:
        while (response := await self.session.read()) is not grpc.aio.EOF:
            match response.WhichOneof("message"):
                case "step":
                    self._take_step(response.step)
                case "finished":
                    attempt = self._attempts[response.finished.handle]
                    if not attempt.finished.done():
                        attempt.finished.set_result(response.finished)
                case "rejected":
                    attempt = self._attempts[response.rejected.handle]
                    attempt.rejected.set_result(response.rejected.failure)

    def _take_step(self, step: decode_pb2.StepOutputs) -> None:
        rows = zip(step.handles, step.choices, step.indices, step.token_ids, strict=True)
        for handle, choice, index, token_id in rows:
            attempt = self._attempts[handle]
            tokens = attempt.tokens.setdefault(choice, [])
            # The first token may still be on its way from prefill.
            have = len(tokens) + (0 if attempt.prefilled.is_set() else 1)
            assert index == attempt.first_index + have, (index, attempt.first_index, have)
            tokens.append(token_id)
            attempt.stepped.set()


@asynccontextmanager
async def split_client(
    prefill: ServiceProcess, decode: ServiceProcess, *, outlived: bool = True
) -> AsyncIterator[SplitClient]:
    """A client of both workers; when it is gone every block must be back, if they outlive it."""
    async with AsyncExitStack() as stack:
        to_prefill = await stack.enter_async_context(open_channel(prefill.address))
        to_decode = await stack.enter_async_context(open_channel(decode.address))
        client = SplitClient(to_prefill, to_decode, prefill_address=prefill.address)
        await client.open()
        try:
            yield client
        finally:
            await client.close()
        if outlived:
            await client.all_blocks_back()


def is_quiet(load: worker_pb2.WorkerLoad) -> bool:
    """Whether a worker holds no block and no request."""
    blocks = load.blocks
    held = blocks.leased + blocks.used + blocks.reserved + blocks.fenced
    return held + load.waiting + load.handing_off + load.running == 0
