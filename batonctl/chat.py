"""`baton chat`: a conversation, in a terminal or through a pipe."""

import asyncio
import json
import sys
from collections.abc import Iterator

from baton.client import BatonClient, assistant, user
from baton.client import system as system_message
from baton.v1.generation_pb2 import ChatMessage
from batonctl.answer import Answer
from batonctl.ask_options import AskOptions, require_utf8
from batonctl.ask_stream import stream_answer
from batonctl.errors import CommandError

PROMPT = "> "
_HELP = "/reset forgets the conversation, /quit leaves, Ctrl-C stops an answer"


def run_chat(ask: AskOptions, *, system: str) -> None:
    """Until /quit or the end of input; a failed turn ends it only when nobody is watching."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    with asyncio.Runner() as runner:
        conversation = Conversation(ask, system, runner)
        if interactive:
            print(f"{ask.address}: {_HELP}")
        try:
            for line in _lines(interactive):
                if line == "/quit":
                    break
                _turn(conversation, line, interactive=interactive)
        finally:
            conversation.close()


def _turn(conversation: "Conversation", line: str, *, interactive: bool) -> None:
    if line == "/reset":
        conversation.reset()
    elif line.startswith("/") and interactive:
        print(_HELP)
    elif line:
        try:
            conversation.say(line)
        except CommandError as error:
            if not interactive:
                raise
            print("\n".join(error.lines()), file=sys.stderr)
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("\n(stopped)")


class Conversation:
    """Messages so far, and the connection over which they continue."""

    def __init__(self, ask: AskOptions, system: str, runner: asyncio.Runner) -> None:
        self._ask = ask
        self._start = [system_message(require_utf8(system, "--system"))] if system else []
        self._messages: list[ChatMessage] = list(self._start)
        self._runner = runner
        self._client: BatonClient | None = None

    def reset(self) -> None:
        """Forgets all but the system message."""
        self._messages = list(self._start)

    def say(self, text: str) -> None:
        """Prints the answer to `text`; a turn that fails or is interrupted leaves no trace."""
        turn = [*self._messages, user(require_utf8(text, "message"))]
        answer = self._runner.run(self._answer(turn))
        self._messages = [*turn, assistant(answer.text)]
        if self._ask.json:
            print(json.dumps(answer.to_json(), ensure_ascii=False), flush=True)
        else:
            print(flush=True)

    async def _answer(self, turn: list[ChatMessage]) -> Answer:
        # Here, because a channel belongs to the loop that runs when it is made.
        if self._client is None:
            self._client = BatonClient(self._ask.address, self._ask.model)
        answer = Answer()
        async for piece in stream_answer(self._client, turn, self._ask):
            answer.add(piece)
            if not self._ask.json:
                print("".join(delta.text for delta in piece.deltas), end="", flush=True)
        return answer

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._runner.run(self._client.close())


def _lines(interactive: bool) -> Iterator[str]:
    if interactive:
        # Line editing and history for input(), where the Python build has it.
        import readline  # noqa: F401

        while True:
            try:
                yield input(PROMPT).strip()
            except EOFError:
                print()
                return
    for line in sys.stdin:
        yield line.strip()
