"""``python -m bench.load.client KIND ..``: a process of clients, stopped by the end of its input.

``streams`` keeps so many streams open, one request after the other or one each; ``refusals`` asks
at a steady pace, whatever becomes of the requests. What came of it is written as JSON.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from baton.client import BatonClient, Sampling
from baton.v1.gateway_pb2 import GenerateStreamResponse
from bench.load.outcome import Outcome
from chassis.errors import ResourceExhausted, ServiceError

# How long a request of ``refusals`` waits for its refusal; one that was admitted is given up then.
REFUSED_WITHIN_SECONDS = 2.0
PAUSE_SECONDS = 0.2
# Of a token id that every model has.
MAX_TOKEN_ID = 250


class Streams:
    """Requests that all generate ``max_tokens``, from prompts that are all different."""

    def __init__(self, client: BatonClient, outcome: Outcome, options: argparse.Namespace) -> None:
        self._client = client
        self._outcome = outcome
        self._rng = random.Random(options.seed)
        self._prompt_tokens: int = options.prompt_tokens
        self._sampling: Sampling = {
            "max_tokens": options.max_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
        }

    async def keep_open(self) -> None:
        """One stream after the other, until cancelled."""
        while True:
            try:
                await self.read()
            except ServiceError as error:
                self._outcome.failed(error.reason)
                await asyncio.sleep(error.retry_after or PAUSE_SECONDS)

    async def read(self) -> None:
        """One stream from its request to its end."""
        outcome = self._outcome
        begun = last = time.perf_counter()
        first = None
        num_tokens = 0
        async with self._stream() as stream:
            async for message in stream:
                now = time.perf_counter()
                if first is None:
                    first = now
                    outcome.first_tokens.append(now - begun)
                else:
                    outcome.gaps.append(now - last)
                num_tokens += sum(len(delta.token_ids) for delta in message.deltas)
                last = now
        if first is not None and num_tokens > 1:
            outcome.token_times.append((last - first) / (num_tokens - 1))
        outcome.num_answers += 1

    async def be_refused(self) -> None:
        """Asks, and gives up where it is not refused."""
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(REFUSED_WITHIN_SECONDS), self._stream() as stream:
                async for _ in stream:
                    pass
        except ResourceExhausted:
            self._outcome.refusals.append(time.perf_counter() - begun)
        except (ServiceError, TimeoutError) as error:
            self._outcome.failed(getattr(error, "reason", "ADMITTED"))

    def _stream(self) -> "aclosing[AsyncGenerator[GenerateStreamResponse, None]]":
        prompt = [self._rng.randrange(MAX_TOKEN_ID) for _ in range(self._prompt_tokens)]
        return aclosing(self._client.stream(prompt, **self._sampling))


async def keep_streams(streams: Streams, options: argparse.Namespace) -> None:
    read = streams.read if options.once else streams.keep_open
    await asyncio.gather(*(read() for _ in range(options.streams)))


async def keep_asking(streams: Streams, options: argparse.Namespace) -> None:
    tasks: set[asyncio.Task[None]] = set()
    while True:
        task = asyncio.create_task(streams.be_refused())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(options.every)


KINDS: dict[str, Callable[[Streams, argparse.Namespace], Coroutine[Any, Any, None]]] = {
    "streams": keep_streams,
    "refusals": keep_asking,
}


async def until_told(work: Awaitable[None], at_end: Callable[[], str]) -> str:
    """Ends with the work, or when the input ends; returns what there was to say just then."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, told.set)
    working = asyncio.ensure_future(work)
    telling = asyncio.ensure_future(told.wait())
    await asyncio.wait((telling, working), return_when=asyncio.FIRST_COMPLETED)
    last_word = at_end()
    for task in (telling, working):
        task.cancel()
    await asyncio.gather(telling, working, return_exceptions=True)
    return last_word


async def run(options: argparse.Namespace) -> str:
    outcome = Outcome()
    async with BatonClient(options.address) as client:
        work = KINDS[options.kind](Streams(client, outcome, options), options)
        return await until_told(work, lambda: json.dumps(asdict(outcome)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load.client", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("address")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=1, help="open at once")
    parser.add_argument("--once", action="store_true", help="one request a stream")
    parser.add_argument("--every", type=float, default=0.1, help="seconds between two requests")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=200)
    print(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
