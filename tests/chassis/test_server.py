"""What every server and channel has: health, reflection, ids, liveness of the peer."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton.v1.gateway_pb2 import GenerateResponse, GenerateStreamResponse
from baton.v1.generation_pb2 import GenerateRequest
from chassis.channel import INNER, PUBLIC, Profile, channel_options, open_channel
from chassis.errors import InvalidArgument
from chassis.health import NOT_SERVING, SERVICE_UNKNOWN, SERVING
from chassis.request_id import current_request_id
from chassis.server import ServerSettings, create_server, server_options
from tests.chassis.conftest import SERVICE, Serve

SILENT_SERVICE = Path(__file__).with_name("silent_service.py")


async def echo(request: Any, context: Any) -> Any:
    return GenerateResponse(model=request.model)


@pytest.mark.parametrize("profile", [PUBLIC, INNER], ids=lambda profile: profile.name)
def test_every_option_is_known_to_grpc_core(profile: Profile) -> None:
    binary = Path(cygrpc.__file__).read_bytes()
    served = server_options(ServerSettings(), profile, reuse_port=True)
    names = {name for name, _ in (*channel_options(profile), *served)}
    assert len(names) > 12
    unknown = [name for name in names if not re.search(re.escape(name.encode()) + b"\0", binary)]
    assert unknown == []


async def test_it_is_live_at_once_and_ready_when_it_says_so(serve: Serve) -> None:
    async with serve(echo) as served:
        health = health_pb2_grpc.HealthStub(served.channel)

        async def status(service: str) -> int:
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            return int(answer.status)

        assert [await status(""), await status(SERVICE)] == [SERVING, NOT_SERVING]
        served.server.set_ready(True)
        assert [await status(""), await status(SERVICE)] == [SERVING, SERVING]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status("baton.v1.Nothing")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_goes_on_hearing_after_another_one_left(serve: Serve) -> None:
    async with serve(echo) as served:
        health = health_pb2_grpc.HealthStub(served.channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        first, second = health.Watch(request), health.Watch(request)
        assert (await first.read()).status == (await second.read()).status == NOT_SERVING
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first.read()
        served.server.set_ready(True)
        assert (await second.read()).status == SERVING
        served.server.set_ready(False)
        assert (await second.read()).status == NOT_SERVING
        second.cancel()


async def test_an_unknown_service_can_be_watched(serve: Serve) -> None:
    async with serve(echo) as served:
        health = health_pb2_grpc.HealthStub(served.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="later"))
        assert (await watch.read()).status == SERVICE_UNKNOWN
        watch.cancel()


async def test_reflection_lists_the_services(serve: Serve) -> None:
    async with serve(echo) as served:
        call = reflection_pb2_grpc.ServerReflectionStub(served.channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_every_answer_has_a_request_id_of_its_own(serve: Serve) -> None:
    seen: list[str] = []

    async def generate(request: Any, context: Any) -> Any:
        seen.append(current_request_id())
        return GenerateResponse()

    async with serve(generate) as served:
        for _ in range(2):
            call = served.stub.Generate(GenerateRequest())
            metadata = dict(await call.initial_metadata())
            await call
            assert metadata["x-request-id"] == seen[-1]
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in seen) and len(set(seen)) == 2


async def test_an_error_has_a_request_id_too(serve: Serve) -> None:
    async def generate(request: Any, context: Any) -> Any:
        raise InvalidArgument("no", reason="NO")

    async with serve(generate) as served:
        call = served.stub.Generate(GenerateRequest())
        assert "x-request-id" in dict(await call.initial_metadata())
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_callers_trace_id_is_the_request_id(serve: Serve) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    async with serve(echo) as served:
        call = served.stub.Generate(
            GenerateRequest(), metadata=(("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"),)
        )
        assert dict(await call.initial_metadata())["x-request-id"] == trace_id
        await call


async def test_a_cancel_reaches_the_handler(serve: Serve) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def stream(request: Any, context: Any) -> Any:
        try:
            yield GenerateStreamResponse()
            started.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serve(stream=stream) as served:
        call = served.stub.GenerateStream(GenerateRequest())
        await call.read()
        await started.wait()
        call.cancel()
        await asyncio.wait_for(cancelled.wait(), 30)


async def test_a_cancel_inside_the_process_is_answered_as_our_own_bug(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def generate(request: Any, context: Any) -> Any:
        waiting = asyncio.ensure_future(asyncio.Event().wait())
        waiting.cancel()
        await waiting

    async with serve(generate) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Generate(GenerateRequest(), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "cancelled from inside" in caplog.text


async def test_a_port_in_use_is_refused_unless_shared() -> None:
    first = create_server(ServerSettings(), [], reuse_port=True)
    await first.start()
    settings = ServerSettings(port=first.port)
    alone, shared = create_server(settings, []), create_server(settings, [], reuse_port=True)
    with pytest.raises(RuntimeError):
        await alone.start()
    await shared.start()
    assert shared.port == first.port
    await first.stop()
    await shared.stop()


async def test_it_listens_on_loopback_only() -> None:
    server = create_server(ServerSettings(), [])
    await server.start()
    # All of 127/8 is this machine's: a server on 0.0.0.0 would answer here as well.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=30)
    await server.stop()


@pytest.mark.slow
async def test_a_frozen_peer_is_given_up_between_services_and_waited_for_by_clients() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SILENT_SERVICE), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address = f"127.0.0.1:{int(await process.stdout.readline())}"
    try:
        async with open_channel(address, INNER) as inner, open_channel(address) as public:
            request = health_pb2.HealthCheckRequest()
            watches = [health_pb2_grpc.HealthStub(each).Watch(request) for each in (inner, public)]
            for watch in watches:
                await watch.read()
            os.kill(process.pid, signal.SIGSTOP)
            # Without the ping time-out this takes 61 s.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(watches[0].read(), 30)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            os.kill(process.pid, signal.SIGCONT)
            answer = await health_pb2_grpc.HealthStub(public).Check(request, timeout=30)
            assert answer.status == SERVING and not watches[1].done()
            watches[1].cancel()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()


async def test_a_silent_call_survives_pings_that_a_plain_server_refuses(serve: Serve) -> None:
    eager = (
        ("grpc.keepalive_time_ms", 10),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    plain = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(_Silent(), plain)
    plain_port = plain.add_insecure_port("127.0.0.1:0")
    await plain.start()
    async with serve(echo) as served:
        ours = grpc.aio.insecure_channel(served.address, options=eager)
        theirs = grpc.aio.insecure_channel(f"127.0.0.1:{plain_port}", options=eager)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        silent = health_pb2_grpc.HealthStub(ours).Watch(request)
        assert (await silent.read()).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="Too many pings"):
            await health_pb2_grpc.HealthStub(theirs).Watch(request).read()
        served.server.set_ready(True)
        assert (await silent.read()).status == SERVING
        silent.cancel()
        await ours.close()
        await theirs.close()
    await plain.stop(None)


class _Silent(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # without stubs
    async def Watch(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()
        yield health_pb2.HealthCheckResponse()
