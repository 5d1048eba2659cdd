"""Connections break while the workers live: what they carried goes on when they are back.

So it is where a gateway was stopped for a while: its peers have given up all its connections.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from baton.v1 import decode_pb2
from gateway import worker_link
from tests.gateway.conftest import OpenStage
from tests.gateway.scripted_workers import LENGTH, PrefillCall, ScriptedDecode, SubmitCall
from tests.gateway.stage import Stage, StageOptions, error_of, read_all, request, token_ids


class SlowDecode(ScriptedDecode):
    """A decode worker that takes its time to open a session."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open = asyncio.Event()
        self.may_open.set()

    async def _read(self, *streams: Any) -> None:
        await self.may_open.wait()
        await super()._read(*streams)


class FarDecode(SlowDecode):
    """A decode worker behind something that can break every connection to it."""

    def __init__(self) -> None:
        super().__init__()
        self._relay: asyncio.Server | None = None
        self._streams: list[asyncio.StreamWriter] = []

    @property
    def address(self) -> str:
        assert self._relay is not None
        return f"127.0.0.1:{self._relay.sockets[0].getsockname()[1]}"

    def break_connections(self, kept: int = 0) -> None:
        """All but the ``kept`` oldest."""
        for stream in self._streams[2 * kept :]:
            stream.transport.abort()
        del self._streams[2 * kept :]

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[Self]:
        async with super().serving(port):
            self._relay = await asyncio.start_server(self._connect, "127.0.0.1", 0)
            try:
                yield self
            finally:
                self._relay.close()
                self.break_connections()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.server is not None
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self._streams += [writer, far_writer]
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


def answer(prefill: PrefillCall, decode: SubmitCall, tokens: list[int]) -> None:
    """What is missing of ``tokens``, to their end."""
    index = prefill.first_index
    prefill.answer(tokens[index])
    decode.tokens(tokens[index + 1 :], index + 1, LENGTH)
    decode.finished(decode_pb2.OUTCOME_COMPLETED)
    prefill.release()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for again is waited for, however long a slow machine takes to find it."""
    monkeypatch.setattr(worker_link, "_RETURN_SECONDS", 60.0)


async def is_running_or_done(stage: Stage, call: Any) -> None:
    async with asyncio.timeout(10):
        while not (call.done() or stage.metric("baton_requests_running")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_runs_goes_on_when_its_decode_worker_is_back(open_stage: OpenStage) -> None:
    far = FarDecode()
    stage = await open_stage(StageOptions(decode=[far]))
    call = stage.stub.GenerateStream(request(max_tokens=4))
    prefill, decode = await stage.legs()
    prefill.answer(100)
    prefill.release()
    decode.tokens([101], 1)
    messages = [await call.read()]
    while len(token_ids(messages)) < 2:
        messages.append(await call.read())
    far.break_connections()
    prefill, decode = await stage.legs()
    assert prefill.first_index == 2
    answer(prefill, decode, [100, 101, 102, 103])
    messages += await read_all(call)
    assert token_ids(messages) == [100, 101, 102, 103]


@pytest.mark.parametrize("kept", [0, 1], ids=["all", "that of the session"])
async def test_what_comes_waits_for_a_decode_worker_whose_connections_broke(
    open_stage: OpenStage, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = FarDecode()
    with monkeypatch.context() as patch:
        # It has been there for long when they break.
        patch.setattr(worker_link, "_RETURN_SECONDS", 0.0)
        stage = await open_stage(StageOptions(decode=[far]))
    far.may_open.clear()
    far.break_connections(kept)
    async with asyncio.timeout(10):
        await stage.pool.wait_until(lambda: not stage.router.has_pair())
    call = stage.stub.Generate(request(max_tokens=2))
    await is_running_or_done(stage, call)
    far.may_open.set()
    answer(*await stage.legs(), [100, 101])
    assert list((await call).choices[0].token_ids) == [100, 101]


async def test_what_comes_waits_for_the_session_with_a_worker_that_is_just_there(
    open_stage: OpenStage,
) -> None:
    slow = SlowDecode()
    stage = await open_stage(StageOptions(decode=[slow]))
    assert slow.server is not None
    port = slow.server.port
    await slow.server.stop()
    async with asyncio.timeout(10):
        await stage.pool.wait_until(lambda: not stage.router.has_pair())
    assert (await error_of(stage.stub.Generate(request()))).reason == "NO_DECODE_WORKER"
    slow.may_open.clear()
    async with slow.serving(port):
        async with asyncio.timeout(10):
            await stage.pool.wait_until(lambda: bool(stage.pool.decode_workers))
        call = stage.stub.Generate(request(max_tokens=2))
        await is_running_or_done(stage, call)
        slow.may_open.set()
        answer(*await stage.legs(), [100, 101])
        assert list((await call).choices[0].token_ids) == [100, 101]
