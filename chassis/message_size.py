"""The size that one message may have."""

from google.protobuf.message import Message

from chassis.channel import MESSAGE_LIMIT
from chassis.errors import ResourceExhausted


def check_answer(answer: Message) -> None:
    """Raises ResourceExhausted (MESSAGE_TOO_LARGE) for an answer that gRPC would not send.

    It would end the call itself, without a reason.
    """
    num_bytes = answer.ByteSize()
    if num_bytes > MESSAGE_LIMIT:
        raise ResourceExhausted(
            f"the answer has {num_bytes} bytes; the limit is {MESSAGE_LIMIT} bytes",
            reason="MESSAGE_TOO_LARGE",
            metadata={"limit_bytes": str(MESSAGE_LIMIT), "answer_bytes": str(num_bytes)},
        )
