"""The life of a real service process: start, ready, drain, stop."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.v1 import gateway_pb2_grpc
from baton.v1.gateway_pb2 import GenerateStreamResponse
from baton.v1.generation_pb2 import GenerateRequest
from chassis.channel import open_channel
from chassis.health import NOT_SERVING, SERVING
from chassis.status import from_rpc_error

PROGRAM = Path(__file__).with_name("draining_service.py")
SERVICE = "baton.v1.GenerationService"


@dataclass(frozen=True, slots=True)
class Running:
    """The service's process, a channel to it, and the folder it looks into."""

    process: Process
    channel: grpc.aio.Channel
    folder: Path

    async def readiness(self) -> Any:
        """Every state of the service's health name, as it comes."""
        health = health_pb2_grpc.HealthStub(self.channel)
        return health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))

    async def until(self, wanted: int) -> None:
        """Waits until the service's health name is in a state."""
        watch = await self.readiness()
        while (await watch.read()).status != wanted:
            pass
        watch.cancel()

    async def open_call(self) -> Any:
        """A call that has begun and ends when the folder holds ``go``."""
        stub = gateway_pb2_grpc.GenerationServiceStub(self.channel)
        call = stub.GenerateStream(GenerateRequest(model="go"))
        assert await call.read() == GenerateStreamResponse()
        return call

    async def exit(self) -> tuple[int, str]:
        """Waits for the end: exit code and log."""
        _, log = await asyncio.wait_for(self.process.communicate(), 60)
        assert self.process.returncode is not None
        return self.process.returncode, log.decode()

    @property
    def was_closed_in_order(self) -> bool:
        """What was opened last was closed first."""
        marks = ["closed last opened", "closed first opened"]
        times = [(self.folder / mark).stat().st_mtime_ns for mark in marks]
        return times == sorted(times)


@asynccontextmanager
async def running(folder: Path, behaviour: str = "patient") -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), str(folder), behaviour),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    async with open_channel(f"127.0.0.1:{port}") as channel:
        try:
            yield Running(process, channel, folder)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_an_idle_service_stops_with_0(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.until(SERVING)
        service.process.send_signal(signal.SIGINT)
        code, log = await service.exit()
    assert code == 0, log
    assert service.was_closed_in_order


async def test_a_drain_says_not_ready_and_lets_running_work_finish(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.until(SERVING)
        call = await service.open_call()
        service.process.send_signal(signal.SIGTERM)
        await service.until(NOT_SERVING)
        health = health_pb2_grpc.HealthStub(service.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
        (tmp_path / "go").touch()
        assert await call.read() == GenerateStreamResponse()
        assert await call.code() is grpc.StatusCode.OK
        code, log = await service.exit()
    assert code == 0, log


async def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.until(SERVING)
        call = await service.open_call()
        service.process.send_signal(signal.SIGTERM)
        await service.until(NOT_SERVING)
        service.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        code, log = await service.exit()
    assert code == 0, log
    assert "stopping at once" in log
    assert service.was_closed_in_order


async def test_work_that_outlives_the_grace_is_handed_over(tmp_path: Path) -> None:
    async with running(tmp_path, "impatient") as service:
        await service.until(SERVING)
        call = await service.open_call()
        service.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert from_rpc_error(caught.value).reason == "HANDED_OVER"
        code, log = await service.exit()
    assert code == 0, log
    assert "after 0.05 s of draining" in log


async def test_who_calls_before_it_has_heard_of_the_drain_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, "lingers") as service:
        await service.until(SERVING)
        service.process.send_signal(signal.SIGTERM)
        await service.until(NOT_SERVING)
        # Nothing was running: only for callers like this one is it still there.
        stub = gateway_pb2_grpc.GenerationServiceStub(service.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GenerateStream(GenerateRequest()).read()
        assert from_rpc_error(caught.value).reason == "DRAINING"
        service.process.send_signal(signal.SIGTERM)
        code, log = await service.exit()
    assert code == 0, log


async def test_a_process_that_cannot_close_ends_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, "never closes") as service:
        await service.until(SERVING)
        await service.open_call()
        service.process.send_signal(signal.SIGTERM)
        await service.until(NOT_SERVING)
        service.process.send_signal(signal.SIGTERM)
        code, log = await service.exit()
    assert code == 0, log
    assert "not closed after 0.5 s" in log
    # Says what it hangs in.
    assert 'draining_service.py", line' in log


async def test_a_signal_during_the_start_stops_it(tmp_path: Path) -> None:
    async with running(tmp_path, "warms for ever") as service:
        await service.until(NOT_SERVING)
        service.process.send_signal(signal.SIGTERM)
        code, log = await service.exit()
    assert code == 0, log
    assert service.was_closed_in_order


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [("fails", "engine died"), ("cannot start", "no such model")],
)
async def test_a_failure_ends_with_1_and_its_cause(
    tmp_path: Path, behaviour: str, message: str
) -> None:
    async with running(tmp_path, behaviour) as service:
        code, log = await service.exit()
    assert code == 1
    assert f"service failed: {message}" in log
    assert service.was_closed_in_order
