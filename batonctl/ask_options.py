"""What `generate` and `chat` were asked for."""

from dataclasses import dataclass, field
from typing import Any, cast

from baton.client import Sampling
from baton.v1 import generation_pb2
from batonctl.errors import InputError


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

    def to_sampling(self) -> Sampling:
        """What was set; InputError for what the wire cannot carry. The server checks ranges."""
        given: dict[str, Any] = {
            name: value
            for name in self.__dataclass_fields__
            if (value := getattr(self, name)) is not None and value is not False and value != ()
        }
        if "logit_bias" in given:
            given["logit_bias"] = dict(_parse_bias(entry) for entry in self.logit_bias)
        for name, value in given.items():
            try:
                generation_pb2.SamplingParams(**{name: value})
            except UnicodeEncodeError:
                raise InputError(f"{name}: not valid UTF-8") from None
            except ValueError as error:
                raise InputError(f"{name}: {error}") from None
        return cast(Sampling, given)


@dataclass(frozen=True, slots=True)
class AskOptions:
    """Whom to ask and how to print the answer; `timeout` in seconds."""

    address: str
    model: str = ""
    timeout: float = 600.0
    json: bool = False
    sampling: SamplingOptions = field(default_factory=SamplingOptions)


def require_utf8(text: str, name: str) -> str:
    """The text; InputError if it came from bytes that are not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name}: not valid UTF-8 (character {error.start})") from None
    return text


def _parse_bias(entry: str) -> tuple[int, float]:
    token_id, separator, bias = entry.partition("=")
    try:
        if separator:
            return int(token_id), float(bias)
    except ValueError:
        pass
    raise InputError(f"logit_bias: {entry!r} is not ID=BIAS", hint="for example 42=-1.5")
