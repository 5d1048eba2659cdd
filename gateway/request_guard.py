"""Refuses requests by their bytes, before anything is decoded."""

from google.protobuf.descriptor import Descriptor

from chassis.complaints import refuse
from chassis.errors import ResourceExhausted, ServiceError
from chassis.reasons import Reason
from chassis.wire_format import largest_field
from gateway.model_limits import ModelLimits


class RequestGuard:
    """Refuses messages that are larger than any that the model could serve.

    Decoding runs on the event loop, and there a few megabytes of tiny parts take most of a second.
    """

    def __init__(self, limits: ModelLimits) -> None:
        self._limits = limits

    def __call__(self, descriptor: Descriptor, data: bytes) -> ServiceError | None:
        """The error to answer with, or None for a message that may be decoded."""
        limits = self._limits
        if len(data) <= limits.max_request_bytes:
            return None
        field = largest_field(descriptor, data)
        if field.startswith(("prompt", "token_ids")):
            return refuse(
                Reason.PROMPT_TOO_LARGE,
                field,
                f"a request of {len(data)} bytes is more than a context of "
                f"{limits.max_context_tokens} tokens holds",
            )
        return ResourceExhausted(
            f"the request has {len(data)} bytes; the limit is {limits.max_request_bytes} bytes",
            reason="MESSAGE_TOO_LARGE",
        )
