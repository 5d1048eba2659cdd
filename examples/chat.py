"""Keeps a conversation going, each question with everything said before it.

baton up                                  # in another terminal
python examples/chat.py                   # an empty line ends it
"""

import asyncio

from baton.client import BatonClient, assistant, system, user


def read_question() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


async def main() -> None:
    messages = [system("You are a helpful assistant. Answer in one or two sentences.")]
    async with BatonClient("127.0.0.1:7100") as client:
        while question := await asyncio.to_thread(read_question):
            messages.append(user(question))
            answer = ""
            async for message in client.stream(messages, max_tokens=200, temperature=0.3):
                for delta in message.deltas:
                    answer += delta.text
                    print(delta.text, end="", flush=True)
            print()
            messages.append(assistant(answer))


if __name__ == "__main__":
    asyncio.run(main())
