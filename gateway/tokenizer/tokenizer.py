"""Text to token ids and back, for one model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tokenizers

from gateway.chat_template import ChatMessage, ChatTemplate, ChatTemplateError
from gateway.tokenizer.control_shield import ControlShield
from gateway.tokenizer.engine import encode_text
from gateway.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids with a meaning. ``chat_needs_bos``: a rendered chat without the start token gets
    it."""

    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    chat_needs_bos: bool = False


class Tokenizer:
    """Text to token ids and back. Immutable; safe to share between threads.

    ``eos_token_ids`` are tokens that end a text or a turn.
    Encoding runs in Rust without the interpreter lock: call it in a thread where texts are long.
    """

    def __init__(
        self,
        engine: tokenizers.Tokenizer,
        vocabulary: Vocabulary,
        special_tokens: SpecialTokens,
        chat_template: ChatTemplate | None,
        max_context_tokens: int,
    ) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._special_tokens = special_tokens
        self._shield = ControlShield(engine, vocabulary.special_texts)
        # Models may name tokens that they cannot draw.
        self.eos_token_ids = frozenset(
            token_id for token_id in special_tokens.eos_token_ids if token_id < vocabulary.size
        )
        self.chat_template = chat_template
        self.max_context_tokens = max_context_tokens
        self.max_token_bytes = max(map(len, vocabulary.token_bytes), default=1)

    @property
    def vocab_size(self) -> int:
        """Number of token ids of the model; ids below it are valid."""
        return self._vocabulary.size

    @property
    def bos_token_id(self) -> int | None:
        """The start token, where the model has one."""
        return self._special_tokens.bos_token_id

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens: never part of a generated text."""
        return self._vocabulary.special_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text`` as it is: a control token spelled out in it is that token.

        ``add_special_tokens`` adds the start token where the model's files ask for one.
        """
        return self._known(encode_text(self._engine, text, add_special_tokens))

    def encode_chat(self, messages: Sequence[ChatMessage], max_chars: int) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks.

        Only the template writes control tokens: one spelled out in a message stays plain text.
        Raises ChatTemplateError where there is no template, or it refuses the messages or writes
        more than ``max_chars`` characters.
        """
        if self.chat_template is None:
            raise ChatTemplateError("the model has no chat template")
        protected = [ChatMessage(m.role, self._shield.protect(m.content)) for m in messages]
        text = self.chat_template.render(protected, max_chars)
        if protected == list(messages):
            ids = self.encode(text, add_special_tokens=False)
        else:
            ids = self._known(self._shield.encode(text))
        bos = self._special_tokens.bos_token_id
        if self._special_tokens.chat_needs_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def decode(
        self, token_ids: Iterable[int], skip_special_tokens: bool = True, continuation: bool = False
    ) -> str:
        """Text of the tokens; bytes that are no UTF-8 become U+FFFD, unknown ids nothing.

        ``continuation``: the text goes on from another one, so that a leading space, which
        encoding would have added to a whole text, is kept.
        """
        data = self._vocabulary.join(token_ids, skip_special=skip_special_tokens)
        text = data.decode(errors="replace")
        strips = self._vocabulary.strips_leading_space and not continuation
        return text.removeprefix(" ") if strips else text

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text, control tokens spelled out; empty for an unknown id."""
        return self._vocabulary.text_bytes(token_id, skip_special=False)

    def token_text(self, token_id: int) -> str:
        """One token as text; U+FFFD where it is not valid UTF-8 alone."""
        return self.token_bytes(token_id).decode(errors="replace")

    def _known(self, token_ids: list[int]) -> list[int]:
        """Without the ids of bytes that have no token; nearly every text has none of them."""
        num_known = len(self._vocabulary.token_bytes)
        if max(token_ids, default=0) < num_known:
            return token_ids
        return [i for i in token_ids if i < num_known]
