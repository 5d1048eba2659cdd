"""Steps that were launched and are not taken in yet."""

from dataclasses import dataclass
from typing import Self

from engine.batch import ScheduledRequest
from engine.request import Request


@dataclass(frozen=True, slots=True)
class PartUnderWay:
    """Tokens ``[first_token, end_token)`` of a request are being computed; ``place`` is that of
    the token which its only choice draws, None where it draws for several or not at all."""

    request: Request
    first_token: int
    end_token: int
    place: int | None

    @classmethod
    def begin(cls, part: ScheduledRequest, *, draws: bool) -> Self:
        """Counts the part's tokens as computed, and the one that it draws as expected."""
        request, first = part.request, part.request.num_computed_tokens
        request.num_computed_tokens += part.num_new_tokens
        place = request.expect() if draws else None
        return cls(request, first, request.num_computed_tokens, place)


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """Parts in the order of the SchedulerOutput that was launched."""

    parts: tuple[PartUnderWay, ...]
