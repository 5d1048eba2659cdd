"""What the machine has in place of threads, of a gateway, and of its memory of an attempt."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from baton.v1 import decode_pb2, generation_pb2
from chassis.errors import ServiceError
from decode_svc.outbox import Outbox
from kvtransfer.transfer_thread import TransferThread
from prefill_svc.job import PrefillJob


class TurnedEngine:
    """Stands for EngineLoop: takes a turn when it is told to, however long it was to rest."""

    def __init__(
        self,
        stepper: Any,
        *,
        on_failure: Callable[[BaseException], None],
        rest: Callable[[], float] | None = None,
    ) -> None:
        self._stepper = stepper
        self._inbox: list[Callable[[], None]] = []

    def post(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)

    def turn(self) -> bool:
        """What was posted, then a step; False where there was nothing to do at all."""
        posted = bool(self._inbox)
        while self._inbox:
            self._inbox.pop(0)()
        return bool(self._stepper.step()) or posted


class TurnedTransfers(TransferThread):
    """A transfer thread without a thread."""

    def take_turn(self) -> None:
        self._run_inbox()
        if self.polling:
            self._queue.step()


class NotedOutbox(Outbox):
    """Takes note of what leaves the decode worker, at the moment when it leaves."""

    def __init__(self, hear: Callable[[decode_pb2.SessionResponse], None]) -> None:
        super().__init__()
        self._hear = hear

    def put_step(self, step: decode_pb2.StepOutputs) -> None:
        self._hear(decode_pb2.SessionResponse(step=step))

    def put(self, response: decode_pb2.SessionResponse) -> None:
        self._hear(response)


@dataclass(slots=True, eq=False)
class Try:
    """An attempt as its gateway sees it."""

    number: int
    token_ids: list[int]
    choices: tuple[int, ...]
    max_tokens: int
    prefill: PrefillJob | None = None
    refused: bool = False
    submitted: bool = False
    finished: decode_pb2.Finished | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)

    @property
    def attempt_id(self) -> bytes:
        return self.number.to_bytes(16, "big")

    @property
    def fields(self) -> dict[str, Any]:
        sampling = generation_pb2.SamplingParams(max_tokens=self.max_tokens, ignore_eos=True)
        return {
            "attempt_id": self.attempt_id,
            "token_ids": self.token_ids,
            "num_prompt_tokens": len(self.token_ids),
            "choices": self.choices,
            "sampling": sampling,
        }

    def prefill_error(self) -> ServiceError | None:
        """How Prefill ended, once it has."""
        assert self.prefill is not None
        error = self.prefill.ended.exception()
        assert error is None or isinstance(error, ServiceError)
        return error
