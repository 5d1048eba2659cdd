"""The one mutable object inside a worker: a request on its way through the engine."""

import enum
from dataclasses import dataclass, field

from engine.sampling_params import SamplingParams
from engine.token_counts import TokenCounts

# Stands among token ids for one that the device is still drawing.
PENDING = -1


class RequestStatus(enum.Enum):
    """Where a request stands."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_EOS = enum.auto()
    FINISHED_STOP = enum.auto()
    FINISHED_LENGTH = enum.auto()
    FINISHED_CANCELLED = enum.auto()

    @property
    def is_finished(self) -> bool:
        return self.name.startswith("FINISHED")


@dataclass(slots=True, eq=False)
class Request:
    """One sequence of tokens that grows.

    ``token_ids[:num_prompt_tokens]`` is what the client sent; output starts there, also when this
    request continues an earlier attempt and more tokens are known from the start (rule 5.3).
    KV exists for ``token_ids[:num_computed_tokens]`` in the blocks of ``block_table``.
    A prefill worker samples one first token per entry of ``choices``; everywhere else a request
    has exactly one choice.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    choices: tuple[int, ...] = (0,)
    cache_salt: bytes = b""
    status: RequestStatus = RequestStatus.WAITING
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    token_counts: TokenCounts = field(default_factory=TokenCounts)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_running(self) -> bool:
        return self.status is RequestStatus.RUNNING

    @property
    def awaits_its_end(self) -> bool:
        """Whether the last token that it may have is still being drawn."""
        return self.num_output_tokens >= self.params.max_tokens

    def expect(self) -> int:
        """Counts a token in that a step under way will draw; returns its place for ``resolve``."""
        self.token_ids.append(PENDING)
        return len(self.token_ids) - 1

    def resolve(self, place: int, token_id: int) -> None:
        """Notes an expected token; where it ends the request, those expected after it are void."""
        self.token_ids[place] = token_id
        number = place + 1 - self.num_prompt_tokens
        if (finish := self.finish_on(token_id, number)) is not None:
            self.status = finish
            del self.token_ids[place + 1 :]

    def append(self, token_id: int) -> None:
        """Adds a sampled token and finishes the request where the token or its count says so."""
        self.token_ids.append(token_id)
        if (finish := self.finish_on(token_id, self.num_output_tokens)) is not None:
            self.status = finish

    def finish_on(self, token_id: int, num_output_tokens: int) -> RequestStatus | None:
        """Final status if ``token_id`` is output token number ``num_output_tokens``, or None."""
        params = self.params
        if num_output_tokens >= params.min_tokens:
            if token_id in params.stop_token_ids:
                return RequestStatus.FINISHED_STOP
            if token_id in params.eos_token_ids and not params.ignore_eos:
                return RequestStatus.FINISHED_EOS
        if num_output_tokens >= params.max_tokens:
            return RequestStatus.FINISHED_LENGTH
        return None
