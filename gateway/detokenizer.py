"""Generated tokens to text, one at a time."""

import codecs

from gateway.tokenizer import Tokenizer


class Detokenizer:
    """Text of a growing list of tokens; the pieces joined equal decoding the whole list.

    The list continues a prompt, so a leading space is text. Control tokens add nothing. Bytes of
    an unfinished character are kept until it is whole, or until it is clear that it never will be.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_ids = tokenizer.special_token_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """New text that ``token_id`` made certain; often empty within a character."""
        if token_id in self._special_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """The rest: U+FFFD where a character stayed unfinished."""
        return self._decoder.decode(b"", final=True)
