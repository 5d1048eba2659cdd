"""An attempt as the prefill engine sees it, and what a step tells about it."""

from dataclasses import dataclass, field

from engine.batch import Sample, SchedulerOutput
from engine.request import Request
from kvtransfer.handoff import Chunk


@dataclass(slots=True, eq=False)
class Prompt:
    """A request with its promises. Belongs to the engine thread once it is in the scheduler.

    Blocks that hold ``request.token_ids[:num_announced_tokens]`` are leased: their ids were told
    to a decode worker, so they come back only when the event loop has ended the lease.
    ``hand_off`` is False where no decode worker will ask for the KV; ``started`` means that
    nothing but this worker holds the prompt up.
    """

    attempt_id: bytes
    request: Request
    hand_off: bool
    started: bool = field(init=False)
    revoking: bool = False
    num_announced_tokens: int = 0
    computed_time: float = 0.0

    def __post_init__(self) -> None:
        self.started = not self.hand_off


@dataclass(frozen=True, slots=True)
class Admission:
    """A prompt got all its blocks; ``chunk`` is what the prefix cache already had."""

    prompt: Prompt
    chunk: Chunk | None


@dataclass(frozen=True, slots=True)
class Progress:
    """A prompt's part of a finished step.

    ``samples`` is empty until the prompt is computed; then ``last_chunk`` is its partial block.
    """

    prompt: Prompt
    num_new_tokens: int
    chunk: Chunk | None
    last_chunk: Chunk | None = None
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """What to compute next, whom to tell that it begins, and whose lease should end for it."""

    output: SchedulerOutput
    admissions: tuple[Admission, ...]
    revoke: Prompt | None
