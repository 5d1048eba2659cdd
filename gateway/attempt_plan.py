"""What both legs of an attempt are told."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from baton.v1 import generation_pb2
from chassis.telemetry import Span, SpanKind, start_span
from gateway.router import Route


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """``attempt_id`` is random, ``deadline`` on the monotonic clock.

    ``token_ids`` is the prompt followed by what is committed of the choices; its first
    ``num_prompt_tokens`` are the prompt.
    """

    attempt_id: bytes
    route: Route
    token_ids: Sequence[int]
    num_prompt_tokens: int
    choices: Sequence[int]
    sampling: generation_pb2.SamplingParams
    eos_token_ids: Collection[int]
    deadline: float
    parent: Span

    @property
    def num_known_output_tokens(self) -> int:
        """Tokens after the prompt that are committed already."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def seconds_left(self) -> float:
        """Until the deadline; above zero, because zero would mean none."""
        return max(self.deadline - time.monotonic(), 0.001)

    def start_leg(self, name: str, address: str) -> Span:
        """The span of a call to the worker at ``address``."""
        attributes = {"server.address": address, "baton.attempt.id": self.attempt_id.hex()}
        return start_span(name, parent=self.parent, kind=SpanKind.CLIENT, attributes=attributes)
