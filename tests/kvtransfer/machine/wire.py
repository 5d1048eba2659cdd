"""gRPC between two workers in one thread: each message moves when the test says so."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from chassis.errors import ServiceError
from chassis.status import DETAILS_KEY, status_code, to_status
from kvtransfer.errors import TRANSFER_ERRORS

_CANCEL = object()
READY, IDLE = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE


class Inbox:
    """What one end of a call has on its way to it, has got, and how it ends."""

    def __init__(self) -> None:
        self.in_transit: deque[Any] = deque()
        self._arrived: deque[Any] = deque()
        self._end: Any = None
        self._changed = asyncio.Event()

    def send(self, item: Any) -> None:
        self.in_transit.append(item)

    def deliver(self) -> Any:
        """Moves the next item; messages can be read from now on."""
        item = self.in_transit.popleft()
        if isinstance(item, Ending):
            self.finish(item.result)
        elif item is not _CANCEL:
            self._arrived.append(item)
            self._changed.set()
        return item

    def finish(self, result: Any) -> None:
        """Ends the reading, after what has arrived; the first end counts."""
        self.in_transit.clear()
        if self._end is None:
            self._end = result
            self._changed.set()

    @property
    def finished(self) -> bool:
        return self._end is not None

    async def read(self) -> Any:
        while not self._arrived:
            if isinstance(self._end, BaseException):
                raise self._end
            if self._end is not None:
                return self._end
            self._changed.clear()
            await self._changed.wait()
        return self._arrived.popleft()


class Ending:
    """The status of a call: EOF, or the error that the client's read raises."""

    def __init__(self, result: Any) -> None:
        self.result = result


class Call:
    """A Pull, with what its client and its handler see of it."""

    def __init__(
        self,
        handler: Callable[[Any, Any], Awaitable[None]],
        on_bug: Callable[[Exception], None],
    ) -> None:
        self.to_client, self.to_server = Inbox(), Inbox()
        self.on_bug = on_bug
        self._handler = asyncio.ensure_future(self._serve(handler))

    # The client's side.

    async def read(self) -> Any:
        return await self.to_client.read()

    async def write(self, message: Any) -> None:
        if self.to_client.finished:
            raise asyncio.InvalidStateError("the call is over")
        self.to_server.send(message)

    def cancel(self) -> bool:
        if self.to_client.finished:
            return False
        self.to_client.finish(asyncio.CancelledError())
        self.to_server.send(_CANCEL)
        return True

    # The wire's side.

    @property
    def inboxes(self) -> list[Inbox]:
        return [self.to_client, self.to_server]

    def deliver(self, inbox: Inbox) -> None:
        if inbox.deliver() is _CANCEL:
            self._handler.cancel()

    def break_off(self) -> None:
        """The connection is gone: both ends notice."""
        self.to_client.finish(unavailable())
        self._handler.cancel()
        self.to_server.in_transit.clear()

    async def _serve(self, handler: Callable[[Any, Any], Awaitable[None]]) -> None:
        result: Any = grpc.aio.EOF
        try:
            await handler(None, Context(self))
        except Exception as error:
            if not TRANSFER_ERRORS.knows(error):
                self.on_bug(error)
            result = as_rpc_error(TRANSFER_ERRORS.translate(error))
        self.to_client.send(Ending(result))


class Context:
    """What the handler reads from and writes to."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def read(self) -> Any:
        return await self._call.to_server.read()

    async def write(self, message: Any) -> None:
        self._call.to_client.send(message)


class Wire:
    """The connections from decode to a prefill worker; ``producer`` serves at the other end."""

    def __init__(self) -> None:
        self.producer: Any = None
        self.channels: list[Channel] = []
        self.bugs: list[Exception] = []
        """What handlers raised that no table knows."""

    def open(self, *_: Any) -> "Channel":
        channel = Channel(self)
        self.channels.append(channel)
        return channel

    @property
    def deliverable(self) -> list[tuple[Call, Inbox]]:
        """Every way on which a message could move now."""
        calls = [call for channel in self.channels for call in channel.calls]
        return [(call, inbox) for call in calls for inbox in call.inboxes if inbox.in_transit]

    def break_off(self) -> None:
        for channel in self.channels:
            channel.break_off()


class Channel:
    """As much of grpc.aio.Channel as a stub and ``PrefillPeer`` use."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._state = IDLE
        self._changed = asyncio.Event()
        self.calls: list[Call] = []

    def unary_unary(self, *_: Any, **__: Any) -> Callable[..., Awaitable[Any]]:
        async def handshake(request: Any, **_: Any) -> Any:
            self._set(READY)
            try:
                return await self._wire.producer.Handshake(request, None)
            except Exception as error:
                raise as_rpc_error(TRANSFER_ERRORS.translate(error)) from error

        return handshake

    def stream_stream(self, *_: Any, **__: Any) -> Callable[[], Call]:
        def pull() -> Call:
            self._set(READY)
            call = Call(self._wire.producer.Pull, self._wire.bugs.append)
            self.calls.append(call)
            return call

        return pull

    def get_state(self) -> grpc.ChannelConnectivity:
        return self._state

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        while self._state is last:
            self._changed.clear()
            await self._changed.wait()

    def break_off(self) -> None:
        self._set(IDLE)
        for call in self.calls:
            call.break_off()
        self.calls.clear()

    async def close(self) -> None:
        for call in self.calls:
            call.cancel()
        self._set(grpc.ChannelConnectivity.SHUTDOWN)

    def _set(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state
        self._changed.set()


def as_rpc_error(error: ServiceError) -> grpc.aio.AioRpcError:
    """The status as a client sees it."""
    details = (DETAILS_KEY, to_status(error).SerializeToString())
    return grpc.aio.AioRpcError(
        status_code(error), grpc.aio.Metadata(), grpc.aio.Metadata(details), error.message
    )


def unavailable() -> grpc.aio.AioRpcError:
    """gRPC's own word for a connection that broke."""
    empty = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, "broken")
