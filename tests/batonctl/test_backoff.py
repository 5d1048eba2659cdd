"""How long a dead service waits before it starts again."""

from batonctl.backoff import FORGET_AFTER, MAX_DELAY, Backoff


def test_delays_double_up_to_the_most() -> None:
    backoff = Backoff()
    delays = [backoff.after_death(uptime=0.0) for _ in range(9)]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == MAX_DELAY


def test_a_long_life_is_a_fresh_start() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.after_death(uptime=1.0)
    assert backoff.after_death(uptime=FORGET_AFTER) == 0.5
    assert backoff.after_death(uptime=0.0) == 1.0
