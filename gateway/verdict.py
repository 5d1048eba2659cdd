"""Which of the two legs' failures is the attempt's."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from chassis.errors import ServiceError
from gateway.failures import is_echo

LegT = TypeVar("LegT")
"""How the legs are told apart."""

# A leg that ends for the other one's reason is heard of at about the same time as that one.
ECHO_SECONDS = 1.0


class Verdict(Generic[LegT]):
    """Decides once, for the leg that knows why (protocol 5.1).

    A leg's own word decides at once. What it says only because the other leg has ended (an echo,
    see failures.py) waits for that one's word while it still runs, and decides where none comes.
    """

    def __init__(
        self,
        decide: Callable[[ServiceError, LegT], None],
        echo_seconds: float = ECHO_SECONDS,
    ) -> None:
        """``decide`` is told the error and whose it is."""
        self._decide = decide
        self._echo_seconds = echo_seconds
        self._echo: tuple[ServiceError, LegT] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, error: ServiceError, worker: LegT, *, other_runs: bool) -> None:
        """A leg has failed; ``other_runs``: the other one may still say something."""
        if not is_echo(error):
            self._decide(error, worker)
        elif self._echo is None and other_runs:
            self._echo = (error, worker)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._echo_seconds, self.settle)
        else:
            # Both say that it was the other one: so much for the reason.
            self._decide(*(self._echo or (error, worker)))

    def settle(self) -> None:
        """No more words are to be expected: an echo that waits decides."""
        if self._echo is not None:
            self._decide(*self._echo)

    def close(self) -> None:
        """The attempt is over."""
        self._echo = None
        if self._timer is not None:
            self._timer.cancel()
