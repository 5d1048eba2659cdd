"""What each token id stands for in text."""

from collections.abc import Iterable
from dataclasses import dataclass

# SentencePiece writes a space as U+2581 inside its pieces.
SPM_SPACE = "\u2581"


def _byte_level_alphabet() -> dict[str, int]:
    """Maps the characters of byte-level pieces to bytes.

    Printable bytes stand for themselves, the others are shifted to U+0100 and above, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(shifted)}


BYTE_LEVEL_ALPHABET = _byte_level_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level piece; a piece outside the alphabet stands for its own text."""
    try:
        return bytes([BYTE_LEVEL_ALPHABET[character] for character in piece])
    except KeyError:
        return piece.encode()


def spm_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece piece."""
    return piece.replace(SPM_SPACE, " ").encode()


def byte_token_value(piece: str) -> bytes | None:
    """The byte of a byte token such as ``<0x0A>``, or None for any other piece."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            return None
    return None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Text of every token.

    ``token_bytes[id]`` is what the token adds to the text, a part of a character included.
    ``special_ids`` are control tokens, which are no text. ``strips_leading_space``: encoding puts
    a space before a text, so decoding a whole text takes one off. ``size`` counts the ids the
    model knows, which may be more than have text: the others decode to nothing.
    """

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    size: int
    strips_leading_space: bool = False

    def text_bytes(self, token_id: int, *, skip_special: bool) -> bytes:
        if token_id >= len(self.token_bytes) or (skip_special and token_id in self.special_ids):
            return b""
        return self.token_bytes[token_id]

    def join(self, token_ids: Iterable[int], *, skip_special: bool) -> bytes:
        return b"".join([self.text_bytes(i, skip_special=skip_special) for i in token_ids])

    @property
    def special_texts(self) -> list[str]:
        """Text forms of the control tokens, by id."""
        return [
            self.token_bytes[i].decode(errors="replace")
            for i in sorted(self.special_ids)
            if i < len(self.token_bytes)
        ]
