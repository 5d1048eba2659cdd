"""When a worker that keeps failing is left alone (protocol 5.4)."""

import pytest

from gateway.circuit import Circuit, RetryBudget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.circuit = Circuit(self.clock)

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.now += 0.01
            sent_at = self.circuit.sent()
            self.clock.now += 0.01
            self.circuit.failed(sent_at)

    def wait_for_probe(self) -> None:
        self.clock.now += self.circuit.seconds_to_probe


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_failures_in_a_row_open_it(bench: Bench) -> None:
    bench.fail(4)
    assert bench.circuit.allows
    bench.fail()
    assert not bench.circuit.allows
    assert bench.circuit.seconds_to_probe == pytest.approx(1.0)


def test_a_success_between_failures_keeps_it_closed(bench: Bench) -> None:
    for _ in range(10):
        bench.fail(4)
        bench.circuit.succeeded()
    assert bench.circuit.allows


def test_attempts_that_fail_together_are_one_failure(bench: Bench) -> None:
    sent = [bench.circuit.sent() for _ in range(100)]
    bench.clock.now += 1
    for sent_at in sent:
        bench.circuit.failed(sent_at)
    assert bench.circuit.allows


def test_one_attempt_probes_and_its_success_closes_it(bench: Bench) -> None:
    bench.fail(5)
    bench.wait_for_probe()
    assert bench.circuit.allows
    bench.circuit.sent()
    assert not bench.circuit.allows, "the probe has no verdict yet"
    bench.circuit.succeeded()
    assert bench.circuit.allows


def test_a_probe_that_fails_doubles_the_wait_up_to_a_limit(bench: Bench) -> None:
    bench.fail(5)
    waits = []
    for _ in range(7):
        waits.append(round(bench.circuit.seconds_to_probe, 3))
        bench.wait_for_probe()
        bench.fail()
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_a_probe_without_a_verdict_is_followed_by_another(bench: Bench) -> None:
    bench.fail(5)
    bench.wait_for_probe()
    bench.circuit.sent()
    bench.wait_for_probe()
    assert bench.circuit.allows


def test_a_full_worker_that_is_lost_may_be_made_good_at_once() -> None:
    budget = RetryBudget()
    assert all(budget.take() for _ in range(512))
    assert not budget.take()


def test_a_storm_gets_a_share_of_the_traffic() -> None:
    budget = RetryBudget()
    while budget.take():
        pass
    granted = 0
    for _ in range(1000):
        budget.earn()
        granted += budget.take()
    assert granted == pytest.approx(200, abs=2)
