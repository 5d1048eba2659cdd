"""`baton generate`: one prompt, one answer."""

import asyncio
import json
import sys

from baton.v1 import generation_pb2
from batonctl.answer import Answer
from batonctl.ask_options import AskOptions, chat_prompt, message, text_prompt
from batonctl.ask_stream import stream_answer
from batonctl.errors import InputError
from chassis.channel import open_channel


def run_generate(prompt: str, ask: AskOptions, *, as_chat: bool, system: str) -> None:
    """Prints the answer as it comes, or JSON at its end; CommandError if the request fails."""
    if system and not as_chat:
        raise InputError("--system needs --chat", hint="a text to be continued has no roles")
    text = _read_stdin() if prompt == "-" else prompt
    if as_chat:
        user = message(generation_pb2.CHAT_ROLE_USER, text)
        request = ask.request(chat_prompt([user], system))
    else:
        request = ask.request(text_prompt(text))
    answer = asyncio.run(_ask(request, ask))
    if ask.json:
        print(json.dumps(answer.to_json(), ensure_ascii=False))
        return
    if len(answer.choices) > 1:
        for index, choice in sorted(answer.choices.items()):
            print(f"[{index}] {choice.text}")
    else:
        print()
    if sys.stderr.isatty():
        print(answer.statistics(), file=sys.stderr)


async def _ask(request: generation_pb2.GenerateRequest, ask: AskOptions) -> Answer:
    answer = Answer()
    # Several choices come interleaved: they are printed at the end.
    live = not ask.json and request.sampling.n <= 1
    async with open_channel(ask.address) as channel:
        messages = stream_answer(channel, request, address=ask.address, limit=ask.timeout)
        async for piece in messages:
            answer.add(piece)
            if live:
                print("".join(delta.text for delta in piece.deltas), end="", flush=True)
    return answer


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not valid UTF-8 (byte {error.start})") from None
