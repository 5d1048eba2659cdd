"""Output that waits for its client."""

from baton.v1 import generation_pb2
from chassis.errors import ResourceExhausted
from gateway.memory import LOGPROB_BYTES, TOKEN_BYTES, HeldMemory


class UnreadOutput:
    """Counts one request's tokens that its client has not read, here and in the gateway's memory.

    A log probability counts like a token: the one of the token that was chosen, and the others
    that were asked for.
    """

    def __init__(
        self, sampling: generation_pb2.SamplingParams, max_tokens: int, memory: HeldMemory
    ) -> None:
        self._num_logprobs = 1 + sampling.logprobs if sampling.HasField("logprobs") else 0
        self._max_tokens = max_tokens
        self._memory = memory
        self._num_tokens = 0

    def add(self, num_tokens: int) -> None:
        """Raises ResourceExhausted (CLIENT_TOO_SLOW) where so many more are too many."""
        self._change(num_tokens)
        if self._num_tokens * max(self._num_logprobs, 1) > self._max_tokens:
            text = f"the client left {self._num_tokens} tokens unread"
            raise ResourceExhausted(text, reason="CLIENT_TOO_SLOW")

    def clear(self) -> None:
        """All of it is taken, or dropped."""
        self._change(-self._num_tokens)

    def _change(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._memory.add(num_tokens * (TOKEN_BYTES + LOGPROB_BYTES * self._num_logprobs))
