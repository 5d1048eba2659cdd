"""Encoding is safe in threads, and lets others run."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.tokenizer import Tokenizer
from tests.gateway.text.corpus import CORPUS


@pytest.fixture
def no_thread_switches() -> object:
    """Threads change places only where one lets go of the interpreter by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("no_thread_switches")
def test_other_threads_run_while_a_long_text_is_encoded(smollm2: Tokenizer) -> None:
    text = "A long text. " * 100_000
    begun = threading.Event()
    ended = threading.Event()

    def encode() -> None:
        begun.set()
        smollm2.encode(text)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    was_free = not ended.is_set()
    thread.join()

    assert was_free


def test_many_threads_get_the_same_ids_as_one(smollm2: Tokenizer) -> None:
    expected = [smollm2.encode(text) for text in CORPUS]

    with ThreadPoolExecutor(8) as pool:
        for ids in pool.map(lambda _: [smollm2.encode(text) for text in CORPUS], range(16)):
            assert ids == expected
