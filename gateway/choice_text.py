"""The text of one choice, from its tokens."""

from collections.abc import Sequence

from gateway.detokenizer import Detokenizer
from gateway.stop_strings import StopStrings
from gateway.tokenizer import Tokenizer


class ChoiceText:
    """Turns the tokens of one choice into text up to its first stop string.

    Every pushed token is committed at once, whether or not its text is still held back: a new
    attempt continues after it (rule 5.3). The deltas joined are the choice's whole text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stop_strings = StopStrings(stop)
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self.matched_stop: str | None = None

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text it made certain.

        Do not push the token that ended the choice (end of text, stop token): it is no text.
        Once ``matched_stop`` is set, the choice is over and takes no more tokens.
        """
        assert self.matched_stop is None, f"token {token_id} after stop {self.matched_stop!r}"
        self.num_tokens += 1
        return self._push_text(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """The text held back so far; call once, when the choice ended without a stop string."""
        delta = self._push_text(self._detokenizer.finish())
        return delta if self.matched_stop is not None else delta + self._stop_strings.finish()

    def _push_text(self, text: str) -> str:
        if not text:
            return ""
        may_stop = self.num_tokens >= self._min_tokens
        delta, self.matched_stop = self._stop_strings.push(text, may_stop=may_stop)
        return delta
