"""Two workers of each role, one of each slowed: its share of the work falls."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from baton.client import BatonClient
from tests.e2e.gateway_process import gateway_for, until_counted
from tests.e2e.metrics_page import read_counter
from tests.e2e.prompts import prompt
from tests.e2e.worker_process import WorkerProcess, running

POOL = ("--kv-memory-bytes", str(128 << 20))
# Stopped for three quarters of the time, far too briefly for a keepalive to take it for dead.
STOPPED_SECONDS, RUNNING_SECONDS = 0.09, 0.03
NUM_CLIENTS = 8
NUM_REQUESTS = 4


@contextmanager
def slowed(worker: WorkerProcess) -> Iterator[None]:
    """The worker gets a quarter of the time while entered."""
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.is_set():
            worker.signal(signal.SIGSTOP)
            over.wait(STOPPED_SECONDS)
            worker.signal(signal.SIGCONT)
            over.wait(RUNNING_SECONDS)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def ask(client: BatonClient, number: int) -> None:
    for turn in range(NUM_REQUESTS):
        tokens = prompt(64, seed=1_000 * number + turn)
        await client.generate(tokens, max_tokens=8, temperature=0, ignore_eos=True)


def prefilled(worker: WorkerProcess) -> float:
    return read_counter(worker, "baton_prompt_tokens_total")


def decoded(worker: WorkerProcess) -> float:
    return read_counter(worker, "baton_generated_tokens_total")


@pytest.mark.slow
async def test_the_share_of_a_slowed_worker_falls(tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(running(role, *POOL, trace_directory=tmp_path))
            for role in ("prefill", "prefill", "decode", "decode")
        ]
        p_fast, p_slow, d_fast, d_slow = (worker.wait_ready() for worker in workers)
        address = stack.enter_context(gateway_for([p_fast, p_slow], [d_fast, d_slow], tmp_path))
        async with BatonClient(address) as client:
            await until_counted(client, prefill=2, decode=2)
            with slowed(p_slow), slowed(d_slow):
                await asyncio.gather(*(ask(client, number) for number in range(NUM_CLIENTS)))
        total = NUM_CLIENTS * NUM_REQUESTS
        assert prefilled(p_fast) + prefilled(p_slow) == total * 64
        assert prefilled(p_slow) < 0.35 * total * 64
        # Each request's first token is prefill's own.
        assert decoded(d_fast) + decoded(d_slow) == total * 7
        assert decoded(d_slow) < 0.35 * total * 7
