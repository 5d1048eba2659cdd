"""The id of the call that the current task serves."""

from contextvars import ContextVar

METADATA_KEY = "x-request-id"

_request_id: ContextVar[str] = ContextVar("baton_request_id", default="")


def current_request_id() -> str:
    """The id (32 hex digits, equal to the trace id) of the call served now, "" outside of one."""
    return _request_id.get()


def set_request_id(request_id: str) -> None:
    """Marks this task, and what it starts, as working for a request; each call has its context."""
    _request_id.set(request_id)
