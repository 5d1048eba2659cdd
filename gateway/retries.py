"""How often a request is tried, and after what pauses (protocol 5.4)."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence

from chassis.errors import Aborted, ServiceError, Unavailable
from gateway.attempt import Attempt
from gateway.choice import Choice
from gateway.failures import Preempted, is_draining, is_fault, is_retryable, is_revoked

_FIRST_PAUSE_SECONDS = 0.02
_LAST_PAUSE_SECONDS = 1.0


class Retries:
    """Counts the tries of each choice of a request. What does not count has an end of its own:

    why an attempt failed           counted
    decode took the blocks back,    not if decode had brought tokens: then the count begins anew
    or a worker failed
    prefill took the blocks back    not if it had brought a token: that often at most max_tokens
    the worker drains               not the first time: that often at most there are workers
    anything else                   yes

    A worker's failures also cost of the retry budget of its address. ``avoid`` holds the boot ids
    of workers that failed or refused an attempt: they are taken only where nobody else is left.
    """

    def __init__(self, max_attempts: int, rng: random.Random) -> None:
        self.avoid: set[bytes] = set()
        self._max_attempts = max_attempts
        self._rng = rng
        self._tries: Counter[int] = Counter()

    def began(self, choices: Iterable[Choice]) -> None:
        """An attempt for these choices begins."""
        self._tries.update(choice.index for choice in choices)

    def num_tries(self, choices: Iterable[Choice]) -> int:
        """Counted tries of the choice that has most of them."""
        return max(self._tries[choice.index] for choice in choices)

    def pause_after(
        self, attempt: Attempt, error: ServiceError, unfinished: Sequence[Choice]
    ) -> float:
        """Seconds until ``unfinished`` may be tried again.

        Raises the error to end the request with where that cannot help, or was done too often.
        """
        self._forgive(attempt, error, unfinished)
        if not is_retryable(error):
            raise error
        num_tries = self.num_tries(unfinished)
        if num_tries >= self._max_attempts:
            raise Unavailable(
                f"gave up after {num_tries} attempts; the last one: {error.message}",
                reason="ATTEMPTS_EXHAUSTED",
            )
        blamed = attempt.blamed_for(error)
        for worker in blamed:
            if not worker.retry_budget.take():
                text = f"{worker.identity.name} has failed too much of late: {error.message}"
                raise Unavailable(text, reason="RETRY_BUDGET_EXHAUSTED")
        self.avoid.update(worker.identity.boot_id for worker in blamed)
        if attempt.failed_worker is not None and not isinstance(error, Aborted):
            self.avoid.add(attempt.failed_worker.identity.boot_id)
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** max(num_tries - 1, 0), _LAST_PAUSE_SECONDS)
        return pause * self._rng.uniform(0.5, 1.5)

    def _forgive(self, attempt: Attempt, error: ServiceError, unfinished: Sequence[Choice]) -> None:
        known = attempt.plan.num_known_output_tokens
        worker = attempt.failed_worker
        is_known = worker is not None and worker.identity.boot_id in self.avoid
        is_a_drain = is_draining(error) and not is_known
        for choice in unfinished:
            num_new = len(choice.token_ids) - known
            # The first token is prefill's: only a second one shows that decode got anywhere.
            if (isinstance(error, Preempted) or is_fault(error)) and num_new > 1:
                self._tries[choice.index] = 0
            elif is_a_drain or (is_revoked(error) and num_new > 0):
                self._tries[choice.index] -= 1
