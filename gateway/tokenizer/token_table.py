"""The token list of a GGUF file."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gguf.constants import Keys, TokenType

from gateway.tokenizer.errors import TokenizerError
from gateway.tokenizer.vocabulary import byte_token_value

_KEYS = Keys.Tokenizer
_SPECIAL_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN)
# Files often name one end token and forget the others, so these count by their text, and are
# control tokens whatever type the file gives them. llama.cpp has the same list.
END_TEXTS = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "</s>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
}


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Pieces and types by id, and ids by piece."""

    pieces: tuple[str, ...]
    types: tuple[int, ...]
    ids: dict[str, int]

    @classmethod
    def read(cls, metadata: dict[str, Any]) -> "TokenTable":
        """Raises TokenizerError where the lists contradict each other, KeyError without a list."""
        # llama.cpp, too, gives an empty piece a name.
        pieces = tuple(piece or f"[EMPTY_{i}]" for i, piece in enumerate(metadata[_KEYS.LIST]))
        ids = {piece: i for i, piece in enumerate(pieces)}
        if len(ids) != len(pieces):
            raise TokenizerError("two token ids have the same text")
        types = list(metadata.get(_KEYS.TOKEN_TYPE, [TokenType.NORMAL] * len(pieces)))
        if len(types) != len(pieces):
            raise TokenizerError(f"{len(pieces)} tokens but {len(types)} token types")
        for text in END_TEXTS & ids.keys():
            types[ids[text]] = TokenType.CONTROL
        return cls(pieces, tuple(types), ids)

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens."""
        return self._ids_of(*_SPECIAL_TYPES)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a text or a turn, by their text."""
        return frozenset(self.ids[text] for text in END_TEXTS & self.ids.keys())

    @property
    def normal_ids(self) -> frozenset[int]:
        """Tokens that stand for ordinary text."""
        return self._ids_of(TokenType.NORMAL, TokenType.UNUSED)

    @property
    def user_defined_ids(self) -> frozenset[int]:
        """Tokens of ordinary text that are never merged from smaller ones."""
        return self._ids_of(TokenType.USER_DEFINED)

    def piece(self, token_id: int | None) -> str | None:
        """Raises TokenizerError for an id that is not in the list."""
        if token_id is None:
            return None
        if token_id >= len(self.pieces):
            raise TokenizerError(f"special token {token_id} is not among {len(self.pieces)} tokens")
        return self.pieces[token_id]

    def text_bytes(self, decode_piece: Callable[[str], bytes]) -> tuple[bytes, ...]:
        """What each token adds to a text; ``decode_piece`` does it for normal tokens."""
        return tuple(
            self._bytes_of(piece, kind, decode_piece)
            for piece, kind in zip(self.pieces, self.types, strict=True)
        )

    def _ids_of(self, *kinds: TokenType) -> frozenset[int]:
        return frozenset(i for i, kind in enumerate(self.types) if kind in kinds)

    @staticmethod
    def _bytes_of(piece: str, kind: int, decode_piece: Callable[[str], bytes]) -> bytes:
        if kind == TokenType.NORMAL:
            return decode_piece(piece)
        if kind == TokenType.BYTE:
            return byte_token_value(piece) or b""
        return b"" if kind == TokenType.UNUSED else piece.encode()
