"""Errors on the wire: every kind, there and back, through a real server."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from baton.v1.gateway_pb2 import GenerateResponse, GenerateStreamResponse
from baton.v1.generation_pb2 import GenerateRequest
from chassis import errors
from chassis.error_interceptor import ErrorInterceptor
from chassis.error_table import ErrorRow, ErrorTable
from chassis.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceError,
    Unavailable,
    Violation,
)
from chassis.interceptor import Call
from chassis.status import (
    CODES,
    DETAILS_KEY,
    code_number,
    error_from_code,
    from_rpc_error,
    status_code,
    to_status,
)
from tests.chassis.conftest import Serve, Served

KINDS = list(CODES)


async def failure(serve: Serve, error: Exception, table: ErrorTable | None = None) -> ServiceError:
    """What a caller gets when a handler raises ``error``."""

    async def generate(request: Any, context: Any) -> Any:
        raise error

    async with serve(generate, errors=table) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Generate(GenerateRequest())
    return from_rpc_error(caught.value)


def test_every_error_has_a_code_of_its_own() -> None:
    assert set(ServiceError.__subclasses__()) == set(CODES)
    assert len(set(CODES.values())) == len(CODES)


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = [line.split()[1] for line in (errors.__doc__ or "").splitlines() if "──" in line]
    assert drawn == [kind.__name__ for kind in ServiceError.__subclasses__()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_an_error_comes_back_as_the_same_error(
    serve: Serve, kind: type[ServiceError]
) -> None:
    sent = kind(
        "what happened",
        reason="SOME_REASON",
        violations=[Violation("sampling.top_p", "is above 1")],
        retry_after=1.25,
        metadata={"limit": "1"},
    )
    got = await failure(serve, sent)
    assert type(got) is kind
    assert (got.message, got.reason, got.retry_after) == ("what happened", "SOME_REASON", 1.25)
    assert got.violations == sent.violations
    assert got.metadata == {"limit": "1"}


async def test_an_error_in_the_middle_of_a_stream_ends_it(serve: Serve) -> None:
    async def stream(request: Any, context: Any) -> Any:
        yield GenerateStreamResponse()
        raise ResourceExhausted("full", reason="QUEUE_FULL", retry_after=0.0)

    async with serve(stream=stream) as served:
        call = served.stub.GenerateStream(GenerateRequest())
        assert await call.read() == GenerateStreamResponse()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    got = from_rpc_error(caught.value)
    assert (type(got), got.retry_after) == (ResourceExhausted, 0.0)


async def test_an_error_of_any_size_fits_into_the_trailers(serve: Serve) -> None:
    long = "é" * 100_000
    sent = InvalidArgument(
        long, reason="BAD", violations=[Violation(long, long)] * 100, metadata={"m": long}
    )
    got = await failure(serve, sent)
    assert (type(got), got.reason) == (InvalidArgument, "BAD")
    assert got.message.startswith("é") and got.violations


async def test_an_unknown_exception_tells_the_caller_nothing_and_the_log_everything(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    got = await failure(serve, KeyError("secret"))
    assert (type(got), got.reason) == (errors.Internal, "INTERNAL")
    assert "secret" not in repr(to_status(got))
    assert "KeyError: 'secret'" in caplog.text


class Leaving:
    """The side of a call whose peer leaves while the status is on its way; gRPC offers no way to
    make it come then."""

    def done(self) -> bool:
        return False

    async def abort(self, *status: Any) -> None:
        raise grpc.aio.InternalError("execute_batch failed")


async def test_a_caller_who_leaves_while_the_status_is_sent_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    around = ErrorInterceptor(ErrorTable()).around(Call("/a/B", (), False), Leaving())
    # As gRPC wants to hear it, which takes every other exception for a fault of the handler.
    with pytest.raises(asyncio.CancelledError):
        async with around:
            raise DeadlineExceeded("the deadline passed", reason="DEADLINE")
    assert caplog.records == []


async def test_a_foreign_exception_is_translated_by_its_row(serve: Serve) -> None:
    table = ErrorTable(
        [
            ErrorRow(FileNotFoundError, NotFound, "FILE_MISSING"),
            ErrorRow(OSError, errors.Unavailable, "DISK", message="no disk", retry_after=2.0),
        ]
    )
    first = await failure(serve, FileNotFoundError("a.txt"), table)
    second = await failure(serve, PermissionError("hidden"), table)
    assert (type(first), first.reason, first.message) == (NotFound, "FILE_MISSING", "a.txt")
    assert (type(second), second.message) == (errors.Unavailable, "no disk")
    assert second.retry_after == 2.0


def test_a_hidden_row_is_refused() -> None:
    rows = [ErrorRow(OSError, NotFound, "A"), ErrorRow(FileNotFoundError, NotFound, "B")]
    with pytest.raises(ValueError, match="FileNotFoundError is hidden by OSError"):
        ErrorTable(rows)


def test_a_table_says_which_exceptions_it_lacks() -> None:
    class Root(Exception): ...

    class Known(Root): ...

    class KnownToo(Known): ...

    class Unknown(Root): ...

    table = ErrorTable([ErrorRow(Known, NotFound, "A"), ErrorRow(Root, NotFound, "ROOT")])
    assert table.missing(Root) == [Unknown]
    assert table.knows(KnownToo()) and not table.knows(ValueError())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_code_number_becomes_the_error_again(kind: type[ServiceError]) -> None:
    error = error_from_code(code_number(kind("m", reason="R")), "m", reason="R", retry_after=3.0)
    assert (type(error), error.retry_after) == (kind, 3.0)


def test_a_subclass_has_the_code_of_its_kind() -> None:
    class Full(ResourceExhausted): ...

    assert status_code(Full("m", reason="R")) is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "trailers",
    [(), ((DETAILS_KEY, b"\xff\xff"),)],
    ids=["no details", "broken details"],
)
def test_a_status_without_our_details_still_becomes_an_error(trailers: Any) -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        trailing_metadata=grpc.aio.Metadata(*trailers),
        details="connection refused",
    )
    got = from_rpc_error(error)
    assert (type(got), got.reason) == (errors.Unavailable, "UNAVAILABLE")
    assert got.message == "connection refused"


async def test_a_call_that_a_stopping_server_does_not_take_is_unavailable(serve: Serve) -> None:
    """Nobody cancelled it, whatever gRPC says."""

    async def generate(request: Any, context: Any) -> Any:
        begun.set()
        raise Unavailable("no more", reason="DRAINING")

    begun = asyncio.Event()
    found: set[tuple[type[ServiceError], str]] = set()

    async def ask_on(served: Served) -> None:
        while True:
            try:
                await served.stub.Generate(GenerateRequest())
            except grpc.aio.AioRpcError as error:
                typed = from_rpc_error(error)
                found.add((type(typed), typed.reason))
                if error.code() is grpc.StatusCode.CANCELLED or "connect" in typed.message:
                    return

    async with serve(generate) as served:
        calls = [asyncio.create_task(ask_on(served)) for _ in range(8)]
        await begun.wait()
        await served.server.stop(0.5)
        await asyncio.gather(*calls)
    assert found == {(Unavailable, "DRAINING"), (Unavailable, "UNAVAILABLE")}


async def test_a_working_call_is_left_alone(serve: Serve) -> None:
    async def generate(request: Any, context: Any) -> Any:
        return GenerateResponse(model=request.model)

    async with serve(generate) as served:
        assert (await served.stub.Generate(GenerateRequest(model="m"))).model == "m"
