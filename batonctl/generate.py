"""`baton generate`: one prompt, one answer."""

import asyncio
import json
import sys

from baton.client import BatonClient, PromptLike
from baton.client import system as system_message
from baton.client import user as user_message
from batonctl.answer import Answer
from batonctl.ask_options import AskOptions, require_utf8
from batonctl.ask_stream import stream_answer
from batonctl.errors import InputError


def run_generate(prompt: str, ask: AskOptions, *, as_chat: bool, system: str) -> None:
    """Prints the answer as it comes, or JSON at its end; CommandError if the request fails."""
    if system and not as_chat:
        raise InputError("--system needs --chat", hint="a text to be continued has no roles")
    text = _read_stdin() if prompt == "-" else require_utf8(prompt, "prompt")
    answer = asyncio.run(_ask(_chat(text, system) if as_chat else text, ask))
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


def _chat(text: str, system: str) -> PromptLike:
    first = [system_message(require_utf8(system, "--system"))] if system else []
    return [*first, user_message(text)]


async def _ask(prompt: PromptLike, ask: AskOptions) -> Answer:
    answer = Answer()
    # Several choices come interleaved: they are printed at the end.
    live = not ask.json and (ask.sampling.n or 1) == 1
    async with BatonClient(ask.address, ask.model) as client:
        async for piece in stream_answer(client, prompt, ask):
            answer.add(piece)
            if live:
                print("".join(delta.text for delta in piece.deltas), end="", flush=True)
    return answer


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not valid UTF-8 (byte {error.start})") from None
