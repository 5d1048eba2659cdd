"""What `generate` and `chat` were asked for, and the requests that say so."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from baton.v1 import generation_pb2
from batonctl.errors import InputError

_SCALARS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "max_tokens",
    "min_tokens",
    "n",
    "logprobs",
)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The fields of SamplingParams; None leaves a field to the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    # Each "token id=bias".
    logit_bias: tuple[str, ...] = ()
    ignore_eos: bool = False

    def to_proto(self) -> generation_pb2.SamplingParams:
        """InputError for what the wire format cannot carry; ranges are the server's to check."""
        params = generation_pb2.SamplingParams(ignore_eos=self.ignore_eos)
        for name in _SCALARS:
            value = getattr(self, name)
            if value is not None:
                with _field_errors(name):
                    setattr(params, name, value)
        with _field_errors("stop"):
            params.stop.extend(self.stop)
        with _field_errors("stop_token_id"):
            params.stop_token_ids.extend(self.stop_token_ids)
        for entry in self.logit_bias:
            token_id, separator, bias = entry.partition("=")
            with _field_errors("logit_bias"):
                if not separator:
                    raise ValueError("write it as ID=BIAS, for example 42=-1.5")
                params.logit_bias[int(token_id)] = float(bias)
        return params


@dataclass(frozen=True, slots=True)
class AskOptions:
    """Whom to ask and how to print the answer; `timeout` in seconds."""

    address: str
    model: str = ""
    timeout: float = 600.0
    json: bool = False
    sampling: SamplingOptions = field(default_factory=SamplingOptions)

    def request(self, prompt: generation_pb2.Prompt) -> generation_pb2.GenerateRequest:
        """The request for a prompt."""
        return generation_pb2.GenerateRequest(
            model=self.model, prompt=prompt, sampling=self.sampling.to_proto()
        )


def text_prompt(text: str) -> generation_pb2.Prompt:
    """A text to continue."""
    with _field_errors("prompt"):
        return generation_pb2.Prompt(text=text)


def chat_prompt(
    messages: Sequence[generation_pb2.ChatMessage], system: str = ""
) -> generation_pb2.Prompt:
    """A conversation to continue."""
    chat = generation_pb2.Chat()
    if system:
        chat.messages.append(message(generation_pb2.CHAT_ROLE_SYSTEM, system))
    chat.messages.extend(messages)
    return generation_pb2.Prompt(chat=chat)


def message(role: generation_pb2.ChatRole.ValueType, content: str) -> generation_pb2.ChatMessage:
    """One turn of a conversation."""
    with _field_errors("message"):
        return generation_pb2.ChatMessage(role=role, content=content)


@contextmanager
def _field_errors(name: str) -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError:
        raise InputError(f"{name}: not valid UTF-8") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: {error}") from None
