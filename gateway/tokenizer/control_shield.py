"""Keeps control tokens that a message spells out from becoming control tokens."""

import re
import secrets
from collections.abc import Iterable

import tokenizers
from tokenizers import normalizers

from gateway.tokenizer.engine import encode_text


class ControlShield:
    """Breaks control tokens in message text with a mark that encoding drops again.

    The mark goes into a message before the chat template runs, so that what the template itself
    writes still counts, and a message's characters merge with the template's as they would
    without it. It is drawn at random from private-use characters: no text contains it by chance.
    """

    def __init__(self, engine: tokenizers.Tokenizer, control_texts: Iterable[str]) -> None:
        texts = sorted(filter(None, control_texts), key=len, reverse=True)
        self._mark = "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in range(4))
        self._control = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        # What a message ends or begins with could complete a token together with the template.
        self._heads = tuple({text[:n] for text in texts for n in range(1, len(text))})
        self._tails = tuple({text[n:] for text in texts for n in range(1, len(text))})
        self._engine = _engine_without_mark(engine, self._mark)

    def protect(self, text: str) -> str:
        """Returns ``text`` with marks, or ``text`` itself where it needs none."""
        protected = self._control.sub(lambda m: m[0][0] + self._mark + m[0][1:], text)
        head = protected.rstrip()
        if head.endswith(self._heads):
            protected = head + self._mark + protected[len(head) :]
        tail = protected.lstrip()
        if tail.startswith(self._tails):
            protected = protected[: len(protected) - len(tail)] + self._mark + tail
        return protected

    def encode(self, text: str) -> list[int]:
        """Token ids of a text with marks, as if they were not there."""
        return encode_text(self._engine, text, add_special_tokens=False)


def _engine_without_mark(engine: tokenizers.Tokenizer, mark: str) -> tokenizers.Tokenizer:
    """A twin of ``engine`` (sharing its model) that drops ``mark``, but only after it has looked
    for control tokens."""
    twin = tokenizers.Tokenizer(engine.model)
    drop = normalizers.Replace(mark, "")
    original = engine.normalizer
    twin.normalizer = normalizers.Sequence([drop, original]) if original is not None else drop
    if engine.pre_tokenizer is not None:
        twin.pre_tokenizer = engine.pre_tokenizer
    for _, token in sorted(engine.get_added_tokens_decoder().items()):
        if token.special:
            twin.add_special_tokens([_found_before_normalizing(token)])
        else:
            twin.add_tokens([token])
    return twin


def _found_before_normalizing(token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    """The same token; looked for after normalizing it would be found where the mark was."""
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=True,
    )
