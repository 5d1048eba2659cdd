"""The engine thread, with real threads; every wait is for an event."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from engine.loop import EngineLoop

PATIENCE = 30.0


class CountedWork:
    """Steps while it has work, and tells when it has run out."""

    def __init__(self) -> None:
        self.remaining = 0
        self.idle = threading.Semaphore(0)
        self.threads: set[int] = set()

    def step(self) -> bool:
        self.threads.add(threading.get_ident())
        if self.remaining == 0:
            self.idle.release()
            return False
        self.remaining -= 1
        return True

    def add(self, amount: int) -> Callable[[], None]:
        def add() -> None:
            self.remaining += amount

        return add


def raise_error(error: BaseException) -> None:
    raise error


@contextmanager
def running(work: CountedWork) -> Iterator[EngineLoop]:
    failures: list[BaseException] = []
    loop = EngineLoop(work, on_failure=failures.append)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()
    assert failures == []


def call(loop: EngineLoop, function: Callable[[], None]) -> None:
    """Runs ``function`` on the engine thread and waits for it."""
    done = threading.Event()
    loop.post(function)
    loop.post(done.set)
    assert done.wait(PATIENCE)


def test_it_steps_until_there_is_nothing_to_do_and_again_when_woken() -> None:
    work = CountedWork()
    with running(work) as loop:
        assert work.idle.acquire(timeout=PATIENCE)
        loop.post(work.add(5))
        assert work.idle.acquire(timeout=PATIENCE)
        assert (loop.steps, work.remaining) == (5, 0)
        loop.post(work.add(2))
        assert work.idle.acquire(timeout=PATIENCE)
        assert loop.steps == 7


def test_an_idle_loop_does_not_step() -> None:
    work = CountedWork()
    with running(work) as loop:
        assert work.idle.acquire(timeout=PATIENCE)
        # Another thread's wait gives a spinning loop every chance to be caught.
        assert not work.idle.acquire(timeout=0.05)
        call(loop, lambda: None)
        assert work.idle.acquire(timeout=PATIENCE)


def test_posted_callables_run_in_order_on_the_engine_thread_before_the_next_step() -> None:
    work = CountedWork()
    seen: list[tuple[int, int]] = []

    def note(number: int) -> None:
        seen.append((number, threading.get_ident()))

    with running(work) as loop:
        for number in range(100):
            loop.post(partial(note, number))
        call(loop, lambda: None)
        (engine_thread,) = work.threads
    assert seen == [(number, engine_thread) for number in range(100)]
    assert engine_thread != threading.get_ident()


def test_posts_from_many_threads_all_arrive() -> None:
    work = CountedWork()

    def post_many() -> None:
        for _ in range(200):
            loop.post(work.add(1))

    with running(work) as loop:
        threads = [threading.Thread(target=post_many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while loop.steps < 1600:
            assert work.idle.acquire(timeout=PATIENCE)
    assert (loop.steps, work.remaining) == (1600, 0)


def test_stop_runs_what_was_posted_and_leaves_the_work() -> None:
    work = CountedWork()
    loop = EngineLoop(work, on_failure=raise_error)
    entered, leave = threading.Event(), threading.Event()
    ran: list[str] = []

    def hold() -> None:
        entered.set()
        assert leave.wait(PATIENCE)

    loop.start()
    loop.post(hold)
    assert entered.wait(PATIENCE)
    stopper = threading.Thread(target=loop.stop)
    stopper.start()
    loop.post(lambda: ran.append("posted"))
    leave.set()
    stopper.join(PATIENCE)
    assert not stopper.is_alive()
    assert ran == ["posted"]


def test_a_loop_that_rests_hears_what_is_posted_and_then_rests_on() -> None:
    work = CountedWork()
    rests = [3600.0, 3600.0, 0.0]

    def rest_less() -> None:
        del rests[0]

    loop = EngineLoop(work, on_failure=raise_error, rest=lambda: rests[0])
    loop.start()
    for _ in range(2):
        assert work.threads == set()
        turn = loop.turn
        call(loop, rest_less)
        assert loop.turn != turn
    assert work.idle.acquire(timeout=PATIENCE)
    loop.stop()
    assert rests == [0.0]


def test_a_rest_ends_with_the_loop() -> None:
    work = CountedWork()
    rests = threading.Event()

    def rest() -> float:
        rests.set()
        return 3600.0

    loop = EngineLoop(work, on_failure=raise_error, rest=rest)
    loop.start()
    assert rests.wait(PATIENCE)
    loop.stop()
    assert (work.threads, loop.thread.is_alive()) == (set(), False)


def test_a_loop_that_never_started_can_be_stopped() -> None:
    EngineLoop(CountedWork(), on_failure=raise_error).stop()


class Broken:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def step(self) -> bool:
        raise self.error


@pytest.mark.parametrize("source", ["step", "posted callable"])
def test_an_exception_ends_the_loop_and_is_told(source: str) -> None:
    failures: list[BaseException] = []
    told = threading.Event()

    def on_failure(error: BaseException) -> None:
        failures.append(error)
        told.set()

    error = ValueError(source)
    loop = EngineLoop(Broken(error) if source == "step" else CountedWork(), on_failure=on_failure)
    loop.start()
    if source == "posted callable":
        loop.post(lambda: raise_error(error))
    assert told.wait(PATIENCE)
    loop.stop()
    loop.post(lambda: failures.append(RuntimeError("ran after the end")))
    assert failures == [error]
