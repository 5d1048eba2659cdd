"""What clients meet, in one process or in several."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """Seconds, and counts. ``gaps`` lie between two messages of a stream, ``refusals`` between a
    request and its RESOURCE_EXHAUSTED."""

    gaps: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    num_answers: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def failed(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def __add__(self, other: "Outcome") -> "Outcome":
        reasons = {*self.failures, *other.failures}
        return Outcome(
            self.gaps + other.gaps,
            self.first_tokens + other.first_tokens,
            self.token_times + other.token_times,
            self.refusals + other.refusals,
            self.num_answers + other.num_answers,
            {each: self.failures.get(each, 0) + other.failures.get(each, 0) for each in reasons},
        )
