"""Whose failure an attempt ends with."""

import asyncio

import pytest

from chassis.errors import Aborted, NotFound, ResourceExhausted, ServiceError, Unavailable
from gateway.failures import is_retryable
from gateway.verdict import Verdict

PREFILL, DECODE = b"prefill", b"decode"
FULL = ResourceExhausted("full", reason="QUEUE_FULL")
UNKNOWN = NotFound("not here", reason="ATTEMPT_UNKNOWN")
BROKEN = Aborted("gave up", reason="PULL_BROKEN")
LOST = Unavailable("gone", reason="DECODE_WORKER_LOST")

Said = tuple[ServiceError, bytes]


class Decided:
    """Takes the verdict."""

    def __init__(self, echo_seconds: float = 3600.0) -> None:
        self.verdict = Verdict(self._decide, echo_seconds)
        self.words: list[tuple[ServiceError, bytes | None]] = []
        self.came = asyncio.Event()

    def _decide(self, error: ServiceError, worker: bytes | None) -> None:
        self.verdict.close()
        self.words.append((error, worker))
        self.came.set()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param((UNKNOWN, DECODE), (FULL, PREFILL), (FULL, PREFILL), id="prefill-knows"),
        pytest.param((BROKEN, PREFILL), (LOST, DECODE), (LOST, DECODE), id="decode-knows"),
        pytest.param((BROKEN, PREFILL), (UNKNOWN, DECODE), (BROKEN, PREFILL), id="nobody-knows"),
    ],
)
async def test_the_leg_that_knows_why_decides(first: Said, second: Said, expected: Said) -> None:
    decided = Decided()
    decided.verdict.hear(*first, other_runs=True)
    assert decided.words == []
    decided.verdict.hear(*second, other_runs=False)
    assert decided.words == [expected]


async def test_a_legs_own_word_decides_at_once() -> None:
    decided = Decided()
    decided.verdict.hear(FULL, PREFILL, other_runs=True)
    assert decided.words == [(FULL, PREFILL)]


async def test_an_echo_decides_where_the_other_leg_is_over() -> None:
    decided = Decided()
    decided.verdict.hear(UNKNOWN, DECODE, other_runs=False)
    assert decided.words == [(UNKNOWN, DECODE)]


async def test_an_echo_decides_where_the_other_leg_stays_silent() -> None:
    decided = Decided(echo_seconds=0.0)
    decided.verdict.hear(UNKNOWN, DECODE, other_runs=True)
    await asyncio.wait_for(decided.came.wait(), 10)
    assert decided.words == [(UNKNOWN, DECODE)]


async def test_an_echo_decides_where_the_other_leg_ends_well() -> None:
    decided = Decided()
    decided.verdict.hear(UNKNOWN, DECODE, other_runs=True)
    decided.verdict.settle()
    assert decided.words == [(UNKNOWN, DECODE)]


async def test_an_echo_alone_is_tried_again() -> None:
    assert is_retryable(UNKNOWN) and is_retryable(BROKEN)
