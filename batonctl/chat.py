"""`baton chat`: a conversation, in a terminal or through a pipe."""

import asyncio
import json
import sys
from collections.abc import Iterator

import grpc

from baton.v1 import generation_pb2
from batonctl.answer import Answer
from batonctl.ask_options import AskOptions, chat_prompt, message
from batonctl.ask_stream import stream_answer
from batonctl.errors import CommandError
from chassis.channel import open_channel

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
    elif line in ("/help", "/?") and interactive:
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
        self._system = system
        self._runner = runner
        self._messages: list[generation_pb2.ChatMessage] = []
        self._channel: grpc.aio.Channel | None = None

    def reset(self) -> None:
        """Forgets all messages."""
        self._messages.clear()

    def say(self, text: str) -> None:
        """Prints the answer to `text`; a turn that fails or is interrupted leaves no trace."""
        turn = [*self._messages, message(generation_pb2.CHAT_ROLE_USER, text)]
        answer = self._runner.run(self._answer(turn))
        self._messages = [*turn, message(generation_pb2.CHAT_ROLE_ASSISTANT, answer.text)]
        if self._ask.json:
            print(json.dumps(answer.to_json(), ensure_ascii=False), flush=True)
        else:
            print(flush=True)

    async def _answer(self, turn: list[generation_pb2.ChatMessage]) -> Answer:
        if self._channel is None:
            self._channel = open_channel(self._ask.address)
        answer = Answer()
        request = self._ask.request(chat_prompt(turn, self._system))
        messages = stream_answer(
            self._channel, request, address=self._ask.address, limit=self._ask.timeout
        )
        async for piece in messages:
            answer.add(piece)
            if not self._ask.json:
                print("".join(delta.text for delta in piece.deltas), end="", flush=True)
        return answer

    def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._runner.run(self._channel.close())


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
