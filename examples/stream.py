"""Streams an answer token by token.

baton up                                  # in another terminal
python examples/stream.py "Once upon a time"
"""

import asyncio
import sys

from baton.client import BatonClient


async def main(prompt: str) -> None:
    async with BatonClient("127.0.0.1:7100") as client:
        async for message in client.stream(prompt, max_tokens=64, temperature=0.7, seed=1):
            for delta in message.deltas:
                print(delta.text, end="", flush=True)
            if message.HasField("summary"):
                first = message.summary.timings.time_to_first_token.ToMilliseconds()
                tokens = message.summary.usage.completion_tokens
                print(f"\n\n{tokens} tokens, the first after {first} ms")
                print(f"baton trace {message.summary.request_id}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "Once upon a time"))
