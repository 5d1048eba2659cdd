"""Streams without a pause, from clients that know several gateways."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from baton.client import BatonClient
from chassis.errors import Unavailable

# What a gateway that stops answers, and what is answered for one that has stopped.
ELSEWHERE = ("DRAINING", "UNAVAILABLE")
MAX_TURNS = 40
PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and how to sample it."""

    token_ids: Sequence[int]
    sampling: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got for the question of that number."""

    question: int
    token_ids: tuple[int, ...]
    text: str


@dataclass(slots=True)
class SteadyLoad:
    """Asks the questions in turn, ``width`` at a time, until it is stopped."""

    clients: Sequence[BatonClient]
    questions: Sequence[Question]
    answers: list[Answer] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    _stopping: bool = False
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @asynccontextmanager
    async def running(self, width: int) -> AsyncIterator[Self]:
        """Asks while entered; waits for the last answers."""
        tasks = [asyncio.create_task(self._ask_on()) for _ in range(width)]
        try:
            yield self
            self._stopping = True
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _ask_on(self) -> None:
        while not self._stopping:
            number = next(self._numbers)
            try:
                self.answers.append(await self._ask(number))
            except Exception as error:
                self.failures.append(error)

    async def _ask(self, number: int) -> Answer:
        """Raises Unavailable where the gateways send the request away for long, or one loses it."""
        question = number % len(self.questions)
        for turn in range(number, number + MAX_TURNS):
            client = self.clients[turn % len(self.clients)]
            try:
                return await self._read(client, question)
            except Unavailable as error:
                refusal = error
                if error.reason not in ELSEWHERE:
                    raise
            # A connection to a gateway that is back takes up to a second to find it.
            await asyncio.sleep(PAUSE_SECONDS)
        raise refusal

    async def _read(self, client: BatonClient, question: int) -> Answer:
        token_ids: list[int] = []
        text = ""
        asked = self.questions[question]
        try:
            async for message in client.stream(asked.token_ids, **asked.sampling):
                for delta in message.deltas:
                    token_ids += delta.token_ids
                    text += delta.text
        except Unavailable as error:
            if token_ids:
                raise AssertionError(f"lost after {len(token_ids)} tokens: {error!r}") from error
            raise
        return Answer(question, tuple(token_ids), text)


@asynccontextmanager
async def steady_load(
    addresses: Sequence[str], questions: Sequence[Question], width: int
) -> AsyncIterator[SteadyLoad]:
    """Runs while entered."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(BatonClient(each)) for each in addresses]
        async with SteadyLoad(clients, questions).running(width) as load:
            yield load
