"""Turns exceptions of handlers into rich statuses."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from chassis.error_table import INTERNAL_MESSAGE, ErrorTable
from chassis.errors import Internal, ServiceError
from chassis.interceptor import Call, CallInterceptor, Context
from chassis.status import DETAILS_KEY, status_code, to_status

log = logging.getLogger(__name__)


class ErrorInterceptor(CallInterceptor):
    """Ends a call whose handler raised with the status of the service's error table.

    What the table does not know is our own bug: INTERNAL without details for the caller, and a
    traceback in the log.
    """

    def __init__(self, table: ErrorTable) -> None:
        self._table = table

    @asynccontextmanager
    async def around(self, call: Call, context: Context) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            if _cancelled_by_peer():
                raise
            # A task that the handler waited for was cancelled inside this process. gRPC would
            # take it for the caller's own cancel and never send a status.
            log.exception("%s: cancelled from inside", call.method)
            await abort(context, Internal(INTERNAL_MESSAGE, reason="INTERNAL"))
        except Exception as error:
            if context.done():
                # The call is over (the peer left while a message was written): nobody to tell.
                log.debug("%s: ended after %r", call.method, error)
                raise asyncio.CancelledError from error
            if not self._table.knows(error):
                log.exception("%s: failed", call.method)
            await abort(context, self._table.translate(error))


async def abort(
    context: Context, error: ServiceError, trailers: Sequence[tuple[str, str]] = ()
) -> None:
    """Ends the call with the error's status; raises grpc.aio.AbortError, or CancelledError where
    the peer leaves at this moment."""
    status = to_status(error)
    details = (DETAILS_KEY, status.SerializeToString())
    try:
        await context.abort(status_code(error), status.message, (details, *trailers))
    except grpc.aio.InternalError as unsent:
        # Left to itself gRPC logs it as a fault of the handler.
        raise asyncio.CancelledError from unsent


def _cancelled_by_peer() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
