"""An attempt as the decode engine sees it, and what a step tells about it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from decode_svc.pace import Pace
from engine.batch import Sample, SchedulerOutput
from engine.request import Request, RequestStatus
from engine.sampling_params import SamplingParams
from kvtransfer.handoff import FirstSample
from worker.leg import Leg


@dataclass(slots=True, eq=False)
class Attempt:
    """One Submit. The fields up to ``computes_prompt`` never change, the rest is the engine's.

    ``session`` and ``handle`` say where its tokens go.
    ``prompt_blocks`` hold the prompt in order, the first ``num_cached_blocks`` of them pinned from
    the prefix cache. ``spare_blocks`` will become private copies of the partial last block.
    ``requests`` are the choices that go on here, from ``join`` on; the gateway wants none of the
    ``dropped`` ones any more. ``released`` means that the prefill worker answered
    Released(alive): only then may tokens leave and blocks be shared (protocol 3.6). ``prompt`` is
    set while this worker computes the prompt itself, which needs nobody's word (protocol 5.5).
    """

    attempt_id: bytes
    session: int
    handle: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    params: SamplingParams
    choices: tuple[int, ...]
    cache_salt: bytes
    block_hashes: Sequence[bytes]
    computes_prompt: bool = False
    prompt: Request | None = None
    prompt_blocks: list[int] = field(default_factory=list)
    num_cached_blocks: int = 0
    spare_blocks: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    released: bool = False
    dropped: set[int] = field(default_factory=set)
    pace: Pace = field(default_factory=Pace)

    @classmethod
    def of(cls, leg: Leg, session: int, handle: int, *, computes_prompt: bool) -> Self:
        return cls(
            attempt_id=leg.attempt_id,
            session=session,
            handle=handle,
            token_ids=leg.token_ids,
            num_prompt_tokens=leg.num_prompt_tokens,
            params=leg.params,
            choices=leg.choices,
            cache_salt=leg.cache_salt,
            block_hashes=leg.block_hashes,
            computes_prompt=computes_prompt,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_missing_blocks(self) -> int:
        """Blocks that it holds for its prompt beyond what was cached."""
        return len(self.prompt_blocks) - self.num_cached_blocks + len(self.spare_blocks)

    @property
    def continues(self) -> bool:
        """Whether it goes on with an answer that has begun."""
        return self.num_tokens > self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return all(request.status.is_finished for request in self.requests)

    @property
    def going_on(self) -> list[Request]:
        """The choices that have a token to compute."""
        return [
            request
            for request in self.requests
            if not request.status.is_finished and not request.awaits_its_end
        ]

    def drop(self, choices: Collection[int]) -> None:
        """These choices are not wanted any more, whatever has become of them."""
        self.dropped.update(choices)
        for request in self.requests:
            if request.choices[0] in choices and not request.status.is_finished:
                request.status = RequestStatus.FINISHED_CANCELLED

    def wants(self, first: FirstSample) -> bool:
        """Whether a choice goes on after its first token."""
        return not first.finished and first.choice not in self.dropped

    @property
    def unfinished_choices(self) -> tuple[int, ...]:
        """Choices whose end has not left, of those that went on here."""
        return tuple(
            request.choices[0]
            for request in self.requests
            if not (self.released and request.status.is_finished)
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """Room for a prompt: what follows its ``cached_tokens`` is read or computed into
    ``block_ids``."""

    attempt: Attempt
    cached_tokens: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A token drawn for one choice; ``status`` is final where the choice ends on it."""

    attempt: Attempt
    choice: int
    index: int
    sample: Sample
    status: RequestStatus


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What to compute next. ``attempts`` runs parallel to ``output.scheduled``."""

    output: SchedulerOutput
    attempts: tuple[Attempt, ...]
    grants: tuple[Grant, ...]
    preempted: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Prompted:
    """An attempt whose prompt this worker has computed, and the blocks to copy for its choices
    before the next step, as (source, destination)."""

    attempt: Attempt
    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DecodeProgress:
    """What a step brought."""

    rows: tuple[Row, ...]
    prompted: tuple[Prompted, ...]
