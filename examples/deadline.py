"""What a backend needs around a call: a deadline, a cancel, and typed errors with a retry.

baton up                                  # in another terminal
python examples/deadline.py
"""

import asyncio
from contextlib import aclosing

from baton.client import BatonClient
from chassis.errors import DeadlineExceeded, ResourceExhausted, ServiceError, Unavailable


async def with_a_deadline(client: BatonClient) -> None:
    """The deadline reaches every stage: when it passes, no worker goes on computing."""
    try:
        await client.generate("Count to a thousand:", deadline=0.5, ignore_eos=True)
    except DeadlineExceeded as error:
        print(f"deadline: {error.reason}")


async def with_a_cancel(client: BatonClient) -> None:
    """Leaving the stream early frees everything that the request held."""
    async with aclosing(client.stream("Count to a thousand:", ignore_eos=True)) as messages:
        async for message in messages:
            print(f"cancelled after {message.deltas[0].text!r}")
            break


async def with_a_retry(client: BatonClient, attempts: int = 3) -> None:
    """Only these two say that the same call may succeed later; the server may say when."""
    for attempt in range(1, attempts + 1):
        try:
            answer = await client.generate("The capital of France is", max_tokens=8, temperature=0)
        except (ResourceExhausted, Unavailable) as error:
            if attempt == attempts:
                raise
            await asyncio.sleep(error.retry_after or 0.1 * 2**attempt)
        else:
            print(f"answer: {answer.choices[0].text!r}")
            return


async def with_a_mistake(client: BatonClient) -> None:
    """A bad request names its fields, all of them at once."""
    try:
        await client.generate("Hello", temperature=-1.0, top_p=7.0)
    except ServiceError as error:
        for violation in error.violations:
            print(f"{error.reason}: {violation.field} {violation.description}")


async def main() -> None:
    async with BatonClient("127.0.0.1:7100") as client:
        await with_a_deadline(client)
        await with_a_cancel(client)
        await with_a_retry(client)
        await with_a_mistake(client)


if __name__ == "__main__":
    asyncio.run(main())
