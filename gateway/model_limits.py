"""How much of a request the model can take."""

from dataclasses import dataclass
from typing import Self

from gateway.tokenizer import Tokenizer

# More bytes a token than this, on average over a whole prompt, is no text anybody sends: runs of
# spaces and rules of dashes reach it, prose and code stay near four.
_MAX_MEAN_TOKEN_BYTES = 32
# What a message needs beside a prompt's text: a few bytes a turn or token, and the sampling.
_MESSAGE_BYTES_PER_TOKEN = 16
_OTHER_MESSAGE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Token ids below ``vocab_size`` exist; prompt and output share ``max_context_tokens``; a
    prompt over ``max_prompt_bytes`` of UTF-8 cannot fit and is refused without tokenizing it."""

    vocab_size: int
    max_context_tokens: int
    max_prompt_bytes: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_context_tokens: int | None = None) -> Self:
        """``max_context_tokens``: what the workers take, where that is less than the model's."""
        context = min(
            max_context_tokens or tokenizer.max_context_tokens, tokenizer.max_context_tokens
        )
        token_bytes = min(tokenizer.max_token_bytes, _MAX_MEAN_TOKEN_BYTES)
        return cls(tokenizer.vocab_size, context, context * token_bytes)

    @property
    def max_request_bytes(self) -> int:
        """No request that can be served has more bytes on the wire."""
        per_token = _MESSAGE_BYTES_PER_TOKEN * self.max_context_tokens
        return self.max_prompt_bytes + per_token + _OTHER_MESSAGE_BYTES
