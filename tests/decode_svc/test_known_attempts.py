"""A second Submit of an attempt is refused for as long as it could be a mistake."""

import pytest

from chassis.errors import AlreadyExists
from decode_svc.known_attempts import REMEMBER_SECONDS, KnownAttempts


def test_an_attempt_is_refused_twice_within_a_minute() -> None:
    now = 0.0
    known = KnownAttempts(clock=lambda: now)
    known.add(b"a", living=False)
    now = REMEMBER_SECONDS - 1
    with pytest.raises(AlreadyExists):
        known.add(b"a", living=False)
    now = REMEMBER_SECONDS
    known.add(b"a", living=False)


def test_a_living_attempt_is_refused_however_long_ago_it_came() -> None:
    with pytest.raises(AlreadyExists):
        KnownAttempts().add(b"a", living=True)
