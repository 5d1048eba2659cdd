"""Server interceptors as context managers: written once, entered around unary and stream calls."""

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

Handler = Any  # grpc.RpcMethodHandler; its stubs are generic over types an interceptor never sees.
Context = Any  # grpc.aio.ServicerContext, for the same reason.


@dataclass(frozen=True, slots=True)
class Call:
    """What an interceptor knows about a call: ``/package.Service/Method`` and its metadata."""

    method: str
    metadata: tuple[tuple[str, str | bytes], ...]
    request_streaming: bool

    @property
    def name(self) -> str:
        """The method's own name."""
        return self.method.rpartition("/")[2]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call inside ``around(call, context)``.

    Streaming handlers, generators or not, become writers: so a cancel reaches the context
    manager at once, not when a suspended generator is collected.
    """

    @abstractmethod
    def around(self, call: Call, context: Context) -> AbstractAsyncContextManager[None]:
        """Entered before the handler; sees its exception, CancelledError included."""

    def applies(self, call: Call) -> bool:
        """Whether the call is intercepted at all."""
        return True

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        details: Any = handler_call_details
        call = Call(details.method, details.invocation_metadata, handler.request_streaming)
        return self._wrap(handler, call) if self.applies(call) else handler

    def _wrap(self, handler: Handler, call: Call) -> Handler:
        respond: Any
        if handler.response_streaming:
            respond = self._stream(handler.stream_stream or handler.unary_stream, call)
        else:
            respond = self._unary(handler.stream_unary or handler.unary_unary, call)
        return FACTORIES[handler.request_streaming, handler.response_streaming](
            respond, handler.request_deserializer, handler.response_serializer
        )

    def _unary(self, behaviour: Any, call: Call) -> Callable[[Any, Context], Awaitable[Any]]:
        async def respond(request: Any, context: Context) -> Any:
            async with self.around(call, context):
                return await behaviour(request, context)

        return respond

    def _stream(self, behaviour: Any, call: Call) -> Callable[[Any, Context], Awaitable[None]]:
        async def respond(request: Any, context: Context) -> None:
            async with self.around(call, context):
                responses = behaviour(request, context)
                if inspect.isawaitable(responses):
                    await responses
                    return
                async with aclosing(responses):
                    async for response in responses:
                        await context.write(response)

        return respond


FACTORIES: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
