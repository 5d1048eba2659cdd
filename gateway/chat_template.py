"""A model's own way of writing a conversation, as a Jinja template from its files."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


class ChatTemplateError(Exception):
    """The template refuses these messages, or fails on them."""


class ChatTooLongError(ChatTemplateError):
    """The template writes more than it may."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn: ``role`` is "system", "user" or "assistant"."""

    role: str
    content: str


class ChatTemplate:
    """A compiled template. It runs in a sandbox: it can read the messages and write text.

    Rendering is as in ``transformers.apply_chat_template``, with the assistant's turn opened.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises ChatTemplateError if ``source`` is no template."""
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template is not valid: {error}") from error

    def render(self, messages: Sequence[ChatMessage], max_chars: int) -> str:
        """Text of the conversation up to where the assistant speaks.

        Raises ChatTemplateError where the template refuses the messages or fails on them, and
        its subclass ChatTooLongError where it writes more than ``max_chars`` characters.
        """
        turns = [{"role": m.role, "content": m.content} for m in messages]
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._template.generate(
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            ):
                num_chars += len(piece)
                if num_chars > max_chars:
                    raise ChatTooLongError(f"the conversation is over {max_chars} characters")
                pieces.append(piece)
        except ChatTooLongError:
            raise
        except Exception as error:
            # A template is the model's program: it may fail in any way that a program can.
            raise ChatTemplateError(f"the chat template refuses: {error}") from error
        return "".join(pieces)


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only writes them."""

    tags = {"generation"}  # noqa: RUF012 - the interface of jinja2

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML, which no model expects."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
