"""Clients that ask without a pause, at whichever gateway is there."""

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field

from baton.client import BatonClient
from bench.service import Service
from bench.soak.questions import Question
from bench.soak.tally import Tally
from chassis.errors import DeadlineExceeded, ServiceError

# What a gateway that stops answers, and what gRPC answers for one that has stopped.
ELSEWHERE = ("DRAINING", "UNAVAILABLE")
# A request that takes longer hangs.
DEADLINE = 90.0
PAUSE_SECONDS = 0.1
# Of so many requests one leaves, and one has too little time.
ONE_LEAVES = 60
ONE_HURRIES = 120


@dataclass(slots=True)
class Received:
    """What has come of an answer, by choice."""

    token_ids: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))

    def is_beginning(self, question: Question) -> bool:
        """Whether nothing of it is wrong."""
        return all(
            right.token_ids[: len(self.token_ids[index])] == tuple(self.token_ids[index])
            and right.text.startswith(self.texts[index])
            for index, right in enumerate(question.choices)
        )

    def is_all(self, question: Question) -> bool:
        """Whether it is the whole right answer."""
        return all(
            (right.token_ids, right.text) == (tuple(self.token_ids[index]), self.texts[index])
            for index, right in enumerate(question.choices)
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A question as one client asks it; it leaves after ``leaves_after`` tokens of a stream."""

    question: Question
    streams: bool
    seconds: float
    leaves_after: int | None


class _Left(Exception):
    """The client has heard enough."""


class Load:
    """Keeps ``width`` requests open and checks what comes back."""

    def __init__(
        self, gateways: Sequence[Service], questions: Sequence[Question], seed: int, tally: Tally
    ) -> None:
        self._gateways = gateways
        self._questions = questions
        self._seed = seed
        self._tally = tally
        self._numbers = itertools.count()
        self._clients: dict[str, BatonClient] = {}

    async def run(self, width: int, is_enough: Callable[[], bool]) -> None:
        """Returns when it is enough, and what was asked is answered."""
        async with AsyncExitStack() as stack:
            for address in (each for gateway in self._gateways for each in gateway.addresses):
                self._clients[address] = await stack.enter_async_context(BatonClient(address))
            await asyncio.gather(*(self._ask_on(is_enough) for _ in range(width)))

    async def _ask_on(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            number = next(self._numbers)
            await self._ask(number, self._draw(random.Random(f"{self._seed}/{number}")))

    def _draw(self, rng: random.Random) -> Request:
        question = rng.choice(self._questions)
        num_tokens = sum(len(choice.token_ids) for choice in question.choices)
        leaves = rng.randrange(ONE_LEAVES) == 0 and num_tokens > 1
        hurries = rng.randrange(ONE_HURRIES) == 0
        return Request(
            question,
            streams=leaves or rng.random() < 0.7,
            seconds=rng.uniform(0.01, 0.2) if hurries else DEADLINE,
            leaves_after=rng.randrange(1, num_tokens) if leaves else None,
        )

    async def _ask(self, number: int, request: Request) -> None:
        """Asks one gateway after the other until one has a word for it."""
        self._tally.sent += 1
        loop = asyncio.get_running_loop()
        end = loop.time() + request.seconds
        for client in self._turns(number):
            received = Received()
            try:
                await self._read(client, request, end - loop.time(), received)
            except ServiceError as error:
                self._check(number, received.is_beginning(request.question), received)
                if error.reason not in ELSEWHERE:
                    self._refused(request, error)
                    return
                self._tally.resubmitted[error.reason] += 1
            except _Left:
                self._check(number, received.is_beginning(request.question), received)
                self._tally.abandoned["CANCELLED"] += 1
                return
            else:
                self._check(number, received.is_all(request.question), received)
                self._tally.answered += 1
                return
            await asyncio.sleep(PAUSE_SECONDS)

    def _turns(self, number: int) -> Iterator[BatonClient]:
        """Gateways in turn, those first that are known to be there."""
        for turn in itertools.count(number):
            ready = [each for each in self._gateways if each.is_ready] or self._gateways
            yield self._clients[ready[turn % len(ready)].address]

    def _refused(self, request: Request, error: ServiceError) -> None:
        if isinstance(error, DeadlineExceeded) and request.seconds < DEADLINE:
            self._tally.abandoned[error.reason] += 1
        else:
            self._tally.refused[error.reason] += 1

    def _check(self, number: int, is_right: bool, received: Received) -> None:
        if not is_right:
            self._tally.wrong.append(f"request {number}: {dict(received.token_ids)}")

    async def _read(
        self, client: BatonClient, request: Request, seconds: float, received: Received
    ) -> None:
        question = request.question
        deadline = max(seconds, 0.001)
        if not request.streams:
            answer = await client.generate(
                question.token_ids, deadline=deadline, **question.sampling
            )
            for choice in answer.choices:
                received.token_ids[choice.index] += choice.token_ids
                received.texts[choice.index] += choice.text
            return
        stream = client.stream(question.token_ids, deadline=deadline, **question.sampling)
        num_tokens = 0
        async with aclosing(stream) as messages:
            async for message in messages:
                for delta in message.deltas:
                    received.token_ids[delta.index] += delta.token_ids
                    received.texts[delta.index] += delta.text
                    num_tokens += len(delta.token_ids)
                if request.leaves_after is not None and num_tokens >= request.leaves_after:
                    raise _Left
